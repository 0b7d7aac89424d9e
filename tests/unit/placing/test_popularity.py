"""How much models are used, however traffic changes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from lb.placing.popularity import HALF_LIVES, Popularity
from tests.fakes.model_store import zipf

M, N, P = b"m", b"n", b"p"


def a_second(_model: bytes) -> float:
    return 1.0


def use(popularity: Popularity, *models: bytes, loaded: int = 2) -> None:
    popularity.used(models, loaded, a_second)


def test_what_was_never_used_is_worth_nothing() -> None:
    assert Popularity().of(M) == 0.0


def test_only_uses_make_older_ones_fade() -> None:
    popularity = Popularity()
    use(popularity, M)
    assert popularity.of(M) == 1.0
    use(popularity, *[N] * int(2 * HALF_LIVES[0]))
    # In a store for two that many uses are a half-life, in a larger one less.
    assert popularity.of(M) == 0.5
    use(popularity, *[N] * int(2 * HALF_LIVES[0]), loaded=200)
    assert 0.48 < popularity.of(M) < 0.5


def test_models_that_are_used_nearly_as_much_are_told_apart() -> None:
    popularity = Popularity()
    numbers = zipf(20, 0.8, 4000, Random(1))
    use(popularity, *(b"%d" % each for each in numbers), loaded=12)
    values = [popularity.of(b"%d" % each) for each in range(0, 20, 5)]
    assert all(more > less for more, less in pairwise(values))


def test_a_shift_is_followed() -> None:
    popularity = Popularity()
    use(popularity, *[M, N] * 500)
    # The store has room for two of three: the one that is used no more is forgotten soon.
    use(popularity, *[P, N] * 12)
    assert popularity.of(P) > popularity.of(M)


def test_a_model_that_leaves_is_forgotten() -> None:
    popularity = Popularity()
    use(popularity, M, N)
    popularity.retain({N})
    assert popularity.of(M) == 0.0
    assert popularity.of(N) > 0.0
