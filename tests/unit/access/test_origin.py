"""Who is behind a proxy: only what proxies that we trust have said."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from lb.access.origin import address_key, real_address
from lb.domain.client import Client, TrustedProxies

PROXIES = TrustedProxies((ip_network("10.0.0.0/8"), ip_network("fd00::/8")))


def client(address: str, *, is_trusted: bool) -> Client:
    parsed = ip_address(address)
    return Client(f"{address}:1", parsed, parsed, False, False, is_trusted)


@pytest.mark.parametrize(
    ("field", "real"),
    [
        (b"192.0.2.1", "192.0.2.1"),
        (b"6.6.6.6, 192.0.2.1", "192.0.2.1"),
        (b"6.6.6.6, 192.0.2.1, 10.0.0.2 , fd00::1", "192.0.2.1"),
        (b"192.0.2.1:4567", "192.0.2.1"),
        (b"[2001:db8::1]:4567", "2001:db8::1"),
        (b"2001:db8::1", "2001:db8::1"),
        (b"10.0.0.2", "10.0.0.2"),
        (b"6.6.6.6, unknown, 10.0.0.2", "10.0.0.2"),
        (b"6.6.6.6, [, 10.0.0.2", "10.0.0.2"),
        (b"6.6.6.6,", "10.0.0.1"),
        (b"", "10.0.0.1"),
        (b"\xff", "10.0.0.1"),
        (b"::ffff:192.0.2.1", "192.0.2.1"),
        (b"192.0.2.1," * 1000 + b"10.0.0.3", "192.0.2.1"),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_clients(field: bytes, real: str) -> None:
    found = real_address(client("10.0.0.1", is_trusted=True), field, PROXIES)
    assert found == ip_address(real)


def test_others_can_say_what_they_like() -> None:
    found = real_address(client("192.0.2.9", is_trusted=False), b"127.0.0.1", PROXIES)
    assert found == ip_address("192.0.2.9")


def test_a_customers_ipv6_network_is_one_client() -> None:
    one, same, other = (
        address_key(ip_address(text)) for text in ("2001:db8::1", "2001:db8::ffff:1", "2001:db9::1")
    )
    assert one == same != other
    assert address_key(ip_address("192.0.2.1")) != address_key(ip_address("192.0.2.2"))
    assert address_key(None) == b""
