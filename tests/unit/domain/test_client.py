from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from lb.domain.client import (
    NO_PROXIES,
    NOBODY,
    TrustedProxies,
    address_of_name,
    host_name,
    ip_of,
    is_within,
    key_of_client,
    request_client,
)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("192.0.2.1:5678", "192.0.2.1"),
        ("[2001:db8::1]:5678", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_name_of_a_client_holds_its_address(name: str, expected: str) -> None:
    assert address_of_name(name) == ip_address(expected)


@pytest.mark.parametrize("name", ["unix", "unknown"])
def test_the_name_of_a_client_without_an_address_holds_none(name: str) -> None:
    assert address_of_name(name) is None


def test_clients_of_one_network_of_ipv6_count_as_one() -> None:
    keys = [key_of_client(ip_address(f"2001:db8::{last}")) for last in (1, 2)]
    assert keys[0] == keys[1] != key_of_client(ip_address("2001:db8:0:1::1"))
    assert key_of_client(ip_address("192.0.2.1")) != key_of_client(ip_address("192.0.2.2"))


def test_addresses_are_written_as_before_a_port() -> None:
    assert host_name(ip_address("192.0.2.1")) == "192.0.2.1"
    assert host_name(ip_address("::1")) == "[::1]"


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


_PROXIES = TrustedProxies(networks=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
_PROXY = replace(NOBODY, address=ip_address("10.0.0.1"), is_trusted_proxy=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], "10.0.0.1"),
        ([b""], "10.0.0.1"),
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b"6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ([b"6.6.6.6", b"192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ([b"192.0.2.1,10.0.0.2\t,fd00::1 "], "192.0.2.1"),
        ([b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([b"192.0.2.1:4711"], "192.0.2.1"),
        ([b"[2001:db8::1]:4711"], "2001:db8::1"),
        ([b"2001:db8::1"], "2001:db8::1"),
        ([b"::ffff:10.0.0.2"], "10.0.0.2"),
        ([b"6.6.6.6, unknown"], "10.0.0.1"),
        ([b"6.6.6.6, unknown, 10.0.0.2"], "10.0.0.2"),
        ([b"6.6.6.6,, 10.0.0.2"], "10.0.0.2"),
        ([b"6.6.6.6, \xff"], "10.0.0.1"),
        ([b"6.6.6.6, " + b"1" * 9000], "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(
    fields: list[bytes], expected: str
) -> None:
    assert request_client(_PROXY, fields, _PROXIES) == ip_address(expected)


def test_only_trusted_proxies_are_believed() -> None:
    client = replace(NOBODY, address=ip_address("192.0.2.1"))
    assert request_client(client, [b"127.0.0.1"], _PROXIES) == client.address


def test_only_the_last_addresses_of_a_very_long_chain_are_read() -> None:
    fields = [b"192.0.2.1, " + b", ".join(b"10.0.1.%d" % hop for hop in range(40))]
    assert request_client(_PROXY, fields, _PROXIES) == ip_address("10.0.1.8")


def test_a_proxy_on_a_unix_socket_is_believed() -> None:
    client = replace(NOBODY, is_trusted_proxy=True)
    unix = TrustedProxies(unix=True)
    assert request_client(client, [b"192.0.2.1"], unix) == ip_address("192.0.2.1")
    assert request_client(client, [], unix) is None
