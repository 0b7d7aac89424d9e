"""Whether a backend is worse than the others, and not its requests worse than others: pure sums.

The question is always how likely as bad a run is on a backend that is like the rest. A client that
sends bad requests meets all backends alike, so the rest fails as well, and no run is unlikely; nor
is it with a model that fails everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import log
from statistics import median_low
from typing import Final

from lb.health.outlier_state import FailureRate, OutlierState, Phase, Run

SURE: Final = 18.4
"""Natural logarithm of the odds that are enough: 100 million to one, since a busy service gives
chance many thousands of opportunities a day."""
CLEAR: Final = 11.0
"""Sixty thousand to one: where the text tells more than the error."""
LIKELY: Final = 6.9
"""A thousand to one: for what was out a moment ago."""
_KNOWN: Final = 3.0
"""Good samples of others without which nothing is known of them."""
_SHARE_BAD: Final = 10.0
"""Bad samples without which a share means nothing."""
_STALE_S: Final = 60.0
"""A standing says nothing any more after so long without an answer."""
_USUAL_SAMPLES: Final = 10
"""So many good answers tell how long answers usually take. With 20, a backend that became slow
before it had given them was thought to be as slow as ever."""
_EXCESS_S: Final = 0.005
"""Less than this is no reason to call an answer slow."""


class Rest:
    """The other backends that serve a model, as they do of late."""

    def __init__(
        self, outlier_states: Collection[OutlierState], but: OutlierState, now: float
    ) -> None:
        others = [each for each in outlier_states if each is not but]
        self.out = sum(each.phase is not Phase.SERVING for each in others)
        """How many are ejected."""
        self.serving = [
            each
            for each in others
            if each.phase is Phase.SERVING and now - each.used_at <= _STALE_S
        ]

    def odds(
        self, run: Run, share_of: Callable[[OutlierState], FailureRate], *, certain: bool
    ) -> float:
        """Natural logarithm of how unlikely a run would be on one of them; 0 where they are
        not known, or fail themselves.

        Args:
            run: of a backend's bad answers.
            share_of: the share of answers which are as bad.
            certain: no request can be the reason for any of them.
        """
        return -log(self.rate(share_of, certain=certain)) * run.count

    def rate(self, share_of: Callable[[OutlierState], FailureRate], *, certain: bool) -> float:
        """Share of bad answers, as high as it may be by what is known; 1 where nothing is."""
        shares = [share_of(each) for each in self.serving]
        good = sum(share.good for share in shares)
        bad = sum(share.bad for share in shares)
        if good < (1.0 if certain else _KNOWN):
            return 1.0
        rate = (bad + (0.05 if certain else 0.5)) / (good + bad + 1.0)
        return max(rate, sum(share.recent for share in shares) / len(shares))

    def fails_too(self, run_of: Callable[[OutlierState], Run]) -> bool:
        """Whether half of them have such runs, too."""
        failing = sum(run_of(each).count > 1 for each in self.serving)
        return 2 * failing >= len(self.serving)

    def deviation(
        self, share: FailureRate, share_of: Callable[[OutlierState], FailureRate]
    ) -> float:
        """Natural logarithm of how much better a share is explained by a backend of its own kind
        than by one like the rest."""
        rate = self.rate(share_of, certain=False)
        own = share.value
        if share.bad < _SHARE_BAD or own <= rate:
            return 0.0
        odds = share.bad * log(own / rate)
        return odds + (share.good * log((1.0 - own) / (1.0 - rate)) if own < 1.0 else 0.0)

    @property
    def usual_s(self) -> float:
        """The time that answers usually take there; 0 where that is not known."""
        times = [each.usual.seconds for each in self.serving if each.usual.count >= _USUAL_SAMPLES]
        return median_low(times) if times else 0.0


def may_be_slow(outlier_state: OutlierState, took_s: float, factor: float) -> bool:
    """Whether an answer took much longer than this backend's usually do."""
    usual = outlier_state.usual
    if usual.count < _USUAL_SAMPLES:
        return False
    return took_s > factor * usual.seconds and took_s - usual.seconds > _EXCESS_S


def is_slow_beside(rest: Rest, took_s: float, factor: float) -> bool:
    """Whether an answer took much longer than those of others usually do."""
    usual_s = rest.usual_s
    return 0.0 < factor * usual_s < took_s and took_s - usual_s > _EXCESS_S
