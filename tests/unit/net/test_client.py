from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from lb.domain.client import TrustedProxies
from lb.net.client import ANNOUNCED, client_of
from lb.wire.proxy_protocol import ProxyHeader


class Told(asyncio.BaseTransport):
    """A transport that knows what the test says."""

    def __init__(self, **facts: object) -> None:
        super().__init__()
        self._facts = facts

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, default)


def test_a_client_is_its_address_and_port() -> None:
    client = client_of(Told(peername=("192.0.2.1", 5678), sockname=("192.0.2.9", 80)))
    assert client.name == "192.0.2.1:5678"
    assert client.address == client.peer == ip_address("192.0.2.1")
    assert not client.is_local
    assert not client.is_encrypted
    assert not client.is_trusted_proxy


def test_an_ipv4_client_of_an_ipv6_socket_is_an_ipv4_client() -> None:
    client = client_of(
        Told(peername=("::ffff:127.0.0.1", 5, 0, 0), sockname=("::ffff:127.0.0.1", 80, 0, 0))
    )
    assert client.name == "127.0.0.1:5"
    assert client.address == ip_address("127.0.0.1")
    assert client.is_local


@pytest.mark.parametrize(
    ("peer", "own", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.8.0.1", True),
        ("::1", "::1", True),
        ("127.0.0.1", "192.0.2.9", False),
        ("192.0.2.9", "192.0.2.9", False),
    ],
)
def test_local_is_loopback_at_both_ends(peer: str, own: str, is_local: bool) -> None:
    assert client_of(Told(peername=(peer, 5), sockname=(own, 80))).is_local is is_local


def test_a_client_of_a_unix_socket_is_local_and_has_no_address() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        client = client_of(Told(peername="", socket=sock), TrustedProxies(unix=True))
    assert (client.name, client.address, client.peer) == ("unix", None, None)
    assert client.is_local
    assert client.is_trusted_proxy


def test_a_client_that_was_gone_at_once_is_not_taken_for_a_local_one() -> None:
    with socket.socket() as sock:
        client = client_of(Told(peername=None, socket=sock), TrustedProxies(unix=True))
    assert (client.name, client.address) == ("unknown", None)
    assert not client.is_local
    assert not client.is_trusted_proxy


def test_tls_shows() -> None:
    assert client_of(Told(peername=("192.0.2.1", 5), sslcontext=object())).is_encrypted


def test_a_trusted_proxy_is_one_by_its_address() -> None:
    proxies = TrustedProxies(networks=(ip_network("192.0.2.0/24"),))
    assert client_of(Told(peername=("192.0.2.1", 5)), proxies).is_trusted_proxy
    assert not client_of(Told(peername=("198.51.100.1", 5)), proxies).is_trusted_proxy


def test_a_proxy_header_says_who_the_client_is() -> None:
    header = ProxyHeader(0, source=(ip_address("::ffff:203.0.113.7"), 9))
    client = client_of(
        Told(peername=("127.0.0.1", 5), sockname=("127.0.0.1", 80), **{ANNOUNCED: header}),
        TrustedProxies(networks=(ip_network("127.0.0.0/8"),)),
    )
    assert client.name == "203.0.113.7:9"
    assert client.address == ip_address("203.0.113.7")
    assert client.peer == ip_address("127.0.0.1")
    assert not client.is_local
    assert not client.is_trusted_proxy


def test_a_client_that_a_proxy_header_does_not_name_is_not_local() -> None:
    client = client_of(
        Told(
            peername=("127.0.0.1", 5),
            sockname=("127.0.0.1", 80),
            **{ANNOUNCED: ProxyHeader(0)},
        ),
        TrustedProxies(networks=(ip_network("127.0.0.0/8"),)),
    )
    assert (client.name, client.address) == ("127.0.0.1:5", ip_address("127.0.0.1"))
    assert not client.is_local
    assert not client.is_trusted_proxy


@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.1"])
def test_a_local_client_behind_a_local_proxy_is_local(peer: str) -> None:
    header = ProxyHeader(0, source=(ip_address("127.0.0.1"), 9))
    told = Told(peername=(peer, 5), sockname=(peer, 80), **{ANNOUNCED: header})
    assert client_of(told).is_local is (peer == "127.0.0.1")
