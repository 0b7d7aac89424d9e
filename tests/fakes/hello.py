"""Hellos as a real client writes them, and by hand."""

from __future__ import annotations

import ssl


def make_hello(name: str | None = "a.example", protocols: tuple[str, ...] = ()) -> bytes:
    """The first bytes of a client of the standard library."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def records(message: bytes, size: int) -> bytes:
    """A handshake message in records of `size` bytes."""
    return b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (message[at : at + size] for at in range(0, len(message), size))
    )


def extension(kind: int, content: bytes) -> bytes:
    """One extension."""
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def hello_with(extensions: bytes) -> bytes:
    """A hello with exactly these extensions, in one record."""
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\x01" + b"\1\0"
    body += len(extensions).to_bytes(2, "big") + extensions
    return records(b"\1" + len(body).to_bytes(3, "big") + body, 1 << 14)
