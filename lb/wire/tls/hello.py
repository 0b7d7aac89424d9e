"""A client's first message: the server name and the protocols that it asks for (RFC 8446 4.1.2).

It is read before the TLS library sees it, because the library chooses among certificates only
after it has looked up the client's old session, and cannot tell a client that offers no protocol
from one that offers unknown ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_HELLO: Final = 64 * 1024
"""Bytes that a hello may take. With post-quantum keys they are 2 KiB; the library takes 128."""

MAX_RECORDS: Final = 64
"""Records that a hello may be spread over. The longest one needs five; reading many small ones is
work without proportion to what was sent."""

DECODE_ERROR: Final = 50
NO_APPLICATION_PROTOCOL: Final = 120
"""Alert descriptions (RFC 8446 6.2)."""

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD: Final = 1 << 14
_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4
_SERVER_NAME: Final = 0
_ALPN: Final = 16
_HOST_NAME: Final = 0


class HelloError(ValueError):
    """The bytes are no ClientHello."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What decides who answers a client."""

    server_name: str = ""
    """In lower case, without a final dot; empty when the client named none."""
    protocols: tuple[bytes, ...] = ()
    """What the client can speak, its favourite first; empty when it does not say."""

    @property
    def shown_name(self) -> str:
        """The name for the log."""
        return self.server_name or "-"


class HelloReader:
    """Reads the hello that a connection begins with. Each byte is looked at once, however many
    reads bring them."""

    __slots__ = ("_at", "_left", "_message", "_records", "received")

    def __init__(self) -> None:
        self.received = bytearray()
        """All that has come, records and what follows."""
        self._at = 0
        """What is before that in `received` was read."""
        self._left = 0
        """Bytes of the present record that are not read."""
        self._records = 0
        self._message = bytearray()
        """What the records contain."""

    def take(self, data: bytes) -> ClientHello | None:
        """Read what has come; None while the hello is incomplete.

        Raises:
            HelloError: these are no bytes of a ClientHello, or it is too long.
        """
        self.received += data
        message = self._message
        while self._at < len(self.received):
            if not self._left and not self._begin_record():
                return None
            part = self.received[self._at : self._at + self._left]
            self._at += len(part)
            self._left -= len(part)
            message += part
            if message and message[0] != _CLIENT_HELLO:
                raise HelloError("not a ClientHello")
            if len(message) < _MESSAGE_HEAD:
                continue
            end = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD], "big")
            if end - _MESSAGE_HEAD > MAX_HELLO:
                raise HelloError("ClientHello too long")
            if len(message) >= end:
                return _read_body(_Reader(bytes(message[_MESSAGE_HEAD:end])))
        return None

    def _begin_record(self) -> bool:
        """Read the head of the next record; False while it is incomplete."""
        head = bytes(self.received[self._at : self._at + _RECORD_HEAD])
        if head[0] != _HANDSHAKE or head[1:2] not in (b"", b"\x03"):
            raise HelloError("not TLS")
        if len(head) < _RECORD_HEAD:
            return False
        self._left = int.from_bytes(head[3:], "big")
        if not 0 < self._left <= _MAX_RECORD:
            raise HelloError("bad record length")
        self._records += 1
        if self._records > MAX_RECORDS:
            raise HelloError("ClientHello in too many records")
        self._at += _RECORD_HEAD
        return True


def alert(description: int) -> bytes:
    """A fatal alert in a record of its own, for a connection without keys."""
    return bytes((21, 3, 3, 0, 2, 2, description))


class _Reader:
    """Takes a message apart from its front."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise HelloError("truncated ClientHello")
        self._at += size
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, prefix: int) -> bytes:
        """Bytes that follow their length, which has `prefix` bytes itself."""
        return self.take(self.number(prefix))


def _read_body(body: _Reader) -> ClientHello:
    body.take(2 + 32)  # legacy version, random
    body.vector(1)  # session id
    body.vector(2)  # cipher suites
    body.vector(1)  # compression methods
    extensions = _Reader(body.vector(2) if body else b"")
    server_name = ""
    protocols: tuple[bytes, ...] = ()
    seen = set()
    while extensions:
        kind = extensions.number(2)
        content = _Reader(extensions.vector(2))
        if kind in seen:
            raise HelloError("repeated extension")
        seen.add(kind)
        if kind == _SERVER_NAME:
            server_name = _read_server_name(content)
        elif kind == _ALPN:
            protocols = _read_protocols(content)
    return ClientHello(server_name, protocols)


def _read_server_name(content: _Reader) -> str:
    """RFC 6066 3: a list, of which only one host name has ever been defined."""
    names = _Reader(content.vector(2))
    while names:
        kind = names.number(1)
        name = names.vector(2)
        if kind == _HOST_NAME:
            if not name.isascii() or b"\0" in name:
                raise HelloError("bad server name")
            return name.decode("ascii").lower().removesuffix(".")
    return ""


def _read_protocols(content: _Reader) -> tuple[bytes, ...]:
    """RFC 7301 3.1."""
    names = _Reader(content.vector(2))
    protocols = []
    while names:
        protocols.append(names.vector(1))
    if not protocols or b"" in protocols:
        raise HelloError("empty protocol name")
    return tuple(protocols)
