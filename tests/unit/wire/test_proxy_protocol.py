from __future__ import annotations

from ipaddress import ip_address

import pytest

from lb.wire.proxy_protocol import (
    BINARY_LIMIT,
    TEXT_LIMIT,
    ProxyHeader,
    ProxyHeaderError,
    read_proxy_header,
)
from tests.fakes.proxy_headers import (
    LOCAL,
    SIGNATURE,
    binary_header,
    extension,
    framed,
    text_header,
)

_CLIENT = (ip_address("203.0.113.7"), 4711)
_CLIENT6 = (ip_address("2001:db8::7"), 4711)
_BODY4 = binary_header()[16:]


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (text_header(), _CLIENT),
        (text_header("2001:db8::7"), _CLIENT6),
        (b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", (ip_address("0.0.0.0"), 0)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 what ever 1\r\n", None),
        (binary_header(), _CLIENT),
        (binary_header("2001:db8::7"), _CLIENT6),
        (binary_header(extensions=extension(3, b"abcd") + extension(0xEA, b"")), _CLIENT),
        (framed(0x21, 0x31, bytes(216)), None),
        (framed(0x21, 0x00, b""), None),
        (framed(0x21, 0x00, extension(4, bytes(9))), None),
    ],
)
def test_a_client_is_read_and_what_follows_is_not_touched(
    data: bytes, source: tuple[object, int] | None
) -> None:
    header = read_proxy_header(data + b"GET / HTTP/1.1\r\n")
    assert header == ProxyHeader(len(data), source=source)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [LOCAL, framed(0x20, 0x11, bytes(12)), framed(0x20, 0xFF, b"?")])
def test_a_load_balancer_speaks_for_itself(data: bytes) -> None:
    assert read_proxy_header(data) == ProxyHeader(len(data), is_local=True)


def test_the_longest_line_fits() -> None:
    address = ":".join(["ffff"] * 8)
    line = f"PROXY UNKNOWN {address} {address} 65535 65535\r\n".encode()
    assert len(line) == TEXT_LIMIT
    assert read_proxy_header(line) == ProxyHeader(len(line))
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(b"PROXY UNKNOWN " + bytes(TEXT_LIMIT - 15) + b"\r\n")


@pytest.mark.parametrize("size", [0, 1, 5, 6, 20, 43])
def test_a_part_of_a_line_needs_more(size: int) -> None:
    assert read_proxy_header(text_header()[:size]) is None


@pytest.mark.parametrize("size", [1, 12, 13, 15, 16, 27])
def test_a_part_of_a_binary_header_needs_more(size: int) -> None:
    assert read_proxy_header(binary_header()[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"proxy TCP4 203.0.113.7 192.0.2.1 4711 8000\r\n",
        b"PROXY\tTCP4",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 8000\n",
        b"PROXY TCP4 203.0.113.7\r192.0.2.1 4711 8000\r\n",
        b"PROXY  TCP4 203.0.113.7 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 8000 \r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711\r\n",
        b"PROXY TCP5 203.0.113.7 192.0.2.1 4711 8000\r\n",
        b"PROXY UDP4 203.0.113.7 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 4711 8000\r\n",
        b"PROXY TCP6 203.0.113.7 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113.256 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113.07 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 localhost 192.0.2.1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113.7 nowhere 4711 8000\r\n",
        b"PROXY TCP6 2001:db8::7%eth0 2001:db8::1 4711 8000\r\n",
        b"PROXY TCP6 2001:db8:::7 2001:db8::1 4711 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 99999\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 04711 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 -1 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 +1 8000\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1  8000\r\n",
        "PROXY TCP4 203.0.113.7 192.0.2.1 ٤ 8000\r\n".encode(),
        b"PROXY \r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY " + b"x" * TEXT_LIMIT,
    ],
)
def test_a_strange_line_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(data)


@pytest.mark.parametrize(
    "data",
    [
        SIGNATURE[:11] + b"\r",
        SIGNATURE + b"\x11",
        SIGNATURE + b"\x31",
        SIGNATURE + b"\x22",
        SIGNATURE + b"\x2f",
        framed(0x21, 0x12, _BODY4),
        framed(0x21, 0x10, _BODY4),
        framed(0x21, 0x01, b""),
        framed(0x21, 0x41, bytes(216)),
        framed(0x21, 0x11, _BODY4[:11]),
        framed(0x21, 0x21, bytes(35)),
        framed(0x21, 0x31, bytes(215)),
        framed(0x21, 0x11, _BODY4 + b"\x01"),
        framed(0x21, 0x11, _BODY4 + b"\x01\x00"),
        framed(0x21, 0x11, _BODY4 + b"\x01\x00\x02x"),
        framed(0x21, 0x00, b"xx"),
        SIGNATURE + b"\x21\x11" + (BINARY_LIMIT + 1).to_bytes(2, "big"),
        SIGNATURE + b"\x20\x00\xff\xff",
    ],
)
def test_a_strange_binary_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(data)


def test_a_binary_header_may_be_as_long_as_its_limit() -> None:
    filler = extension(4, bytes(BINARY_LIMIT - 15))
    data = binary_header(extensions=filler)
    assert len(data) == 16 + BINARY_LIMIT
    assert read_proxy_header(data) == ProxyHeader(len(data), source=_CLIENT)
