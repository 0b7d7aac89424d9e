from __future__ import annotations

from collections import Counter

import pytest

from lb.balancing.least_latency import LeastLatency
from lb.domain.backend import AppProtocol, Backend
from tests.fakes.backends import make_backend, make_backends

HTTP = AppProtocol.HTTP


def answered(backend: Backend, took_s: float, count: int = 1, status: int = 200) -> None:
    port = backend.port(HTTP)
    port.attempts += count
    port.latency.sum += took_s * count
    port.codes[status] = port.codes.get(status, 0) + count


def lost(backend: Backend, count: int) -> None:
    port = backend.port(HTTP)
    port.attempts += count
    port.failures["upstream_lost"] = port.failures.get("upstream_lost", 0) + count


def test_faster_backend_is_picked() -> None:
    slow, fast = make_backends(0, 0)
    answered(slow, 0.04)
    answered(fast, 0.01)
    picker = LeastLatency().build((slow, fast))
    assert {picker.pick() for _ in range(5)} == {fast}


def test_requests_in_flight_count() -> None:
    slow, fast = make_backends(0, 4)
    answered(slow, 0.04)
    answered(fast, 0.01)
    assert LeastLatency().build((slow, fast)).pick() is slow


def test_higher_latency_counts_at_once_and_a_lower_one_slowly() -> None:
    one, two = make_backends(0, 0)
    answered(one, 0.01, 50)
    answered(two, 0.02, 50)
    picker = LeastLatency().build((one, two))
    assert picker.pick() is one
    answered(one, 0.5)
    assert picker.pick() is two
    answered(one, 0.01)
    answered(two, 0.02)
    assert picker.pick() is two


def test_slow_one_is_tried_again() -> None:
    one, two = make_backends(0, 0)
    answered(one, 0.01)
    answered(two, 0.1)
    picker = LeastLatency().build((one, two))
    picked = []
    for _ in range(3000):
        backend = picker.pick()
        assert backend is not None
        answered(backend, 0.01)
        picked.append(backend)
    assert two not in picked[:500]
    assert two in picked


def test_unknown_one_is_picked_first() -> None:
    known, unknown = make_backends(0, 0)
    answered(known, 0.001)
    assert LeastLatency().build((known, unknown)).pick() is unknown


@pytest.mark.parametrize("is_lost", [False, True])
def test_backend_that_fails_at_once_does_not_look_fast(is_lost: bool) -> None:
    good, bad = make_backends(0, 0)
    picker = LeastLatency().build((good, bad))
    for _ in range(30):
        picker.pick()
        answered(good, 0.005, 5)
        if is_lost:
            lost(bad, 20)
        else:
            answered(bad, 0.001, 20, 503)
    picked = Counter(picker.pick() for _ in range(10))
    assert picked == {good: 10}


def test_weights_and_limits_count() -> None:
    light, heavy = make_backend("light"), make_backend("heavy", weight=3.0, in_flight=1)
    full = make_backend("full", max_in_flight=1, in_flight=1)
    for backend in (light, heavy, full):
        answered(backend, 0.01)
    picker = LeastLatency().build((light, heavy, full))
    assert picker.pick() is heavy
    assert LeastLatency().build((full,)).pick() is None


def test_ties_go_to_whoever_waited_longest() -> None:
    backends = make_backends(0, 0, 0)
    for backend in backends:
        answered(backend, 0.01)
    picker = LeastLatency().build(backends)
    picked = Counter(picker.pick() for _ in range(30))
    assert set(picked.values()) == {10}


def test_what_is_known_outlives_a_snapshot_and_gone_backends_do_not() -> None:
    policy = LeastLatency()
    slow, fast = make_backends(0, 0)
    answered(slow, 0.04)
    answered(fast, 0.01)
    policy.build((slow, fast)).pick()
    assert policy.build((slow, fast)).pick() is fast
    for number in range(500):
        policy.build((make_backend(f"b{number}"), slow, fast))
    assert len(policy._observed) < 100
