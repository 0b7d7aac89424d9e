from __future__ import annotations

from collections import Counter
from itertools import permutations

from lb.balancing.rendezvous import by_rendezvous
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
