"""What backends should not do over HTTP/1.1, and what the client must see of it.

The rows keep the ids of b4 in the review of trusted proxies; U-1 to U-6, U-17 and U-18 are about
gRPC and stand in `grpc_backends`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.corpus.http1_rows import HELLO


class Sees(Enum):
    """What the client gets."""

    ERROR = "502 of ours, complete"
    CUT = "the answer's beginning and a visible cut, or 502 where nothing of it has gone out"
    ANSWER = "a complete answer"


class End(Enum):
    """What the backend does behind its bytes."""

    STAYS = "waits for us to close"
    CLOSES = "FIN"
    RESETS = "RST"


@dataclass(frozen=True, slots=True)
class Misdeed:
    """Bytes that a backend answers with, and what becomes of them."""

    id: str
    what: str
    wire: bytes
    sees: Sees
    source: str
    status: int = 200
    """Of a complete answer."""
    body: bytes = b""
    interim: int = 0
    """1xx answers that the client gets before it."""
    end: End = End.STAYS
    method: bytes = b"GET"
    lacks: tuple[bytes, ...] = ()
    """Field names that the client must not get."""
    is_reused: bool = False
    """The connection is good for another request."""
    surplus: bytes = b""
    """What follows the end of the answer, in the same packet as its last byte. Where it came later
    there would be no telling it from an answer to the next request on that connection."""

    def __str__(self) -> str:
        return f"{self.id} {self.what}"

    @property
    def is_framed(self) -> bool:
        """The answer does not end with its connection."""
        return b"Content-Length" in self.wire or b"Transfer-Encoding" in self.wire


OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVIL: Final = OK + b"Content-Length: 4\r\n\r\nevil"
_HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
_GOOD: Final = OK + b"Content-Length: 5\r\n\r\n" + HELLO
_FRAMING: Final = "RFC 9112 6.3"
_HEAD: Final = "RFC 9112 2.2, 4, 5"
_CHUNK: Final = "RFC 9112 7.1"
_CUT: Final = "RFC 9112 8"
_BODYLESS: Final = "RFC 9112 6.3, RFC 9110 6.4.1"


def _broken(id: str, what: str, wire: bytes, source: str = _HEAD, end: End = End.STAYS) -> Misdeed:
    return Misdeed(id, what, wire, Sees.ERROR, source, end=end)


def _fields(id: str, what: str, fields: bytes, source: str = _HEAD) -> Misdeed:
    return _broken(id, what, OK + fields + b"\r\n" + HELLO + EVIL, source)


def _start(id: str, what: str, line: bytes) -> Misdeed:
    return _broken(id, what, line + b"\r\nContent-Length: 5\r\n\r\n" + HELLO, "RFC 9112 4")


def _chunks(id: str, what: str, wire: bytes) -> Misdeed:
    return Misdeed(id, what, CHUNKED + b"5\r\nhello\r\n" + wire, Sees.CUT, _CHUNK)


STARTS: Final = (
    _start("U-7a", "status of four digits", b"HTTP/1.1 2000 OK"),
    _start("U-7b", "status of letters", b"HTTP/1.1 abc OK"),
    _start("U-7c", "signed status", b"HTTP/1.1 +200 OK"),
    _start("U-7d", "no status", b"HTTP/1.1"),
    _start("U-7e", "empty status", b"HTTP/1.1  OK"),
    _start("U-7f", "status of two digits", b"HTTP/1.1 20 OK"),
    _start("U-7g", "status 000", b"HTTP/1.1 000 OK"),
    _start("U-7h", "version 2.0", b"HTTP/2.0 200 OK"),
    _start("U-7i", "lower-case version", b"http/1.1 200 OK"),
    _start("U-7j", "two spaces", b"HTTP/1.1  200 OK"),
    _start("U-7k", "tab", b"HTTP/1.1\t200 OK"),
    _start("U-7l", "NUL in the reason", b"HTTP/1.1 200 O\x00K"),
    Misdeed("U-7m", "no reason", b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", Sees.ANSWER,
            "RFC 9112 4", body=HELLO, is_reused=True),
    _broken("U-7n", "mail server", b"220 smtp.example.com ESMTP\r\n"),
    _broken("U-7o", "TLS alert", b"\x15\x03\x01\x00\x02\x02\x46", "RFC 8446 6"),
    _broken("U-7p", "HTTP/2", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "RFC 9113 6.5"),
    _broken("U-7q", "body without a head", b"hello\r\n\r\n"),
    _broken("U-7r", "nothing", b"", _CUT, End.CLOSES),
    _broken("U-7s", "nothing but a reset", b"", _CUT, End.RESETS),
    _broken("U-7t", "half a head", OK + b"Content-Le", _CUT, End.CLOSES),
    _broken("U-7u", "empty line first", b"\r\n" + _GOOD),
)  # fmt: skip

INTERIM: Final = (
    Misdeed("U-8a", "103 and 200", _HINTS + _GOOD, Sees.ANSWER, "RFC 8297", body=HELLO, interim=1,
            is_reused=True),
    Misdeed("U-8b", "two times 100 and 200", b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + _GOOD,
            Sees.ANSWER, "RFC 9110 15.2.1", body=HELLO, is_reused=True),
    Misdeed("U-8c", "as many as may be", _HINTS * 10 + _GOOD, Sees.ANSWER, "RFC 9110 15.2",
            body=HELLO, interim=10, is_reused=True),
    _broken("U-8d", "one more", _HINTS * 11 + _GOOD, "RFC 9110 15.2"),
    _broken("U-8e", "ten thousand", _HINTS * 10_000, "RFC 9110 15.2"),
    _broken("U-8f", "103 and no more", _HINTS, _CUT, End.CLOSES),
    Misdeed("U-8g", "103 with a length", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n"
            + _GOOD, Sees.ANSWER, "RFC 9110 8.6", body=HELLO, interim=1, is_reused=True),
)  # fmt: skip

LENGTHS: Final = (
    Misdeed("U-9a", "5 of 10 bytes", OK + b"Content-Length: 10\r\n\r\nhello", Sees.CUT, _CUT,
            end=End.CLOSES),
    Misdeed("U-9b", "5 of 10 bytes and a reset", OK + b"Content-Length: 10\r\n\r\nhello",
            Sees.CUT, _CUT, end=End.RESETS),
    Misdeed("U-9c", "15 of 10 bytes", OK + b"Content-Length: 10\r\n\r\n0123456789",
            Sees.ANSWER, _FRAMING, body=b"0123456789", surplus=b"abcde"),
    Misdeed("U-9d", "an answer behind", _GOOD, Sees.ANSWER, _FRAMING, body=HELLO, surplus=EVIL),
    Misdeed("U-9e", "an answer behind chunks", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
            Sees.ANSWER, _FRAMING, body=HELLO, surplus=EVIL),
    Misdeed("U-9f", "no last chunk", CHUNKED + b"5\r\nhello\r\n", Sees.CUT, _CUT,
            end=End.CLOSES),
    Misdeed("U-9g", "last chunk without an end", CHUNKED + b"5\r\nhello\r\n0\r\n", Sees.CUT, _CUT,
            end=End.CLOSES),
    Misdeed("U-9h", "part of a chunk", CHUNKED + b"a\r\nhello", Sees.CUT, _CUT, end=End.RESETS),
    Misdeed("U-9i", "until close", OK + b"\r\nhello", Sees.ANSWER, _FRAMING, body=HELLO,
            end=End.CLOSES),
    Misdeed("U-9j", "until a reset", OK + b"\r\nhello", Sees.CUT, _CUT, end=End.RESETS),
    Misdeed("U-9k", "HTTP/1.0 until close", b"HTTP/1.0 200 OK\r\n\r\nhello", Sees.ANSWER,
            _FRAMING, body=HELLO, end=End.CLOSES),
)  # fmt: skip

_TE: Final = b"Transfer-Encoding: chunked\r\n"
FRAMING: Final = (
    _fields("U-10a", "length and coding", b"Content-Length: 5\r\n" + _TE, _FRAMING),
    _fields("U-10b", "coding and length", _TE + b"Content-Length: 5\r\n", _FRAMING),
    _fields("U-10c", "two lengths", b"Content-Length: 5\r\nContent-Length: 6\r\n", _FRAMING),
    _fields("U-10d", "list of equal lengths", b"Content-Length: 5, 5\r\n", _FRAMING),
    _fields("U-10e", "gzip as coding", b"Transfer-Encoding: gzip\r\n", _FRAMING),
    _fields("U-10f", "chunked is not last", b"Transfer-Encoding: chunked, gzip\r\n", _FRAMING),
    _fields("U-10g", "chunked twice", _TE + _TE, _FRAMING),
    _fields("U-10h", "signed length", b"Content-Length: +5\r\n", _FRAMING),
    _fields("U-10i", "negative length", b"Content-Length: -5\r\n", _FRAMING),
    _fields("U-10j", "2^64", b"Content-Length: 18446744073709551616\r\n", _FRAMING),
    _fields("U-10k", "empty length", b"Content-Length:\r\n", _FRAMING),
    _fields("U-10l", "unknown coding", b"Transfer-Encoding: xchunked\r\n", _FRAMING),
    _fields("U-10m", "empty coding", b"Transfer-Encoding:\r\n", _FRAMING),
    _broken("U-10n", "coding in HTTP/1.0", b"HTTP/1.0 200 OK\r\n" + _TE
            + b"\r\n5\r\nhello\r\n0\r\n\r\n", _FRAMING),
    _fields("U-10o", "hexadecimal length", b"Content-Length: 0x5\r\n", _FRAMING),
    _fields("U-10p", "space before the length's colon", b"Content-Length : 5\r\n", _HEAD),
)  # fmt: skip

HEADS: Final = (
    _broken("U-11a", "bare LF", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"),
    _fields("U-11b", "line that ends with LF", b"X: a\nContent-Length: 5\r\n"),
    _fields("U-11c", "folded field", b"X: a\r\n b\r\nContent-Length: 5\r\n"),
    _fields("U-11d", "NUL in value", b"X: a\x00b\r\nContent-Length: 5\r\n"),
    _fields("U-11e", "CR in value", b"X: a\rb\r\nContent-Length: 5\r\n"),
    _fields("U-11f", "empty name", b": b\r\nContent-Length: 5\r\n"),
    _fields("U-11g", "no colon", b"NoColon\r\nContent-Length: 5\r\n"),
    _fields("U-11h", "space in name", b"X Y: b\r\nContent-Length: 5\r\n"),
    _fields("U-11i", "space before the first field", b" X: b\r\nContent-Length: 5\r\n"),
    _fields("U-11j", "non-ASCII name", b"X\xc3\xa9: b\r\nContent-Length: 5\r\n"),
    _fields("U-11k", "escape in value", b"X: \x1b[2J\r\nContent-Length: 5\r\n"),
    _fields("U-11l", "options are no list", b'Connection: "x"\r\nContent-Length: 5\r\n'),
    _fields("U-12a", "field of 64 KiB", b"X: " + b"a" * 65_536 + b"\r\nContent-Length: 5\r\n",
            "RFC 9110 5.4"),
    _fields("U-12b", "5,000 fields", b"X: a\r\n" * 5000 + b"Content-Length: 5\r\n",
            "RFC 9110 5.4"),
    _broken("U-12c", "start line of 1 MB", b"HTTP/1.1 200 " + b"O" * 1_000_000 + b"\r\n\r\n",
            "RFC 9110 5.4"),
    _broken("U-12d", "head without an end", OK + b"X: " + b"a" * 40_000, "RFC 9110 5.4"),
)  # fmt: skip

BODYLESS: Final = (
    Misdeed("U-13a", "204 with a body", b"HTTP/1.1 204 No Content\r\n\r\n", Sees.ANSWER,
            _BODYLESS, 204, surplus=b"evil"),
    Misdeed("U-13b", "204 with a length", b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n",
            Sees.ANSWER, _BODYLESS, 204, lacks=(b"content-length",), surplus=b"evil"),
    Misdeed("U-13c", "304 with a body", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n",
            Sees.ANSWER, _BODYLESS, 304, surplus=b"evil"),
    Misdeed("U-13d", "HEAD with a body", OK + b"Content-Length: 4\r\n\r\n", Sees.ANSWER,
            _BODYLESS, method=b"HEAD", surplus=b"evil"),
    Misdeed("U-13e", "HEAD with chunks", CHUNKED, Sees.ANSWER, _BODYLESS, method=b"HEAD",
            surplus=b"4\r\nevil\r\n0\r\n\r\n"),
    Misdeed("U-13f", "HEAD as it should be", OK + b"Content-Length: 4\r\n\r\n", Sees.ANSWER,
            _BODYLESS, method=b"HEAD", is_reused=True),
    _broken("U-14a", "101 that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\n"
            b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "RFC 9110 15.2.2, CVE-2024-23326"),
    Misdeed("U-14b", "200 with Upgrade", OK + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Content-Length: 5\r\n\r\nhello", Sees.ANSWER, "CVE-2024-23326", body=HELLO,
            lacks=(b"upgrade",), is_reused=True),
    Misdeed("U-14c", "fields of the connection", OK + b"Connection: X-Hop\r\nX-Hop: 1\r\n"
            b"Keep-Alive: timeout=1\r\nProxy-Connection: x\r\nContent-Length: 5\r\n\r\nhello",
            Sees.ANSWER, "RFC 9110 7.6.1", body=HELLO,
            lacks=(b"x-hop", b"keep-alive", b"proxy-connection"), is_reused=True),
    Misdeed("U-14d", "last answer, and one more", OK + b"Connection: close\r\n"
            b"Content-Length: 5\r\n\r\nhello", Sees.ANSWER, "RFC 9112 9.6", body=HELLO,
            surplus=EVIL),
)  # fmt: skip

CHUNKS: Final = (
    _chunks("U-16a", "0x", b"0x5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16b", "plus", b"+5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16c", "minus", b"-5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16d", "underscore", b"0_5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16e", "leading space", b" 5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16f", "trailing space", b"5 \r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16g", "empty size", b"\r\n\r\n"),
    _chunks("U-16h", "many leading zeros", b"0" * 30 + b"5\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16i", "2^64+5", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16j", "LF after data", b"5\r\nhello\n0\r\n\r\n"),
    _chunks("U-16k", "LF after size", b"5\nhello\r\n0\r\n\r\n"),
    _chunks("U-16l", "CR after size", b"5\rhello\r\n0\r\n\r\n"),
    _chunks("U-16m", "data too long", b"5\r\nhelloworld\r\n0\r\n\r\n"),
    _chunks("U-16n", "trailer without a colon", b"0\r\nx\r\n\r\n"),
    _chunks("U-16o", "endless extension", b"5;" + b"a" * 300 + b"\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16p", "CR in extension", b"5\r\r;a\r\nhello\r\n0\r\n\r\n"),
    _chunks("U-16q", "trailers of 17 KiB", b"0\r\nx: " + b"y" * 17_000 + b"\r\n\r\n"),
    Misdeed("U-16r", "extension", CHUNKED + b"5;a=b\r\nhello\r\n0\r\n\r\n", Sees.ANSWER, _CHUNK,
            body=HELLO, is_reused=True),
    Misdeed("U-16s", "framing in trailers", CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 1\r\n"
            b"Set-Cookie: a=b\r\n\r\n", Sees.ANSWER, "RFC 9110 6.5.1", body=HELLO,
            is_reused=True),
)  # fmt: skip

ALL: Final = STARTS + INTERIM + LENGTHS + FRAMING + HEADS + BODYLESS + CHUNKS

DEVIATIONS: Final[dict[str, str]] = {
    "U-20": "A backend that is ready and answers 503 is not taken out yet: its answers are passed "
    "on as they are. Passive health follows with failures that Triton itself reports.",
    "U-9": "Bytes behind an answer close its connection when they come with its last byte, or "
    "while the connection is idle. When they come later still, another request may be on "
    "its way there, and nothing tells them from its answer: HTTP/1.1 has no name for an exchange.",
}
"""Rows of b4 whose right answer differs from the review's, and why."""
