"""Body decoders: payload, ends, refusals, trailers, at every pace."""

from __future__ import annotations

import pytest

from lb.wire.http1.body import (
    CHUNKED,
    UNTIL_CLOSE,
    BodyDecoder,
    ChunkedDecoder,
    CloseDecoder,
    LengthDecoder,
    Payload,
    few,
    forwardable_trailers,
    make_decoder,
    part,
)
from lb.wire.http1.errors import MessageError


def _decode(decoder: BodyDecoder, wire: bytes, step: int = 1 << 20) -> tuple[bytes, bytes]:
    """Payload, and what stands behind the body."""
    out: list[Payload] = []
    for at in range(0, len(wire), step):
        data = wire[at : at + step]
        end = decoder.decode(data, 0, out)
        if decoder.ended:
            return b"".join(out), data[end:] + wire[at + step :]
        assert end == len(data)
    return b"".join(out), b""


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1 << 20])
def test_length_is_counted(step: int) -> None:
    decoder = LengthDecoder(5)
    assert _decode(decoder, b"helloGET", step) == (b"hello", b"GET")
    assert decoder.ended


def test_empty_body_has_ended_at_once() -> None:
    assert LengthDecoder(0).ended


def test_body_until_close_does_not_end_by_itself() -> None:
    decoder = CloseDecoder()
    assert _decode(decoder, b"hello") == (b"hello", b"")
    assert not decoder.ended


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1 << 20])
def test_chunks_lose_their_framing(step: int) -> None:
    decoder = ChunkedDecoder()
    wire = b"5\r\nhello\r\n00a;x=y\r\n, world!!!\r\n0;z\r\nA: b\r\nC: d\r\n\r\nGET"
    assert _decode(decoder, wire, step) == (b"hello, world!!!", b"GET")
    assert decoder.ended
    assert decoder.trailers == b"A: b\r\nC: d\r\n"


def test_a_read_that_is_one_chunk_is_known_where_one_may_begin() -> None:
    decoder = ChunkedDecoder()
    assert decoder.whole_chunks(b"a\r\n0123456789\r\n") == 10
    assert decoder.whole_chunks(b"a\r\n9876543210\r\n") == 10
    assert decoder.whole_chunks(b"b\r\n0123456789a\r\n") == 11
    assert decoder.whole_chunks(b"1\r\na\r\n") == 1
    for other in (
        b"1\r\n\r\n",
        b"b\r\n0123456789\r\n",
        b"a\r\n0123456789\r\n1",
        b"a\r\n0123456789\r",
        b"a\r\n0123456789xy",
        b"a;x\r\n0123456789\r\n",
        b"0a\r\n0123456789\r\n",
        b"+a\r\n0123456789\r\n",
        b"0\r\n\r\n",
        b"",
    ):
        assert not decoder.whole_chunks(other), other
    assert decoder.whole_chunks(b"10\r\n0123456789abcdef\r\n") == 16
    decoder.decode(b"3\r\na", 0, [])
    assert not decoder.whole_chunks(b"1\r\n\r\n"), "it is the rest of the chunk before"


def test_reads_of_whole_chunks_of_whole_lines_are_known() -> None:
    decoder = ChunkedDecoder()
    assert decoder.whole_chunks(b"3\r\nab\n\r\n10\r\n0123456789abcde\n\r\n") == 19
    for other in (
        b"3\r\nab\n\r\n3\r\nabc\r\n",
        b"3\r\nabc\r\n3\r\nab\n\r\n",
        b"3\r\nab\n\r\n3\r\nab\n\r",
        b"3\r\nab\n\r\n3\r\nab\nxy",
        b"3\r\nab\n\r\n3\r\n",
        b"3\r\nab\n\r\n3;x\r\nab\n\r\n",
        b"3\r\nab\n\r\n0\r\n\r\n",
    ):
        assert not decoder.whole_chunks(other), other


def test_chunks_of_one_read_come_as_slices() -> None:
    out: list[Payload] = []
    ChunkedDecoder().decode(b"1\r\na\r\n2\r\nbc\r\n3\r\nd", 0, out)
    assert out == [b"a", b"bc", b"d"]


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    "wire",
    [
        b"Z\r\n",
        b"0x5\r\n",
        b"+5\r\n",
        b" 5\r\n",
        b"5 \r\nhello",
        b"\r\n",
        b"5\nhello\r\n",
        b"5\rhello\r\n",
        b"5;a\x00\r\n",
        b"5;" + b"a" * 257 + b"\r\n",
        b"5\r\nhello\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\rX",
        b"12345678901234567\r\n",
        b"0\r\nx\r\n\r\n",
        b"0\r\n a: b\r\n\r\n",
        b"0\r\na: b\n\r\n\r\n",
        b"0\r\na: b\r\r\n\r\n",
        b"0\r\na: " + b"b" * 17000,
        b"0\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"0\r\n\rX",
    ],
    ids=lambda wire: repr(wire[:30]) if isinstance(wire, bytes) else None,
)
def test_broken_chunks_are_refused_without_waiting_for_more(wire: bytes, step: int) -> None:
    with pytest.raises(MessageError):
        _decode(ChunkedDecoder(), wire, step)


def test_extension_may_be_as_long_as_the_limit() -> None:
    wire = b"1 \t;" + b"a" * 253 + b"\r\nx\r\n0\r\n\r\n"
    for step in (1, 100, 1000):
        assert _decode(ChunkedDecoder(), wire, step) == (b"x", b"")


@pytest.mark.parametrize(
    "extension",
    [b";", b";;a", b"x", b" ", b";a=", b";=b", b";a=b=c", b";a[", b';a="b', b';a="b"c', b";a b",
     b";" + b" " * 17 + b"a", b";" + b"a" * 256],
)  # fmt: skip
def test_malformed_extension_is_refused_once_its_line_is_there(extension: bytes) -> None:
    for step in (1, 1000):
        with pytest.raises(MessageError):
            _decode(ChunkedDecoder(), b"1" + extension + b"\r\nx\r\n0\r\n\r\n", step)


def test_decoder_holds_no_payload() -> None:
    decoder = ChunkedDecoder()
    out: list[Payload] = []
    data = b"100000\r\n" + b"x" * 65536
    decoder.decode(data, 0, out)
    assert [len(piece) for piece in out] == [65536]
    assert isinstance(out[0], memoryview)
    assert out[0].obj is data


def test_whole_reads_are_passed_on_as_they_are() -> None:
    data = b"x" * 10_000
    assert part(data, 0, len(data)) is data
    assert isinstance(part(data, 0, 5), bytes)
    assert isinstance(part(data, 5, 10_000), memoryview)


def test_framing_chooses_the_decoder() -> None:
    assert isinstance(make_decoder(3), LengthDecoder)
    assert isinstance(make_decoder(CHUNKED), ChunkedDecoder)
    assert isinstance(make_decoder(UNTIL_CLOSE), CloseDecoder)


def test_framing_and_routing_fields_are_not_forwarded_as_trailers() -> None:
    trailers = b"X-Sum: 1\r\nContent-Length: 5\r\nhost: evil\r\ngrpc-status: 0\r\n"
    assert forwardable_trailers(trailers) == b"X-Sum: 1\r\ngrpc-status: 0\r\n"
    assert forwardable_trailers(b"") == b""


def test_many_crumbs_become_one_piece_and_few_pieces_stay() -> None:
    crumbs: list[Payload] = [b"x"] * 43_000
    assert few(crumbs) == [b"x" * 43_000]
    pieces: list[Payload] = [b"a", memoryview(b"b")]
    assert few(pieces) is pieces
