from __future__ import annotations

from collections import Counter
from random import Random

from lb.balancing.power_of_two import PowerOfTwo
from tests.fakes.backends import make_backend, make_backends


def test_of_two_the_less_loaded_always_wins() -> None:
    backends = make_backends(3, 2)
    picker = PowerOfTwo(Random(1)).build(backends)
    assert all(picker.pick() is backends[1] for _ in range(50))


def test_the_most_loaded_of_many_is_never_picked() -> None:
    backends = make_backends(1, 1, 9, 1)
    picker = PowerOfTwo(Random(1)).build(backends)
    assert all(picker.pick() is not backends[2] for _ in range(200))


def test_every_pair_is_equally_likely() -> None:
    backends = make_backends(0, 1, 2)
    picker = PowerOfTwo(Random(7)).build(backends)
    picked = Counter(chosen.name for _ in range(3000) if (chosen := picker.pick()) is not None)
    # b0 wins in two of the three pairs, b1 in one.
    assert 1900 < picked["b0"] < 2100
    assert picked["b0"] + picked["b1"] == 3000


def test_weights_count() -> None:
    heavy, light = make_backend("heavy", in_flight=5, weight=7.0), make_backend("light")
    assert PowerOfTwo(Random(1)).build((light, heavy)).pick() is heavy


def test_one_backend_needs_no_choice() -> None:
    (only,) = make_backends(4)
    assert PowerOfTwo(Random(1)).build((only,)).pick() is only
    only.max_in_flight = 4
    assert PowerOfTwo(Random(1)).build((only,)).pick() is None
