"""The PROXY protocol, versions 1 and 2: what a load balancer in front says of its client.

Format: "The PROXY protocol", HAProxy, sections 2.1 (text) and 2.2 (binary). Read strictly: nothing
but a trusted load balancer sends one, so a strange one is a mistake or an attack.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

TEXT_LIMIT: Final = 107
"""Bytes of the longest line of version 1, its end included (section 2.1)."""
BINARY_LIMIT: Final = 4096
"""Bytes after the first 16 of version 2 that we take. The format allows 65,535, which nobody needs:
addresses take 216 at most, and the usual extensions some hundred."""

_TEXT: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED: Final = struct.Struct("!12sBBH")
_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
_PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}", re.ASCII)
_IPV4: Final = re.compile(rb"[0-9.]{7,15}", re.ASCII)
_IPV6: Final = re.compile(rb"[0-9A-Fa-f:.]{2,45}", re.ASCII)
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESS_BYTES: Final = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}
"""By family and transport; other pairs, such as UDP, cannot have come over this connection."""

Ip = IPv4Address | IPv6Address


class ProxyHeaderError(Exception):
    """Not a PROXY header, or a broken one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """What a header says."""

    size: int
    """Bytes; what follows is the client's."""
    is_local: bool = False
    """The load balancer speaks for itself, as in a health check: its own address is the right
    one."""
    source: tuple[Ip, int] | None = None
    """The client's address and port; None when it has none or the load balancer does not know."""


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Read the header at the start of a connection.

    Args:
        data: all that has come so far.

    Returns:
        None when more is needed, which is never the case after `TEXT_LIMIT` or 16 plus
        `BINARY_LIMIT` bytes.

    Raises:
        ProxyHeaderError: as soon as it can be told.
    """
    if data.startswith(_TEXT[: len(data)]):
        return _read_text(data)
    if data.startswith(_SIGNATURE[: len(data)]):
        return _read_binary(data)
    raise ProxyHeaderError("no PROXY header")


def _read_text(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, TEXT_LIMIT)
    if end < 0:
        if len(data) >= TEXT_LIMIT:
            raise ProxyHeaderError("line too long")
        return None
    line = data[: end + 1]
    if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
        raise ProxyHeaderError("line does not end in CRLF")
    words = line[:-2].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(len(line))  # whatever else it says has no meaning
    if len(words) != 6:
        raise ProxyHeaderError("expected PROXY, family, two addresses and two ports")
    _, family, source, destination, source_port, destination_port = words
    client = _text_end(family, source, source_port)
    _text_end(family, destination, destination_port)
    return ProxyHeader(len(line), source=client)


def _text_end(family: bytes, address: bytes, port: bytes) -> tuple[Ip, int]:
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ProxyHeaderError("bad port")
    try:
        if family == b"TCP4" and _IPV4.fullmatch(address):
            return IPv4Address(address.decode()), int(port)
        if family == b"TCP6" and _IPV6.fullmatch(address):
            return IPv6Address(address.decode()), int(port)
    except ValueError as error:
        raise ProxyHeaderError("bad address") from error
    raise ProxyHeaderError("bad family or address")


def _read_binary(data: bytes) -> ProxyHeader | None:
    if len(data) > 12:
        _check_command(data[12])
    if len(data) < _FIXED.size:
        return None
    _, version_command, family, length = _FIXED.unpack_from(data)
    if length > BINARY_LIMIT:
        raise ProxyHeaderError("header too long")
    size = _FIXED.size + length
    is_local = version_command & 15 == _LOCAL
    if not is_local and _ADDRESS_BYTES.get(family, length + 1) > length:
        raise ProxyHeaderError("bad family, or too short for its addresses")
    if len(data) < size:
        return None
    if is_local:
        return ProxyHeader(size, is_local=True)  # the rest has no meaning
    at = _FIXED.size + _ADDRESS_BYTES[family]
    _check_extensions(data[at:size])
    return ProxyHeader(size, source=_binary_source(family, data[_FIXED.size : at]))


def _check_command(version_command: int) -> None:
    if version_command >> 4 != _VERSION or version_command & 15 not in (_LOCAL, _PROXY):
        raise ProxyHeaderError("unknown version or command")


def _binary_source(family: int, addresses: bytes) -> tuple[Ip, int] | None:
    if family == _TCP4:
        host, _, port, _ = struct.unpack("!4s4sHH", addresses)
        return IPv4Address(host), port
    if family == _TCP6:
        host, _, port, _ = struct.unpack("!16s16sHH", addresses)
        return IPv6Address(host), port
    return None


def _check_extensions(data: bytes) -> None:
    """Each is a type, a length in two bytes, and that many bytes (section 2.2); none of them
    changes what we do."""
    at = 0
    while at < len(data):
        if at + 3 > len(data):
            raise ProxyHeaderError("broken extension")
        at += 3 + int.from_bytes(data[at + 1 : at + 3], "big")
    if at != len(data):
        raise ProxyHeaderError("broken extension")
