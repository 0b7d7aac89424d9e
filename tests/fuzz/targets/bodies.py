"""Bodies by themselves: chunked ones against the plain reader and h11, trailers, lengths."""

from __future__ import annotations

from typing import Any

import h11

from lb.wire.http1.body import (
    ChunkedDecoder,
    LengthDecoder,
    Payload,
    few,
    forwardable_trailers,
)
from lb.wire.http1.errors import MessageError
from tests.corpus import http1
from tests.fuzz.target import Target, same_for_every_cutting
from tests.reference import http1_chunked as reference


def _decode(pieces: list[bytes]) -> tuple[bytes, bytes, int] | str | None:
    decoder = ChunkedDecoder()
    out: list[Payload] = []
    used = 0
    for piece in pieces:
        if decoder.ended:
            break
        try:
            used += decoder.decode(piece, 0, out, len(out) + len(piece))
        except MessageError as error:
            assert error.status in (400, 431)
            return "illegal"
    return (b"".join(few(out)), decoder.trailers, used) if decoder.ended else None


def _check_chunked(data: bytes) -> None:
    ours: Any = same_for_every_cutting(_decode, data)
    try:
        plain: Any = reference.decode(data)
    except reference.Illegal:
        plain = "illegal"
    assert ours == plain
    if isinstance(ours, tuple):
        payload, trailers, used = ours
        assert len(payload) + len(trailers) <= used <= len(data)
        passed_on = forwardable_trailers(trailers)
        assert len(passed_on) <= len(trailers)
        assert _decode([b"0\r\n" + passed_on + b"\r\n"]) is not None
        _compare_with_h11(data, payload)


def _compare_with_h11(data: bytes, payload: bytes) -> None:
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    theirs = b""
    try:
        event: object = client.next_event()
        while isinstance(event, h11.Response | h11.Data):
            theirs += bytes(event.data) if isinstance(event, h11.Data) else b""
            event = client.next_event()
    except h11.RemoteProtocolError:
        return  # it does not know white space before an extension
    assert isinstance(event, h11.EndOfMessage)
    assert theirs == payload


def _check_length(data: bytes) -> None:
    length, wire = int.from_bytes(data[:2], "big") % 600, data[2:]

    def read(pieces: list[bytes]) -> tuple[bytes, bool, int]:
        decoder = LengthDecoder(length)
        out: list[Payload] = []
        used = 0
        for piece in pieces:
            if not decoder.ended:
                used += decoder.decode(piece, 0, out, len(out) + len(piece))
        return b"".join(out), decoder.ended, used

    wanted = (wire[:length], len(wire) >= length, min(length, len(wire)))
    assert same_for_every_cutting(read, wire) == wanted


_WORDS = (
    b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"0\r\n", b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n",
    b"; a\r\n", b"A\r\n0123456789\r\n", b"X: y\r\n", b"ffffffffffffffff", b"0000000000000005",
    b"\t", b" ", b";", b"-", b"+", b"0x", b"_", b"\0", b"\x7f", b"\x80", b"Content-Length: 5\r\n",
    b"1\r\n1\r\n" * 40,
)  # fmt: skip
CHUNKED = tuple(
    row.wire.partition(b"\r\n\r\n")[2]
    for row in http1.ALL
    if b"chunked" in row.wire and len(row.wire) < 9000
)

TARGETS = (
    Target("http1_chunked", _check_chunked, CHUNKED, _WORDS),
    Target("http1_length", _check_length, (b"\0\5hello", b"\0\0", b"\1\0" + b"x" * 300), (), 200),
)
