from __future__ import annotations

from ipaddress import ip_address

from lb.net.crowd import Crowd

_ONE, _OTHER = ip_address("192.0.2.1"), ip_address("192.0.2.2")


def test_without_a_limit_nothing_is_counted() -> None:
    crowd = Crowd()
    assert all(crowd.enter(_ONE) for _ in range(1000))
    assert len(crowd) == 0
    crowd.leave(_ONE)


def test_one_too_many_is_told() -> None:
    crowd = Crowd(2)
    assert [crowd.enter(_ONE) for _ in range(4)] == [True, True, False, False]
    assert crowd.enter(_OTHER)
    crowd.leave(_ONE)
    crowd.leave(_ONE)
    assert not crowd.enter(_ONE)
    crowd.leave(_ONE)
    crowd.leave(_ONE)
    assert crowd.enter(_ONE)


def test_nothing_is_left_of_clients_that_went() -> None:
    crowd = Crowd(2)
    for _ in range(5):
        crowd.enter(_ONE)
    for _ in range(5):
        crowd.leave(_ONE)
    assert len(crowd) == 0


def test_an_ipv6_client_is_its_first_64_bits() -> None:
    crowd = Crowd(1)
    assert crowd.enter(ip_address("2001:db8::1"))
    assert not crowd.enter(ip_address("2001:db8::2"))
    assert crowd.enter(ip_address("2001:db8:0:1::1"))
    # Those bits as a number are no IPv4 address.
    assert Crowd(1).enter(ip_address("0.0.0.1"))


def test_clients_of_unix_sockets_have_no_limit() -> None:
    crowd = Crowd(1)
    assert crowd.enter(None)
    assert crowd.enter(None)
    crowd.leave(None)
    assert len(crowd) == 0
