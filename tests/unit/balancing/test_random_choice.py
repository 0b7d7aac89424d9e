from __future__ import annotations

from collections import Counter
from random import Random

from lb.balancing.random_choice import RandomChoice
from tests.fakes.backends import make_backend


class AlmostOne(Random):
    """Draws the largest number below one, which times some totals rounds up to the total."""

    def random(self) -> float:
        return 1.0 - 2.0**-53


def test_picks_follow_the_weights() -> None:
    heavy, light = make_backend("heavy", weight=3.0), make_backend("light")
    picker = RandomChoice(Random(5)).build((heavy, light))
    picked = Counter(chosen.name for _ in range(4000) if (chosen := picker.pick()) is not None)
    assert 2900 < picked["heavy"] < 3100


def test_the_share_of_a_full_backend_goes_to_the_others_by_weight() -> None:
    full = make_backend("full", in_flight=1, max_in_flight=1, weight=50.0)
    heavy, light = make_backend("heavy", weight=3.0), make_backend("light")
    picker = RandomChoice(Random(5)).build((full, heavy, light))
    picked = Counter(chosen.name for _ in range(4000) if (chosen := picker.pick()) is not None)
    assert picked["full"] == 0
    assert 2900 < picked["heavy"] < 3100


def test_the_highest_draw_is_the_last_backend() -> None:
    backends = tuple(make_backend(f"b{at}", weight=0.1) for at in range(3))
    assert RandomChoice(AlmostOne()).build(backends).pick() is backends[2]


def test_one_that_starts_slowly_is_drawn_by_its_share() -> None:
    slow, other = make_backend("slow", weight=3.0), make_backend("other")
    slow.set_share(0.25)
    picker = RandomChoice(Random(5)).build((slow, other))
    picked = Counter(chosen.name for _ in range(4000) if (chosen := picker.pick()) is not None)
    expected = 4000 * 0.75 / 1.75
    assert 0.9 * expected < picked["slow"] < 1.1 * expected
