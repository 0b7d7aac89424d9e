from __future__ import annotations

from ipaddress import ip_address

from lb.net.connection_limiter import ConnectionLimiter

_ONE, _OTHER = ip_address("192.0.2.1"), ip_address("192.0.2.2")


def test_without_a_limit_all_may_enter() -> None:
    connection_limiter = ConnectionLimiter()
    assert all(connection_limiter.enter(_ONE) for _ in range(1000))


def test_connections_from_before_a_limit_was_set_count_toward_it() -> None:
    connection_limiter = ConnectionLimiter()
    assert [connection_limiter.enter(_ONE) for _ in range(3)] == [True, True, True]
    connection_limiter.limit = 2
    assert not connection_limiter.enter(_ONE)
    for _ in range(3):
        connection_limiter.leave(_ONE)
    assert [connection_limiter.enter(_ONE) for _ in range(2)] == [True, False]


def test_one_too_many_is_told() -> None:
    connection_limiter = ConnectionLimiter(2)
    assert [connection_limiter.enter(_ONE) for _ in range(4)] == [True, True, False, False]
    assert connection_limiter.enter(_OTHER)
    connection_limiter.leave(_ONE)
    connection_limiter.leave(_ONE)
    assert not connection_limiter.enter(_ONE)
    connection_limiter.leave(_ONE)
    connection_limiter.leave(_ONE)
    assert connection_limiter.enter(_ONE)


def test_nothing_is_left_of_clients_that_went() -> None:
    connection_limiter = ConnectionLimiter(2)
    for _ in range(5):
        connection_limiter.enter(_ONE)
    for _ in range(5):
        connection_limiter.leave(_ONE)
    assert len(connection_limiter) == 0


def test_an_ipv6_client_is_its_first_64_bits() -> None:
    connection_limiter = ConnectionLimiter(1)
    assert connection_limiter.enter(ip_address("2001:db8::1"))
    assert not connection_limiter.enter(ip_address("2001:db8::2"))
    assert connection_limiter.enter(ip_address("2001:db8:0:1::1"))
    # Those bits as a number are no IPv4 address.
    assert ConnectionLimiter(1).enter(ip_address("0.0.0.1"))


def test_clients_of_unix_sockets_have_no_limit() -> None:
    connection_limiter = ConnectionLimiter(1)
    assert connection_limiter.enter(None)
    assert connection_limiter.enter(None)
    connection_limiter.leave(None)
    assert len(connection_limiter) == 0
