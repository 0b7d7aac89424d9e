"""The PROXY header read the plain way: all of it at once, by its grammar."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from lb.wire.proxy_protocol import BINARY_LIMIT

_LINE = re.compile(
    rb"PROXY (?:(?P<unknown>UNKNOWN)(?: [^\r\n]*)?"
    rb"|(?P<family>TCP4|TCP6) (?P<source>[0-9A-Fa-f.:]+) (?P<destination>[0-9A-Fa-f.:]+)"
    rb" (?P<port>0|[1-9]\d{0,4}) (?P<other>0|[1-9]\d{0,4}))\r\n"
)
_FAMILIES = {0x00: (0, 0), 0x11: (socket.AF_INET, 12), 0x21: (socket.AF_INET6, 36), 0x31: (0, 216)}

Result = tuple[int, bool, tuple[IPv4Address | IPv6Address, int] | None]


def reference(data: bytes) -> Result | None:
    """Size, whether it is local, and the source of the header at the start; None for no header,
    or one that is not complete."""
    return _text(data) if data.startswith(b"PROXY ") else _binary(data)


def _text(data: bytes) -> Result | None:
    match = _LINE.match(data[:107])
    if match is None:
        return None
    if match["unknown"]:
        return match.end(), False, None
    try:
        source, destination = (
            ip_address(match[name].decode()) for name in ("source", "destination")
        )
    except ValueError:
        return None
    version = {b"TCP4": 4, b"TCP6": 6}[match["family"]]
    ports = int(match["port"]), int(match["other"])
    if {source.version, destination.version} != {version} or max(ports) > 65535:
        return None
    return match.end(), False, (source, ports[0])


def _binary(data: bytes) -> Result | None:
    if data[:12] != b"\r\n\r\n\x00\r\nQUIT\n" or len(data) < 16 or data[12] not in (0x20, 0x21):
        return None
    length = data[14] * 256 + data[15]
    body = data[16 : 16 + length]
    if length > BINARY_LIMIT or len(body) < length:
        return None
    if data[12] == 0x20:
        return 16 + length, True, None
    if data[13] not in _FAMILIES:
        return None
    family, size = _FAMILIES[data[13]]
    rest = body[size:]
    if len(body) < size:
        return None
    while rest:
        if len(rest) < 3 or len(rest) < 3 + rest[1] * 256 + rest[2]:
            return None
        rest = rest[3 + rest[1] * 256 + rest[2] :]
    if not family:
        return 16 + length, False, None
    half = (size - 4) // 2
    source = ip_address(socket.inet_ntop(family, body[:half]))
    return 16 + length, False, (source, int.from_bytes(body[2 * half : 2 * half + 2], "big"))
