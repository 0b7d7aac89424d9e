"""The adaptive limit: how many requests a backend executes at once, found by measuring throughput.

The gradient of throughput over concurrency is measured between two limits, in windows in which the
limit was what held requests back. Throughput, not latency: a batch that fills up takes longer too,
and is what is wanted. A trial sends a third less at most, so that batches do not starve.
"""

from __future__ import annotations

from enum import Enum
from math import ceil
from typing import Final

from lb.balancing.tuning import TUNING

_WINDOW: Final = TUNING.adaptive_ends
_PRESSING: Final = TUNING.adaptive_pressure
_STEP: Final = TUNING.adaptive_step
_WORTH_IT: Final = TUNING.adaptive_gain
_HOLD: Final = TUNING.adaptive_hold
_MAX: Final = 4096
"""The highest limit."""


class TriedLimit(Enum):
    """Which limit a measurement is made with."""

    FOUND = "found"
    """The best limit so far."""
    HIGHER = "higher"
    LOWER = "lower"


class AdaptiveLimit:
    """The limit of one model backend."""

    __slots__ = (
        "_began", "_ends", "_found", "_found_rate", "_full", "_hold", "_next", "_now", "limit",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)
        """The limit that holds now."""
        self._found = self.limit
        self._found_rate = 0.0
        self._now = TriedLimit.FOUND
        self._next = TriedLimit.HIGHER
        self._hold = 0
        self._began = 0.0
        self._ends = 0
        self._full = 0

    def ended(self, now: float, *, is_full: bool) -> bool:
        """Note the end of a request. True if the limit has changed.

        Args:
            now: the time.
            is_full: as many requests were in flight as the limit allows.
        """
        if not self._ends:
            self._began = now
        self._ends += 1
        self._full += is_full
        took = now - self._began
        if self._ends <= _WINDOW or not took:
            return False
        rate = (self._ends - 1) / took
        is_pressing = self._full >= _PRESSING * self._ends
        self._ends = self._full = 0
        if not is_pressing:
            return self._settle(self._next)
        before = self.limit
        self._judge(rate)
        return self.limit != before

    def _judge(self, rate: float) -> None:
        """Judge a measurement in which the limit was reached."""
        if self._now is TriedLimit.FOUND:
            self._found_rate = rate
            if self._hold:
                self._hold -= 1
            else:
                self._try(self._next)
            return
        step = self.limit / self._found - 1.0
        gain = (rate / self._found_rate - 1.0) / step
        if (gain >= _WORTH_IT) is (self._now is TriedLimit.HIGHER):
            self._found = self.limit
            self._found_rate = rate
            self._try(self._now)
            return
        self._hold = _HOLD
        self._settle(TriedLimit.LOWER if self._now is TriedLimit.HIGHER else TriedLimit.HIGHER)

    def _try(self, trial: TriedLimit) -> None:
        limit = self._found * _STEP if trial is TriedLimit.HIGHER else self._found / _STEP
        self.limit = min(_MAX, max(1, ceil(limit) if trial is TriedLimit.HIGHER else int(limit)))
        if self.limit == self._found:
            self._settle(TriedLimit.HIGHER)
        else:
            self._now = trial

    def _settle(self, following: TriedLimit) -> bool:
        """Go back to the best limit so far."""
        is_other = self.limit != self._found
        self.limit = self._found
        self._now = TriedLimit.FOUND
        self._next = following
        return is_other
