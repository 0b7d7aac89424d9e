"""What tells clients apart by their address."""

from __future__ import annotations

from ipaddress import ip_address

from lb.access.origin import address_key


def test_a_customers_ipv6_network_is_one_client() -> None:
    one, same, other = (
        address_key(ip_address(text))
        for text in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1")
    )
    assert one == same != other


def test_each_ipv4_address_is_a_client_and_all_unix_sockets_are_one() -> None:
    assert address_key(ip_address("192.0.2.1")) != address_key(ip_address("192.0.2.2"))
    assert address_key(None) == b""
