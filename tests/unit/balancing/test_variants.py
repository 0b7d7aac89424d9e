"""The choice of a variant: shares, and who moves when weights change."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from lb.balancing.variants import WeightedChoice, with_shares

TWO = ("stable", "canary")
THREE = ("a", "b", "c")


def keys(count: int) -> list[bytes]:
    return [b"user-%d" % number for number in range(count)]


def test_keys_follow_the_weights_and_a_ramp_moves_nobody_back() -> None:
    users = keys(100_000)
    before: set[int] = set()
    for percent in (1, 5, 10):
        choice = WeightedChoice(TWO, (100 - percent, percent))
        inside = {index for index, user in enumerate(users) if choice.by_key(user)}
        assert len(inside) / len(users) == pytest.approx(percent / 100, abs=0.003)
        assert before <= inside
        before = inside


def test_three_variants_follow_their_weights() -> None:
    choice = WeightedChoice(THREE, (70, 20, 10))
    counts = Counter(map(choice.by_key, keys(100_000)))
    for index, share in enumerate((0.7, 0.2, 0.1)):
        assert counts[index] / 100_000 == pytest.approx(share, abs=0.005)


def test_a_variant_that_grows_takes_from_the_others_and_they_keep_theirs_apart() -> None:
    before = WeightedChoice(THREE, (70, 20, 10))
    after = WeightedChoice(THREE, (70, 20, 30))
    for user in keys(20_000):
        old, new = before.by_key(user), after.by_key(user)
        assert new in (old, 2)


def test_all_replicas_choose_alike() -> None:
    # Golden values: another version of triton-lb must move nobody.
    choice = WeightedChoice(TWO, (50, 50))
    assert [choice.by_key(user) for user in keys(12)] == GOLDEN


GOLDEN = [1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1]


def test_a_variant_without_weight_gets_nothing() -> None:
    choice = WeightedChoice(THREE, (0, 1, 0))
    assert set(map(choice.by_key, keys(100))) == {1}
    assert {choice.by_draw(drawn / 10) for drawn in range(10)} == {1}


def test_without_any_weight_the_first_variant_gets_everything() -> None:
    choice = WeightedChoice(TWO, (0, 0))
    assert choice.by_key(b"x") == choice.by_draw(0.9) == 0


def test_draws_follow_the_weights() -> None:
    choice, rng = WeightedChoice(THREE, (70, 20, 10)), Random(5)
    counts = Counter(choice.by_draw(rng.random()) for _ in range(50_000))
    for index, share in enumerate((0.7, 0.2, 0.1)):
        assert counts[index] / 50_000 == pytest.approx(share, abs=0.01)
    assert choice.by_draw(1.0) == 2


def test_a_given_share_leaves_the_rest_to_the_others_in_proportion() -> None:
    assert with_shares((90, 10), (None, 20)) == (80, 20)
    assert with_shares((60, 30, 10), (None, None, 40)) == (40, 20, 40)
    assert with_shares((0, 0, 100), (None, None, 50)) == (25, 25, 50)
    assert with_shares((1, 1), (30, 70)) == (30, 70)


@pytest.mark.parametrize("percents", [(None, 101), (None, -1), (60, 60), (30, 30)])
def test_impossible_shares_are_refused(percents: tuple[float | None, ...]) -> None:
    with pytest.raises(ValueError, match="percent"):
        with_shares((50, 50), percents)
