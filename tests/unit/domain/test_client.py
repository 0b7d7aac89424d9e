from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from lb.domain.client import NO_PROXIES, TrustedProxies, ip_of, is_within, peer_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_an_address_is_read(text: str, expected: str) -> None:
    assert ip_of(text) == ip_address(expected)


@pytest.mark.parametrize(
    "text", ["", "localhost", "192.0.2.1:80", "1.2.3", "%", "[::1]", "1.2.3.04"]
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert ip_of(text) is None


def test_addresses_are_named_with_their_ports() -> None:
    assert peer_name(ip_address("192.0.2.1"), 80) == "192.0.2.1:80"
    assert peer_name(ip_address("::1"), 80) == "[::1]:80"


def test_a_network_holds_only_addresses_of_its_own_family() -> None:
    networks = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert is_within(ip_address("10.1.2.3"), networks)
    assert is_within(ip_address("fd00::1"), networks)
    assert not is_within(ip_address("11.0.0.1"), networks)
    assert not is_within(ip_address("::10.1.2.3"), networks)


def test_nobody_is_trusted_unless_said() -> None:
    assert not NO_PROXIES
    assert not NO_PROXIES.include(ip_address("127.0.0.1"))
    assert not NO_PROXIES.include(None, is_unix=True)


def test_unix_sockets_are_trusted_by_a_word_of_their_own() -> None:
    networks = TrustedProxies(networks=(ip_network("0.0.0.0/0"),))
    assert networks
    assert networks.include(ip_address("192.0.2.1"))
    assert not networks.include(None, is_unix=True)
    assert TrustedProxies(unix=True).include(None, is_unix=True)
    assert not TrustedProxies(unix=True).include(None)
    assert not TrustedProxies(unix=True).include(ip_address("127.0.0.1"))
