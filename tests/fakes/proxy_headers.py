"""PROXY headers as load balancers write them."""

from __future__ import annotations

from ipaddress import ip_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def text_header(source: str = "203.0.113.7", port: int = 4711) -> bytes:
    family = "TCP4" if ip_address(source).version == 4 else "TCP6"
    own = "192.0.2.1" if family == "TCP4" else "2001:db8::1"
    return f"PROXY {family} {source} {own} {port} 8000\r\n".encode()


def binary_header(source: str = "203.0.113.7", port: int = 4711, extensions: bytes = b"") -> bytes:
    address = ip_address(source)
    own = ip_address("192.0.2.1" if address.version == 4 else "2001:db8::1")
    ports = port.to_bytes(2, "big") + (8000).to_bytes(2, "big")
    family = 0x11 if address.version == 4 else 0x21
    return framed(0x21, family, address.packed + own.packed + ports + extensions)


def framed(version_command: int, family: int, body: bytes) -> bytes:
    """A header of version 2."""
    return SIGNATURE + bytes((version_command, family)) + len(body).to_bytes(2, "big") + body


def extension(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


LOCAL = framed(0x20, 0x00, b"")
