from __future__ import annotations

from collections import Counter
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from lb.balancing.rendezvous import by_bounded_rendezvous, by_rendezvous
from lb.domain.backend import Backend
from lb.domain.sequence import SequenceKey
from tests.fakes.backends import make_backend, make_backends


def test_the_order_and_the_load_of_the_backends_do_not_matter() -> None:
    backends = make_backends(0, 5, 9)
    for number in range(20):
        key = SequenceKey(b"m", number)
        assert len({by_rendezvous(key, each).name for each in permutations(backends)}) == 1


def test_the_same_holds_in_every_process() -> None:
    """No part of it may depend on the seed of Python's own hashes."""
    keys = [SequenceKey(b"m", 77), SequenceKey(b"m", "77"), SequenceKey(b"other", 77)]
    chosen = [by_rendezvous(key, make_backends(0, 0, 0, 0)).name for key in keys]
    assert chosen == ["b3", "b0", "b2"]


def test_shares_follow_the_weights() -> None:
    backends = (make_backend("a"), make_backend("b", weight=3.0))
    chosen = Counter(by_rendezvous(SequenceKey(b"m", n), backends).name for n in range(4000))
    assert 0.9 < chosen["b"] / 3000 < 1.1


def test_within_the_bound_it_is_the_highest() -> None:
    backends = make_backends(0, 0, 0, 0)
    for number in range(50):
        key = SequenceKey(b"m", number)
        assert by_bounded_rendezvous(key, backends, lambda _: 10, 1.25) is by_rendezvous(
            key, backends
        )


def test_beyond_the_bound_it_is_the_next_and_never_below_the_third() -> None:
    backends = make_backends(0, 0, 0, 0, 0)
    for number in range(50):
        key = SequenceKey(b"m", number)
        first, rest = by_rendezvous(key, backends), list(backends)
        rest.remove(first)
        second = by_rendezvous(key, rest)
        rest.remove(second)
        third = by_rendezvous(key, rest)
        rest.remove(third)
        opened = Counter({first: 20})
        assert by_bounded_rendezvous(key, backends, opened.__getitem__, 1.0) is second
        opened = Counter({first: 20, second: 19, third: 21})
        assert by_bounded_rendezvous(key, backends, opened.__getitem__, 1.0) is second


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=8),
    st.sampled_from([1.0, 1.1, 1.25, 2.0]),
    st.integers(50, 300),
)
def test_few_get_more_than_the_bound(weights: list[float], bound: float, count: int) -> None:
    backends = [make_backend(f"b{n}", weight=weight) for n, weight in enumerate(weights)]
    opened = Counter[Backend]()
    for number in range(count):
        key = SequenceKey(b"m", number)
        opened[by_bounded_rendezvous(key, backends, opened.__getitem__, bound)] += 1
    total = sum(weights)
    for backend, running in opened.items():
        share = count * backend.spec.weight / total
        assert running <= bound * share + 0.1 * share + 3
