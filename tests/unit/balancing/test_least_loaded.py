from __future__ import annotations

from collections import Counter
from random import Random

from lb.balancing.least_loaded import (
    EXACT_LIMIT,
    STAY,
    LeastLoaded,
    LeastLoadedPicker,
    WindowPicker,
)
from tests.fakes.backends import make_backend, make_backends


def test_a_backend_of_weight_three_gets_three_times_the_load() -> None:
    heavy, light = make_backend("heavy", weight=3.0), make_backend("light")
    picker = LeastLoaded(Random(1)).build((light, heavy))
    for _ in range(40):
        picked = picker.pick()
        assert picked is not None
        picked.in_flight += 1
    assert (heavy.in_flight, light.in_flight) == (30, 10)


def test_pickers_of_one_policy_take_turns_together() -> None:
    backends = make_backends(0, 0)
    policy = LeastLoaded(Random(1))
    http, grpc = policy.build(backends), policy.build(backends)
    assert http.pick() is backends[0]
    assert grpc.pick() is backends[1]
    assert http.pick() is backends[0]


def test_a_new_policy_continues_the_turns_of_the_one_before() -> None:
    backends = make_backends(0, 0)
    old = LeastLoaded(Random(1)).build(backends)
    for _ in range(5):
        old.pick()
    picker = LeastLoaded(Random(1)).build(backends)
    names = [picked.name for _ in range(4) if (picked := picker.pick()) is not None]
    assert names == ["b1", "b0", "b1", "b0"]


def test_small_sets_are_scanned_and_large_ones_are_sampled() -> None:
    policy = LeastLoaded(Random(1))
    assert isinstance(policy.build(make_backends(*[0] * EXACT_LIMIT)), LeastLoadedPicker)
    assert isinstance(policy.build(make_backends(*[0] * (EXACT_LIMIT + 1))), WindowPicker)


def test_a_large_set_stays_even() -> None:
    backends = make_backends(*[0] * 200)
    picker = LeastLoaded(Random(1)).build(backends)
    for _ in range(2000):
        picked = picker.pick()
        assert picked is not None
        picked.in_flight += 1
    loads = [backend.in_flight for backend in backends]
    assert max(loads) - min(loads) <= 2


def test_few_requests_stay_with_few_backends_of_a_large_set_for_a_while() -> None:
    backends = make_backends(*[0] * 200)
    picker = LeastLoaded(Random(1)).build(backends)
    first = [picker.pick() for _ in range(STAY)]
    assert len(set(first)) == 1
    second = [picker.pick() for _ in range(STAY)]
    assert len(set(second)) == 1
    assert set(first) != set(second)


def test_all_idle_ones_of_a_large_set_have_their_turn() -> None:
    backends = make_backends(*[1] * 50, *[0] * 150)
    picker = LeastLoaded(Random(1)).build(backends)
    shares = Counter(picker.pick() for _ in range(200 * STAY))
    assert shares.keys() == set(backends[50:])
    assert all(STAY <= share <= 8 * STAY for share in shares.values())


def test_requests_that_overlap_are_spread_over_idle_ones() -> None:
    picker = LeastLoaded(Random(1)).build(make_backends(*[0] * 200))
    for _ in range(100):
        picked = picker.pick()
        assert picked is not None
        assert picked.in_flight <= 1
        picked.in_flight += 1


def test_an_idle_one_of_little_weight_is_not_taken_for_the_best() -> None:
    heavy = make_backend("heavy", weight=7.0, in_flight=1)
    light = [make_backend(f"light-{at}") for at in range(30)]
    picker = LeastLoaded(Random(1)).build([heavy, *light])
    picks = {picker.pick() for _ in range(200)}
    assert heavy in picks
