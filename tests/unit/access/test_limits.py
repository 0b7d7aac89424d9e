"""Limits per client, with time as an argument."""

from __future__ import annotations

import pytest

from lb.access.limits import Limit


def passed(limit: Limit, client: bytes, now: float) -> bool:
    """Ask for one request, and count it if it may pass."""
    if limit.is_full(client) or limit.wait_s(client, now):
        return False
    limit.take(client, now)
    return True


def test_a_burst_passes_and_then_one_request_per_interval() -> None:
    limit = Limit(rate=10.0, burst=3)
    assert [passed(limit, b"a", 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert limit.wait_s(b"a", 100.0) == pytest.approx(0.1)
    assert not passed(limit, b"a", 100.05)
    assert passed(limit, b"a", 100.1)
    assert not passed(limit, b"a", 100.1)


def test_a_pause_gives_back_no_more_than_the_burst() -> None:
    limit = Limit(rate=10.0, burst=3)
    assert passed(limit, b"a", 0.0)
    assert sum(passed(limit, b"a", 1e6) for _ in range(10)) == 3


def test_refused_requests_cost_nothing() -> None:
    limit = Limit(rate=1.0)
    assert passed(limit, b"a", 0.0)
    assert not any(passed(limit, b"a", 0.001 * step) for step in range(1, 900))
    assert passed(limit, b"a", 1.0)


def test_clients_do_not_share() -> None:
    limit = Limit(rate=1.0)
    assert passed(limit, b"a", 0.0)
    assert passed(limit, b"b", 0.0)


def test_requests_under_way_are_counted_exactly() -> None:
    limit = Limit(concurrent=2)
    assert [passed(limit, b"a", 0.0) for _ in range(3)] == [True, True, False]
    limit.give_back(b"a")
    assert passed(limit, b"a", 0.0)
    assert limit.open_of(b"a") == 2
    assert limit.open_of(b"b") == 0


def test_without_rate_there_is_no_wait() -> None:
    limit = Limit(concurrent=1)
    limit.take(b"a", 5.0)
    limit.give_back(b"a")
    assert limit.wait_s(b"a", 5.0) == 0.0


def test_the_number_of_clients_is_bounded_and_the_latest_are_remembered() -> None:
    limit = Limit(rate=0.001, max_clients=100)
    for number in range(1000):
        limit.take(b"%d" % number, 0.0)
        limit.give_back(b"%d" % number)
    assert len(limit) <= 100
    assert limit.wait_s(b"999", 0.0) > 0
    assert limit.wait_s(b"0", 0.0) == 0.0


def test_clients_with_requests_under_way_are_never_forgotten() -> None:
    limit = Limit(concurrent=1, max_clients=4)
    for number in range(20):
        limit.take(b"busy-%d" % number, 0.0)
    for number in range(100):
        limit.take(b"%d" % number, 0.0)
        limit.give_back(b"%d" % number)
    assert all(limit.is_full(b"busy-%d" % number) for number in range(20))
    assert len(limit) <= 20 + 4


def test_idle_clients_go_as_others_come() -> None:
    limit = Limit(rate=100.0)
    for number in range(1000):
        limit.take(b"%d" % number, 0.0)
        limit.give_back(b"%d" % number)
    for number in range(1000, 2000):
        limit.take(b"%d" % number, 1000.0)
        limit.give_back(b"%d" % number)
    assert len(limit) <= 1001
    limit.take(b"last", 2000.0)
    assert len(limit) <= 1000
