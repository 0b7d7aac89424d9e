"""Names of regions: masked and found however the text is cut and spelled."""

from __future__ import annotations

import json
import string
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import RESERVED, NameMask, RegistrationWatch, StreamMask, masked
from lb.wire.grpc.message import frame_message

_SECRET = b"5ecret-0f.it"
_WORDS = st.sampled_from([b" ", b'"', b"triton_", RESERVED[:-1], RESERVED[5:], b"\xff", b"a"])
_NAME_BYTES = (string.ascii_letters + string.digits + "_.-").encode()
_TEXTS = st.lists(
    st.one_of(_WORDS, _WORDS, st.just(RESERVED + _SECRET + b" "), st.just(RESERVED + b" "))
).map(b"".join)
_CUTS = st.lists(st.integers(0, 2000), max_size=12)


def _split(text: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(points)]


def _plainly_masked(text: bytes) -> bytes:
    """One byte after the other."""
    out = b""
    at = 0
    while at < len(text):
        end = at
        if text.startswith(RESERVED, at):
            end = at + len(RESERVED)
            while end < len(text) and text[end] in _NAME_BYTES:
                end += 1
        out += b"*" * (end - at) if end > at else text[at : at + 1]
        at = max(end, at + 1)
    return out


@settings(max_examples=200, deadline=None)
@given(_TEXTS, _CUTS)
def test_masking_agrees_with_the_plain_way_and_no_cut_tells_a_secret(
    text: bytes, cuts: list[int]
) -> None:
    whole = _plainly_masked(text)
    assert masked(text) == whole
    mask = NameMask()
    out = b"".join([mask.feed(piece) for piece in _split(text, cuts)])
    assert len(out) == len(text)
    assert _SECRET not in out
    for shown, told, hidden in zip(out, text, whole, strict=True):
        assert shown in (told, hidden)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_TEXTS, st.sampled_from([b"", b"\n", b"\n\n"])), max_size=6))
def test_pieces_that_pass_are_those_that_masking_leaves_alone(
    parts: list[tuple[bytes, bytes]],
) -> None:
    pieces = [text + end for text, end in parts if text + end]
    plain, quick = NameMask(), NameMask()
    out = []
    for piece in pieces:
        shown = plain.feed(piece)
        out.append(piece if quick.passes(b"x" + piece + b"\r\n") else quick.feed(piece))
        assert out[-1] == shown
    assert _SECRET not in b"".join(out)


_KEYS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["/", ""]).map(lambda mark: mark + RESERVED.decode() + "1"),
)


@st.composite
def _spelled(draw: st.DrawFn, key: str) -> bytes:
    """A JSON string of `key` with any characters escaped."""
    units = []
    for char in key:
        plain = json.dumps(char, ensure_ascii=False)[1:-1]
        is_escaped = draw(st.booleans()) and ord(char) < 0xD800
        code = f"\\u{ord(char):04x}"
        units.append((code.upper().replace("\\U", "\\u") if draw(st.booleans()) else code)
                     if is_escaped else plain)  # fmt: skip
    return ('"' + "".join(units) + '"').encode("utf-8", "surrogatepass")


@settings(max_examples=200, deadline=None)
@given(st.data(), _KEYS, _CUTS)
def test_registrations_are_refused_exactly_for_reserved_names(
    data: st.DataObject, key: str, cuts: list[int]
) -> None:
    body = b'{"offset":0,"key":' + data.draw(_spelled(key)) + b',"byte_size":64}'
    watch = RegistrationWatch()
    assert any(watch.feed(piece) for piece in _split(body, cuts)) is (RESERVED.decode() in key)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(_TEXTS, st.none()), max_size=5), _CUTS)
def test_streams_keep_their_results_and_lengths(
    errors: list[bytes | None], cuts: list[int]
) -> None:
    name = RESERVED.decode() + _SECRET.decode()
    result = pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(id=name))
    messages = [
        result if error is None else pb.ModelStreamInferResponse(
            error_message=error.decode("latin-1")
        )
        for error in errors
    ]  # fmt: skip
    stream = b"".join(frame_message(message.SerializeToString()) for message in messages)
    mask = StreamMask()
    out = b"".join([bytes(mask.feed(memoryview(piece))) for piece in _split(stream, cuts)])
    assert len(out) == len(stream)
    assert out.count(_SECRET) == errors.count(None)
