"""Bodies: hot code and reference agree at every pace; what we encode, others decode."""

from __future__ import annotations

from itertools import pairwise

import h11
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lb.wire.http1.body import ChunkedDecoder, LengthDecoder, Payload
from lb.wire.http1.errors import MessageError
from tests.reference import http1_chunked as reference


def _split(wire: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({cut % (len(wire) + 1) for cut in cuts} | {0, len(wire)})
    return [wire[a:b] for a, b in pairwise(points)]


def _decode(pieces: list[bytes]) -> tuple[bytes, bytes, int] | str | None:
    """As the reference, "illegal" for a refusal."""
    decoder = ChunkedDecoder()
    out: list[Payload] = []
    used = 0
    for piece in pieces:
        if decoder.ended:
            break
        try:
            used += decoder.decode(piece, 0, out)
        except MessageError:
            return "illegal"
    return (b"".join(out), decoder.trailers, used) if decoder.ended else None


_EXTENSIONS = st.sampled_from(
    [b"", b"", b"", b";a", b" ;a=b", b'\t;a="b c"', b";" + b"x" * 255, b'; a = "\\"";c=d']
)
_CHUNK = st.tuples(st.binary(min_size=1, max_size=40), _EXTENSIONS, st.integers(0, 3)).map(
    lambda chunk: b"0" * chunk[2] + b"%X%b\r\n%b\r\n" % (len(chunk[0]), chunk[1], chunk[0])
)
_TRAILERS = st.sampled_from([b"", b"", b"a: b\r\n", b"a: b\r\nc:d\r\n"])
_BODIES = st.tuples(
    st.lists(_CHUNK, max_size=6).map(b"".join), st.just(b"0\r\n"), _TRAILERS, st.just(b"\r\n")
).map(b"".join)
_CUTS = st.lists(st.integers(0, 1000), max_size=20)


@settings(max_examples=200, deadline=None)
@given(_BODIES, st.binary(max_size=10), _CUTS)
def test_legal_bodies_are_decoded_at_every_pace(
    wire: bytes, behind: bytes, cuts: list[int]
) -> None:
    expected = reference.decode(wire)
    assert expected is not None
    assert expected[2] == len(wire)
    assert _decode(_split(wire + behind, cuts)) == expected
    assert _decode([wire[at : at + 1] for at in range(len(wire))]) == expected


@settings(max_examples=300, deadline=None)
@given(_BODIES, st.binary(max_size=3), st.integers(0, 300), st.integers(0, 3), _CUTS)
def test_broken_bodies_are_refused_where_the_reference_refuses_them(
    wire: bytes, noise: bytes, at: int, size: int, cuts: list[int]
) -> None:
    at %= len(wire) + 1
    broken = wire[:at] + noise + wire[at + size :]
    try:
        expected: tuple[bytes, bytes, int] | str | None = reference.decode(broken)
    except reference.Illegal:
        expected = "illegal"
    assert _decode([broken]) == expected
    assert _decode(_split(broken, cuts)) == expected
    assert _decode([broken[at : at + 1] for at in range(len(broken))]) == expected


_ONE_CHUNK = st.tuples(
    st.binary(max_size=40), st.integers(-2, 2), st.sampled_from(["%x", "%X", "0%x"])
).map(
    lambda chunk: (
        b"%b\r\n%b\r\n"
        % (
            (chunk[2] % max(0, len(chunk[0]) + (chunk[1] if chunk[1] % 2 else 0))).encode(),
            chunk[0],
        )
    )
)

_LINES = st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(
    lambda lines: b"".join(b"%x\r\n%b\n\r\n" % (len(line) + 1, line) for line in lines)
)
"""Chunks that end a line each."""


@settings(max_examples=300, deadline=None)
@given(
    _BODIES,
    st.integers(0, 300),
    st.lists(_ONE_CHUNK, max_size=2),
    st.one_of(_ONE_CHUNK, _LINES, _BODIES, st.binary(max_size=20)),
)
def test_whole_chunks_are_decoded_to_as_much_payload_and_leave_nothing_begun(
    before: bytes, at: int, seen: list[bytes], data: bytes
) -> None:
    decoder, other = ChunkedDecoder(), ChunkedDecoder()
    for each in (decoder, other):
        each.decode(before[: at % (len(before) + 1)], 0, [])
    for chunk in seen:
        decoder.whole_chunks(chunk)
    size = decoder.whole_chunks(data)
    if not size:
        return
    out: list[Payload] = []
    assert not decoder.ended
    assert decoder.decode(data, 0, out) == len(data)
    assert sum(map(len, out)) == size
    assert len(out) == 1 or all(piece.endswith(b"\n") for piece in map(bytes, out))
    assert not decoder.ended
    # The one that never saw it goes on as the one that did.
    assert _rest_of(decoder) == _rest_of(other)


def _rest_of(decoder: ChunkedDecoder) -> tuple[bytes, bytes, int]:
    out: list[Payload] = []
    used = decoder.decode(b"2\r\nok\r\n0\r\nA: b\r\n\r\n", 0, out)
    return b"".join(out), decoder.trailers, used


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 60), _CUTS)
def test_length_is_counted_at_every_pace(wire: bytes, length: int, cuts: list[int]) -> None:
    decoder = LengthDecoder(length)
    out: list[Payload] = []
    used = 0
    for piece in _split(wire, cuts):
        if decoder.ended:
            break
        used += decoder.decode(piece, 0, out)
    assert b"".join(out) == wire[:length]
    assert decoder.ended == (len(wire) >= length)
    assert used == min(length, len(wire))


@settings(max_examples=100, deadline=None)
@given(_BODIES)
def test_h11_agrees_on_legal_bodies(wire: bytes) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + wire)
    payload = b""
    assume(b" ;" not in wire)
    assume(b"\t;" not in wire)  # h11 does not know the white space of RFC 9112 7.1.1
    event: object = client.next_event()
    while not isinstance(event, h11.EndOfMessage):
        if isinstance(event, h11.Data):
            payload += event.data
        event = client.next_event()
    decoded = _decode([wire])
    assert isinstance(decoded, tuple)
    assert decoded[0] == payload
