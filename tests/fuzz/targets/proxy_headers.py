"""PROXY headers, and what they and `X-Forwarded-For` make of a client."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

from lb.access.origin import address_key
from lb.domain.client import Client, TrustedProxies, ip_of, request_client
from lb.wire.proxy_protocol import (
    BINARY_LIMIT,
    TEXT_LIMIT,
    ProxyHeader,
    ProxyHeaderError,
    read_proxy_header,
)
from tests.fakes.proxy_headers import LOCAL, SIGNATURE, binary_header, extension, text_header
from tests.fuzz.target import Target
from tests.reference.proxy_header import reference


def _check_header(data: bytes) -> None:
    header = _read(data)
    wanted = reference(data)
    if isinstance(header, ProxyHeader):
        assert (header.size, header.is_local, header.source) == wanted
        assert header.size <= len(data)
        assert header.source is None or 0 <= header.source[1] <= 65535
    else:
        assert wanted is None
        assert header is False or len(data) < max(TEXT_LIMIT, 16 + BINARY_LIMIT)
    for size in {*range(min(len(data), 20)), len(data) // 2, max(len(data) - 1, 0)}:
        before = _read(data[:size])
        assert before is None or before == header, (size, before, header)


def _read(data: bytes) -> ProxyHeader | bool | None:
    """False for a refusal."""
    try:
        return read_proxy_header(data)
    except ProxyHeaderError:
        return False


_PROXIES = TrustedProxies((ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
_OUTSIDE = IPv4Address("192.0.2.1")
_INSIDE = IPv4Address("10.0.0.1")


def _origin(address: IPv4Address, data: bytes) -> IPv4Address | IPv6Address:
    client = Client(str(address), address, address, False, False, _PROXIES.include(address))
    found = request_client(client, [data], _PROXIES)
    assert isinstance(found, IPv4Address | IPv6Address)
    assert len(address_key(found)) in (4, 8)
    return found


def _check_forwarded(data: bytes) -> None:
    assert _origin(_OUTSIDE, data) == _OUTSIDE
    found = _origin(_INSIDE, data)
    # What is put in front can only be believed when all behind it are proxies that we trust.
    if not _PROXIES.include(found):
        assert _origin(_INSIDE, b"6.6.6.6," + data) == found
    assert _origin(_INSIDE, data + b", 198.51.100.1") == IPv4Address("198.51.100.1")
    address = ip_of(data.decode("latin-1"))
    assert address is None or ip_of(str(address)) == address


_SEEDS = (
    text_header(),
    text_header("2001:db8::7") + b"GET / HTTP/1.1\r\n",
    binary_header() + b"PRI * HTTP/2.0",
    binary_header("2001:db8::7", extensions=extension(1, b"h2") + extension(4, bytes(9))),
    LOCAL,
    b"PROXY UNKNOWN a b\r\n",
)
_FORWARDED = (
    b"203.0.113.7", b"203.0.113.7, 10.1.1.1, 10.2.2.2", b"[2001:db8::7]:4711, fd00::1",
    b"203.0.113.7:80,10.1.1.1", b"unknown, 10.1.1.1", b"::ffff:203.0.113.7", b"fe80::1%eth0",
    b"10.1.1.1," * 40,
)  # fmt: skip

TARGETS = (
    Target(
        "proxy_header",
        _check_header,
        _SEEDS,
        (b"\r\n", b" ", b"TCP4", b"TCP6", b"UNKNOWN", b"65536", b"00", SIGNATURE, b"\x21\x11\0\x0c",
         b"\x20\0\0\0", b"\x21\x31\0\xd8", b"\xff\xff", b"::", b"1.2.3.4", b"%0", b"\xd9\xa5"),
    ),
    Target(
        "forwarded_for",
        _check_forwarded,
        _FORWARDED,
        (b",", b" ", b"[", b"]", b":80", b"%", b"::", b"10.0.0.1", b"1.2.3.4", b"\xd9\xa5", b"/8"),
    ),
)  # fmt: skip
