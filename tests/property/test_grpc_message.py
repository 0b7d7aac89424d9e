"""Messages are measured and named the same however their stream is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import MessageMeter, frame_message, model_name
from tests.reference.grpc_message import first_name, largest

MESSAGES = st.lists(st.binary(max_size=300), max_size=6)
CUTS = st.lists(st.integers(0, 2000), max_size=20) | st.just(range(2000))
NAMES = st.text(max_size=200) | st.text("ab", min_size=120, max_size=400)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at for at in cuts if at < len(stream)), len(stream)]
    return [stream[start:stop] for start, stop in pairwise(edges)]


@given(MESSAGES, st.binary(max_size=8), CUTS, st.booleans())
def test_meter_agrees_with_its_reference(
    messages: list[bytes], rest: bytes, cuts: list[int], views: bool
) -> None:
    meter = MessageMeter()
    taken: list[bytes] = []
    for part in cut(b"".join(map(frame_message, messages)) + rest, cuts):
        meter.feed(memoryview(part) if views else part)
        taken.append(part)
        assert meter.largest == largest(taken)


@given(NAMES, st.text(max_size=10), st.binary(max_size=50))
def test_name_is_the_requests_as_soon_as_it_is_there(name: str, version: str, raw: bytes) -> None:
    request = pb.ModelInferRequest(model_name=name, model_version=version, raw_input_contents=[raw])
    stream = frame_message(request.SerializeToString())
    found = [model_name(stream[:size]) for size in range(len(stream) + 1)]
    said = [answer for answer in found if answer is not None]
    wanted = name.encode() if len(name.encode()) <= 1024 else b""
    assert set(said) == {wanted}
    assert found == [None] * (len(found) - len(said)) + said


PIECES = st.sampled_from(
    [b"\x0a", b"\0", b"\1", b"\5", b"\x7f", b"\x80", b"\x81", b"\xff", b"\x07", b"\x08", b"abc"]
)
STARTS = st.binary(max_size=20) | st.lists(PIECES, max_size=8).map(
    lambda pieces: frame_message(b"".join(pieces))
)


@given(STARTS, st.integers(0, 1200))
def test_naming_agrees_with_its_reference(stream: bytes, more: int) -> None:
    stream += bytes(more)
    for size in {*range(min(len(stream), 12)), len(stream)}:
        assert model_name(stream[:size]) == first_name(stream[:size])
