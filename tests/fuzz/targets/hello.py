"""The first message of a TLS client, against OpenSSL."""

from __future__ import annotations

import ssl

from lb.wire.tls.hello import MAX_HELLO, ClientHello, HelloError, HelloReader
from tests.fakes.hello import extension, hello_with, records
from tests.fuzz.target import Target, stored_seeds

_UNSEEN = "*"
"""OpenSSL did not get as far as asking for a certificate."""


def _check(data: bytes) -> None:
    hello = _read(data)
    # What is complete stays the same whatever follows, and was incomplete until then.
    for size in {len(data) // 2, max(len(data) - 1, 0)}:
        before = _read(data[:size])
        assert before is None or before == hello or hello is False
    if isinstance(hello, ClientHello):
        assert len(hello.server_name) <= len(data) <= 4 * MAX_HELLO
        assert sum(map(len, hello.protocols)) <= len(data)
        assert hello.server_name.isascii()
        theirs = _name_for_openssl(data)
        if theirs != _UNSEEN:
            assert hello.server_name == (theirs or "").lower().removesuffix(".")


def _read(data: bytes) -> ClientHello | bool | None:
    """False for a refusal."""
    try:
        return HelloReader().take(data)
    except HelloError:
        return False


class _Asked(Exception):
    """The library asked which certificate to use."""


_SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_NAMES: list[str | None] = []


def _note(_connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
    _NAMES.append(name)
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


_SERVER.sni_callback = _note  # type: ignore[assignment]  # the stubs ask for a socket


def _name_for_openssl(data: bytes) -> str | None:
    _NAMES.clear()
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    server = _SERVER.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    try:
        server.do_handshake()
    except ssl.SSLError:
        pass
    return _NAMES[0] if _NAMES else _UNSEEN


def _name(text: bytes) -> bytes:
    entry = b"\0" + len(text).to_bytes(2, "big") + text
    return extension(0, len(entry).to_bytes(2, "big") + entry)


_ALPN = extension(16, b"\0\x0c\x02h2\x08http/1.1")
_STORED = stored_seeds("tls_hello")
_SEEDS = (
    *_STORED,
    records(_STORED[0][5:], 100),
    hello_with(_name(b"A.example.") + _ALPN),
    hello_with(b""),
    b"GET / HTTP/1.1\r\n\r\n",
)

TARGETS = (
    Target(
        "tls_hello",
        _check,
        _SEEDS,
        (b"\x16\x03\x01", b"\x16\x03\x03\0\1", b"\0\0", b"\0\x10", _name(b"b"), _ALPN, b"\xff\xff"),
    ),
)
