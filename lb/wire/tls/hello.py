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

DECODE_ERROR: Final = 50
NO_APPLICATION_PROTOCOL: Final = 120
"""Alert descriptions (RFC 8446 6.2)."""

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD: Final = 1 << 14
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


def read_hello(data: bytes) -> ClientHello | None:
    """Read the hello that a connection begins with; None while it is incomplete.

    Raises:
        HelloError: these are no bytes of a ClientHello, or it is too long.
    """
    message = _join_records(data)
    if message and message[0] != _CLIENT_HELLO:
        raise HelloError("not a ClientHello")
    size = int.from_bytes(message[1:4], "big")
    if len(message) >= 4 and size > MAX_HELLO:
        raise HelloError("ClientHello too long")
    if len(message) < 4 + size or len(message) < 4:
        return None
    return _read_body(_Reader(message[4 : 4 + size]))


def alert(description: int) -> bytes:
    """A fatal alert in a record of its own, for a connection without keys."""
    return bytes((21, 3, 3, 0, 2, 2, description))


def _join_records(data: bytes) -> bytes:
    """The handshake bytes of all records so far, the last of which may be incomplete."""
    parts = []
    at = 0
    while at < len(data):
        if data[at] != _HANDSHAKE or data[at + 1 : at + 2] not in (b"", b"\x03"):
            raise HelloError("not TLS")
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        if len(data) - at >= 5 and not 0 < size <= _MAX_RECORD:
            raise HelloError("bad record length")
        parts.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return b"".join(parts)


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
