"""Properties of all policies, and agreement of the hot pickers with their plain versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.balancing.least_loaded import EXACT_LIMIT, STAY, WINDOW, LeastLoadedPicker, WindowPicker
from lb.balancing.policies import POLICY_NAMES, make_policy
from lb.balancing.round_robin import RoundRobinPicker
from lb.balancing.score import PickSequence, score
from lb.domain.backend import Backend
from tests.fakes.backends import make_backend
from tests.reference import picking

WEIGHTS = st.sampled_from((0.5, 1.0, 1.5, 2.0, 7.0))


@st.composite
def pools(draw: st.DrawFn, min_size: int = 1, max_size: int = 12) -> tuple[Backend, ...]:
    """Backends with all mixtures of load, weight, limit and time of the last pick."""
    size = draw(st.integers(min_size, max_size))
    picks = draw(st.permutations(range(size)))
    return tuple(
        make_backend(
            f"b{at}",
            in_flight=draw(st.integers(0, 5)),
            weight=draw(WEIGHTS),
            max_in_flight=draw(st.integers(0, 4)),
            last_pick=draw(st.sampled_from((0, picks[at]))),
        )
        for at in range(size)
    )


ALL_POOLS = pools() | pools(EXACT_LIMIT + 1, EXACT_LIMIT + 20)


def take(backend: Backend | None) -> Backend | None:
    """What the relay does with a pick."""
    if backend is not None:
        backend.in_flight += 1
    return backend


def copy_of(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    return tuple(
        make_backend(
            backend.name,
            in_flight=backend.in_flight,
            weight=backend.spec.weight,
            max_in_flight=backend.max_in_flight,
            last_pick=backend.last_pick,
        )
        for backend in backends
    )


def name_of(backend: Backend | None) -> str | None:
    return backend.name if backend is not None else None


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(backends=ALL_POOLS, seed=st.integers(0, 2**32))
def test_picks_have_room_and_none_means_that_all_are_full(
    name: str, backends: tuple[Backend, ...], seed: int
) -> None:
    picker = make_policy(name, Random(seed)).build(backends)
    for _ in range(30):
        free = {backend for backend in backends if backend.has_room}
        picked = picker.pick()
        assert (picked in free) if free else (picked is None)
        take(picked)


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(backends=pools(2, 40), seed=st.integers(0, 2**32))
def test_a_backend_that_was_full_is_picked_again_once_it_has_room(
    name: str, backends: tuple[Backend, ...], seed: int
) -> None:
    for backend in backends:
        backend.max_in_flight = backend.in_flight = 2
    picker = make_policy(name, Random(seed)).build(backends)
    assert picker.pick() is None
    backends[-1].in_flight = 1
    assert picker.pick() is backends[-1]


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_equal_idle_backends_all_get_their_turn(name: str, count: int, seed: int) -> None:
    backends = tuple(make_backend(f"b{at}") for at in range(count))
    picker = make_policy(name, Random(seed)).build(backends)
    picked = Counter(name_of(picker.pick()) for _ in range(STAY * count))
    assert len(picked) == count


@given(backends=pools(), steps=st.integers(1, 30))
def test_least_loaded_agrees_with_its_plain_version(
    backends: tuple[Backend, ...], steps: int
) -> None:
    turn = PickSequence()
    turn.resume(backends)
    picker = LeastLoadedPicker(backends, turn)
    for _ in range(steps):
        expected = picking.least_loaded(backends)
        assert picker.pick() is expected
        take(expected)


@given(backends=pools(), seed=st.integers(0, 2**32))
def test_least_loaded_does_not_depend_on_the_order_of_distinct_picks(
    backends: tuple[Backend, ...], seed: int
) -> None:
    for at, backend in enumerate(backends):
        backend.last_pick = at
    shuffled = list(copy_of(backends))
    Random(seed).shuffle(shuffled)
    first = LeastLoadedPicker(backends, PickSequence()).pick()
    second = LeastLoadedPicker(shuffled, PickSequence()).pick()
    assert name_of(first) == name_of(second)


@given(backends=pools(EXACT_LIMIT + 1, EXACT_LIMIT + 20), seed=st.integers(0, 2**32))
def test_a_window_pick_is_as_good_as_the_best_in_sight(
    backends: tuple[Backend, ...], seed: int
) -> None:
    picker = WindowPicker(backends, PickSequence(), Random(seed))
    rng = Random(seed)
    order = rng.sample(backends, len(backends))
    stay = picking.Stay(order, WINDOW, STAY)
    for _ in range(30):
        expected = stay.idle() or picking.window(
            order, picker._runner_up, int(rng.random() * len(order)), WINDOW
        )
        assert picker.pick() is expected
        take(expected)


@given(backends=pools(EXACT_LIMIT + 1, EXACT_LIMIT + 20), seed=st.integers(0, 2**32))
def test_the_runner_up_is_the_second_best_in_sight(
    backends: tuple[Backend, ...], seed: int
) -> None:
    for backend in backends:
        backend.max_in_flight = 0
    picker = WindowPicker(backends, PickSequence(), Random(seed))
    rng = Random(seed)
    order = rng.sample(backends, len(backends))
    stay = picking.Stay(order, WINDOW, STAY)
    for _ in range(30):
        before = picker._runner_up
        if (idle := stay.idle()) is not None:
            assert picker.pick() is idle
            assert picker._runner_up is before
            take(idle)
            continue
        start = int(rng.random() * len(order))
        seen = {picker._runner_up}
        seen.update(order[(start + step) % len(order)] for step in range(WINDOW))
        second = sorted(score(backend) for backend in seen)[1]
        is_quick = picking.is_unbeatable(order[start], order)
        picked = picker.pick()
        if is_quick:
            assert picker._runner_up is before
        else:
            assert picker._runner_up is not picked
            assert score(picker._runner_up) == second
        take(picked)


@given(backends=pools(), steps=st.integers(1, 60))
def test_round_robin_agrees_with_its_plain_version(
    backends: tuple[Backend, ...], steps: int
) -> None:
    plain = picking.RoundRobin(backends)
    picker = RoundRobinPicker(backends, PickSequence())
    for _ in range(steps):
        expected = plain.pick()
        assert picker.pick() is expected
        take(expected)


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=8), rounds=st.integers(1, 5))
def test_round_robin_gives_every_backend_its_share_within_one_request(
    weights: list[int], rounds: int
) -> None:
    backends = tuple(make_backend(f"b{at}", weight=w) for at, w in enumerate(weights))
    picker = make_policy("round_robin", Random(1)).build(backends)
    picked = Counter(name_of(picker.pick()) for _ in range(rounds * sum(weights)))
    for backend, weight in zip(backends, weights, strict=True):
        assert abs(picked[backend.name] - rounds * weight) <= 1


@given(count=st.integers(2, 8), before=st.integers(0, 20))
def test_round_robin_goes_on_where_it_stood_after_a_rebuild(count: int, before: int) -> None:
    backends = tuple(make_backend(f"b{at}") for at in range(count))
    policy = make_policy("round_robin", Random(1))
    picker = policy.build(backends)
    for _ in range(before):
        picker.pick()
    rebuilt = policy.build(backends)
    names = [name_of(rebuilt.pick()) for _ in range(count)]
    assert names == [f"b{(before + step) % count}" for step in range(count)]
