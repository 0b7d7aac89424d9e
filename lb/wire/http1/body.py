"""Message bodies (RFC 9112 6 and 7): decoders for the three ways to frame one, and chunks out.

A decoder takes what was read and gives slices of payload; it never holds payload. One read gives
one list of slices, which the relay sends as one chunk, so that a storm of tiny chunks from one
side is a few large ones on the other (Triton before 25.07 dies of such storms).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import CRLF, TOKEN, has_violation, is_field_section
from lb.wire.http1.limits import CHUNK_EXTENSION_BYTES, TRAILER_BYTES, TRAILER_FIELDS

Payload: TypeAlias = bytes | memoryview

CHUNKED: Final = -1
"""In place of a length: the body is chunked."""
UNTIL_CLOSE: Final = -2
"""In place of a length: the body ends with the connection."""
LAST_CHUNK: Final = b"0\r\n\r\n"
FEW: Final = 16
"""Slices of one read that are written as they are; more are joined first."""
PIECES_AT_ONCE: Final = 512
"""Slices that one call of `decode` gives at most unless told otherwise. A chunk takes a microsecond
or two, and one read may bring 40,000 of them."""
VIEW_BYTES: Final = 4096
"""From this size on a slice is a view: the view object costs as much as copying this much."""

_ONE_SIZE: Final = re.compile(rb"([1-9A-Fa-f][0-9A-Fa-f]{0,7})\r\n")
"""The size line of a chunk with payload, as servers write it."""
_END_OF_LINES: Final = b"\n" + CRLF
_BLANK: Final = rb"[ \t]{0,16}"
_QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
_EXTENSION: Final = rb"(?:%b;%b%b(?:%b=%b(?:%b|%b))?+)*+" % (
    (_BLANK, _BLANK, TOKEN, _BLANK, _BLANK, TOKEN, _QUOTED)
)
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:|(?=[^\r\n]{0,%d}\r)%b)\r\n" % (CHUNK_EXTENSION_BYTES, _EXTENSION)
)
_SIZE_LINE_BEGUN: Final = re.compile(
    rb"(?:[0-9A-Fa-f]{1,16}(?:(?:[ \t;][\t -~\x80-\xff]{0,%d})?+\r?)?)?"
    % (CHUNK_EXTENSION_BYTES - 1)
)
"""What may become a size line. Whether extensions are well-formed is seen at its end."""
_NOT_IN_TRAILERS: Final = frozenset(
    b"authorization cache-control connection content-encoding content-length content-range "
    b"content-type expect host keep-alive max-forwards proxy-authenticate proxy-authorization "
    b"set-cookie te trailer transfer-encoding upgrade".split(b" ")
)
"""RFC 9110 6.5.1: fields for framing, routing, authentication and content negotiation."""


class BodyDecoder(Protocol):
    """Decodes one body."""

    ended: bool
    """All of the body was seen."""

    def decode(self, data: bytes, at: int, out: list[Payload], most: int = PIECES_AT_ONCE) -> int:
        """Append the payload in `data` from offset `at` to `out`, as far as that is `most` slices.

        Returns:
            The offset behind what was decoded. Where that is not the end of `data` and the body
            has not ended, there is more to decode.

        Raises:
            MessageError: the framing is broken. What was appended before that is payload.
        """
        ...


class LengthDecoder:
    """A body of known length."""

    __slots__ = ("ended", "remaining")

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.ended = length == 0

    def decode(self, data: bytes, at: int, out: list[Payload], most: int = PIECES_AT_ONCE) -> int:
        """See `BodyDecoder`."""
        end = len(data)
        stop = at + self.remaining
        if stop <= end:
            self.remaining = 0
            self.ended = True
            end = stop
        else:
            self.remaining = stop - end
        if end > at:
            out.append(part(data, at, end))
        return end


class CloseDecoder:
    """A body that ends with its connection."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False

    def decode(self, data: bytes, at: int, out: list[Payload], most: int = PIECES_AT_ONCE) -> int:
        """See `BodyDecoder`."""
        out.append(part(data, at, len(data)))
        return len(data)


class ChunkedDecoder:
    """A chunked body: strict line ends, bounded extensions that are dropped, bounded trailers."""

    __slots__ = (
        "_last_line", "_last_payload", "_last_size", "_line", "_read", "_remaining", "ended",
        "trailers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ended = False
        self.trailers = b""
        """Trailer field lines, checked, once the body has ended."""
        self._read: _Step = ChunkedDecoder._read_size
        self._line = b""
        """Start of a size line, of the CRLF after data, or of the trailers."""
        self._remaining = 0
        """Payload bytes of the chunk that are still to come."""
        self._last_line = b""
        """The size line of the last read that was one chunk."""
        self._last_payload = 0
        """Bytes of payload in that read."""
        self._last_size = 0
        """Bytes of that read; 0 where something was decoded since: there may be a rest of it."""

    def decode(self, data: bytes, at: int, out: list[Payload], most: int = PIECES_AT_ONCE) -> int:
        """See `BodyDecoder`."""
        end = len(data)
        self._last_size = 0
        while at < end and not self.ended and len(out) < most:
            at = self._read(self, data, at, out, most)
        return at

    def whole_chunks(self, data: bytes) -> int:
        """How much payload is in `data`, if there is nothing to decode: it is one whole chunk, or
        some that end a line each, and nothing else.

        Returns:
            0 where `data` is anything else, or very many chunks, and is to be decoded.
        """
        # HOT PATH (benchmarks/bench_http1_relay.py). Servers send one event in one chunk in one
        # write. Its size line is compared with the one that it would have, if that has as many
        # digits as the last one; `decode` says the same of it in three steps.
        if len(data) == self._last_size:
            if data.startswith(self._last_line) and data.endswith(CRLF):
                return self._last_payload
        elif self._last_size:
            size = len(data)
            at = len(self._last_line)
            if size > at + 2 and data.endswith(CRLF):
                payload = size - at - 2
                line = b"%x\r\n" % payload
                if len(line) == at and data.startswith(line):
                    self._last_line = line
                    self._last_size = size
                    self._last_payload = payload
                    return payload
        if self._read is not _READ_SIZE or self._line:
            return 0
        return self._find_chunks(data, len(data))

    def _find_chunks(self, data: bytes, end: int) -> int:
        """As `whole_chunks`, whatever came before."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Several events that came in one read.
        at = payload = 0
        for _ in range(PIECES_AT_ONCE):
            match = _ONE_SIZE.match(data, at)
            if match is None:
                return 0
            size = int(match[1], 16)
            stop = match.end() + size
            if not at and stop + 2 == end and data.endswith(CRLF):
                self._last_line = match[0]
                self._last_size = end
                self._last_payload = size
                return size
            at = stop + 2
            if data[stop - 1 : at] != _END_OF_LINES:
                return 0
            payload += size
            if at == end:
                return payload
        return 0

    def _read_size(self, data: bytes, at: int, out: list[Payload], most: int) -> int:
        # HOT PATH (benchmarks/bench_http1_body.py). Whole chunks are taken in a loop of its own
        # instead of by one state each. Reference: tests/reference/http1_chunked.py.
        if self._line:
            return self._resume_size(data, at)
        end = len(data)
        match_line = _SIZE_LINE.match
        for _ in range(most - len(out)):
            match = match_line(data, at)
            if match is None:
                return self._begin_line(data[at:], end) if at < end else end
            size = int(match[1], 16)
            at = match.end()
            stop = at + size
            if not size:
                self._read = ChunkedDecoder._read_trailers
                return at
            if stop + 2 > end:
                self._remaining = size
                self._read = ChunkedDecoder._read_data
                return at
            if data[stop : stop + 2] != CRLF:
                raise MessageError(400, "chunk is longer than its size")
            out.append(data[at:stop] if size < VIEW_BYTES else part(data, at, stop))
            at = stop + 2
        return at

    def _begin_line(self, line: bytes, end: int) -> int:
        if _SIZE_LINE_BEGUN.fullmatch(line) is None:
            raise MessageError(400, "malformed chunk size")
        self._line = line
        return end

    def _resume_size(self, data: bytes, at: int) -> int:
        had = len(self._line)
        # A whole size line is shorter than this, so a piece of `data` is enough.
        line = self._line + data[at : at + 2 * CHUNK_EXTENSION_BYTES]
        match = _SIZE_LINE.match(line)
        if match is None:
            return self._begin_line(line, len(data))
        self._line = b""
        self._remaining = int(match[1], 16)
        self._read = ChunkedDecoder._read_data if self._remaining else ChunkedDecoder._read_trailers
        return at + match.end() - had

    def _read_data(self, data: bytes, at: int, out: list[Payload], _most: int) -> int:
        # HOT PATH (benchmarks/bench_http1_body.py). The end of the chunk's line is nearly always
        # there, too, and takes no step of its own; the reference of that is `_read_data_end`.
        end = len(data)
        stop = at + self._remaining
        if stop > end:
            self._remaining = stop - end
            out.append(part(data, at, end))
            return end
        self._remaining = 0
        out.append(part(data, at, stop))
        if data[stop : stop + 2] == CRLF:
            self._read = _READ_SIZE
            return stop + 2
        self._read = ChunkedDecoder._read_data_end
        return stop

    def _read_data_end(self, data: bytes, at: int, out: list[Payload], _most: int) -> int:
        line = self._line + data[at : at + 2 - len(self._line)]
        if not CRLF.startswith(line):
            raise MessageError(400, "chunk is longer than its size")
        at += len(line) - len(self._line)
        self._line = line
        if len(line) == 2:
            self._line = b""
            self._read = ChunkedDecoder._read_size
        return at

    def _read_trailers(self, data: bytes, at: int, out: list[Payload], _most: int) -> int:
        had = len(self._line)
        text = self._line + data[at : at + TRAILER_BYTES + 3 - had]
        if text.startswith(CRLF):
            end = 2
        else:
            end = text.find(b"\r\n\r\n", max(had - 3, 0)) + 4
            if end < 4:
                return self._hold_trailers(text, had, len(data))
            self.trailers = text[: end - 2]
            if not is_field_section(self.trailers):
                raise MessageError(400, "malformed trailer field")
            if self.trailers.count(CRLF) > TRAILER_FIELDS:
                raise MessageError(431, "too many trailer fields")
        self.ended = True
        return at + end - had

    def _hold_trailers(self, text: bytes, had: int, end: int) -> int:
        if has_violation(text, max(had - 1, 0)):
            raise MessageError(400, "malformed trailer field")
        if len(text) > TRAILER_BYTES:
            raise MessageError(431, "trailers too large")
        self._line = text
        return end


_Step: TypeAlias = Callable[[ChunkedDecoder, bytes, int, list[Payload], int], int]
"""What reads next: a function, not a bound method, which would tie the decoder to itself."""
_READ_SIZE: Final[_Step] = ChunkedDecoder._read_size


def few(pieces: list[Payload]) -> list[Payload]:
    """The same payload in few pieces: a body in crumbs must not cost an object per byte."""
    return pieces if len(pieces) <= FEW else [b"".join(pieces)]


def make_decoder(length: int) -> LengthDecoder | ChunkedDecoder | CloseDecoder:
    """The decoder for a body of `length` bytes, or `CHUNKED`, or `UNTIL_CLOSE`."""
    if length >= 0:
        return LengthDecoder(length)
    return ChunkedDecoder() if length == CHUNKED else CloseDecoder()


def part(data: bytes, start: int, stop: int) -> Payload:
    """A slice of `data` that is cheap to pass on: itself, a copy of little, a view of much."""
    if stop - start == len(data):
        return data
    if stop - start < VIEW_BYTES:
        return data[start:stop]
    return memoryview(data)[start:stop]


def forwardable_trailers(trailers: bytes) -> bytes:
    """The trailer lines that may be passed on."""
    kept = [
        line + CRLF
        for line in trailers.split(CRLF)
        if line and line[: line.index(b":")].lower() not in _NOT_IN_TRAILERS
    ]
    return b"".join(kept)
