"""Whether a variant is certainly worse than the first one: sequential tests of its errors and of
its slow answers.

Each is a cumulative sum test (Page, 1954) of the log-likelihood ratio of a share that is too high
against the highest one that is allowed. The allowed share follows from what the first variant shows
at the same time, so what happens to both is held against none. An alarm takes evidence that has
come since the variant was last as good as allowed. At the very edge of what is allowed that happens
about once in e**12 (errors) or e**8 (slow answers) such stretches, and far less often to a variant
that is as good as the first.
"""

from __future__ import annotations

from collections import deque
from math import log, sqrt
from typing import Final

_ALARM_ERRORS: Final = 12.0
"""Evidence of errors that is enough, a natural logarithm: odds of 160,000 to one."""
_ALARM_SLOW: Final = 8.0
"""The same of slow answers: 3,000 to one. Equal variants are much further from the allowed share
there, a tenth of it instead of a half."""
_TOO_MANY: Final = 3.0
"""The share that is tested for, times the allowed one."""
_LEAST_ERRORS: Final = 0.005
"""Share of errors that is always allowed."""
_SLOW: Final = 0.01
"""Share of the answers that take longer than a 99th percentile."""
_UPPER: Final = 2.0
"""Standard deviations by which the first variant's share may be higher than it was seen."""
_MAX_ALLOWED: Final = 0.9
"""With a higher allowed share, nothing is judged."""
_LATENCIES: Final = 4096
"""Latencies of the first variant that its 99th percentile is taken of."""
_ENOUGH_LATENCIES: Final = 200
_MEMORY: Final = 0.9
"""What is left of the first variant's counts after a look: they are of about ten looks."""
_SHORT_MEMORY: Final = 0.5
"""The same of about two looks, which show what has just begun for both."""


class Counts:
    """What the requests of a variant came to since the last look."""

    __slots__ = ("errors", "latencies", "requests")

    def __init__(self) -> None:
        self.requests = self.errors = 0
        self.latencies: list[float] = []
        """Seconds, of good answers."""

    def add(self, latency_s: float | None, *, is_error: bool) -> None:
        """Count a request, which took so long if it is known."""
        self.requests += 1
        self.errors += is_error
        if latency_s is not None and not is_error:
            self.latencies.append(latency_s)


class _Excess:
    """The cumulative sum of one share."""

    __slots__ = ("_alarm", "evidence", "seen", "times")

    def __init__(self, alarm: float) -> None:
        self._alarm = alarm
        self.evidence = 0.0
        self.seen = self.times = 0
        """Since the evidence was last 0."""

    def add(self, seen: int, times: int, allowed: float) -> bool:
        """Take more of it. Whether the share is certainly higher than allowed."""
        if allowed > _MAX_ALLOWED or not seen:
            return False
        tested = min(_TOO_MANY * allowed, (1.0 + allowed) / 2)
        self.evidence += times * log(tested / allowed)
        self.evidence += (seen - times) * log((1.0 - tested) / (1.0 - allowed))
        if self.evidence <= 0.0:
            self.evidence = 0.0
            self.seen = self.times = 0
            return False
        self.seen += seen
        self.times += times
        return self.evidence >= self._alarm


class _Lately:
    """The share of some of the first variant's requests, of the last ten looks and of the last
    two."""

    __slots__ = ("_seen", "_seen_now", "_times", "_times_now")

    def __init__(self) -> None:
        self._seen = self._times = self._seen_now = self._times_now = 0.0

    def add(self, seen: int, times: int) -> None:
        """A look's worth of requests."""
        self._seen = self._seen * _MEMORY + seen
        self._times = self._times * _MEMORY + times
        self._seen_now = self._seen_now * _SHORT_MEMORY + seen
        self._times_now = self._times_now * _SHORT_MEMORY + times

    @property
    def highest(self) -> float:
        """The share is hardly higher than this."""
        now = self._times_now / self._seen_now if self._seen_now else 0.0
        return max(now, _at_most(self._times, self._seen))


class Baseline:
    """What the first variant shows lately."""

    __slots__ = ("_errors", "_latencies")

    def __init__(self) -> None:
        self._errors = _Lately()
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)

    def add(self, counts: Counts) -> None:
        """A look's worth of requests."""
        self._errors.add(counts.requests, counts.errors)
        self._latencies.extend(counts.latencies)

    def allowed_errors(self, factor: float) -> float:
        """The share of errors that a variant may have."""
        return max(_LEAST_ERRORS, factor * self._errors.highest)

    @property
    def p99_s(self) -> float | None:
        """Its 99th percentile; None while it is not known."""
        if len(self._latencies) < _ENOUGH_LATENCIES:
            return None
        ordered = sorted(self._latencies)
        return ordered[len(ordered) * 99 // 100]


def _at_most(times: float, seen: float) -> float:
    """A share is hardly higher than this, where so many of so many were seen (Wilson's bound)."""
    z = _UPPER * _UPPER
    if not seen:
        return 1.0
    share = times / seen
    spread = _UPPER * sqrt(share * (1.0 - share) / seen + z / (4 * seen * seen))
    return (share + z / (2 * seen) + spread) / (1.0 + z / seen)


class VariantJudge:
    """Judges one variant by the first one."""

    __slots__ = ("_errors", "_errors_factor", "_p99_factor", "_slow", "_slow_first")

    def __init__(self, errors: float | None, p99: float | None) -> None:
        """
        Args:
            errors: times the first variant's share of errors that is allowed; None: any.
            p99: the same of the 99th percentile of latencies.
        """
        self._errors_factor = errors
        self._p99_factor = p99
        self._errors, self._slow = _Excess(_ALARM_ERRORS), _Excess(_ALARM_SLOW)
        self._slow_first = _Lately()
        """Answers of the first variant that were as slow."""

    def look(self, variant: Counts, first: Counts, baseline: Baseline) -> str:
        """Take a second's worth of requests.

        Args:
            variant: what it did since the last look.
            first: what the first variant did meanwhile, which `baseline` has.
            baseline: what that shows lately.

        Returns:
            Why the variant is to be rolled back; empty as long as it is not.
        """
        if self._errors_factor is not None:
            allowed = baseline.allowed_errors(self._errors_factor)
            if self._errors.add(variant.requests, variant.errors, allowed):
                return (
                    f"{self._errors.times} of {self._errors.seen} requests failed; "
                    f"{allowed:.1%} are allowed"
                )
        p99_s = baseline.p99_s if self._p99_factor is not None else None
        if p99_s is None or self._p99_factor is None:
            return ""
        limit_s = p99_s * self._p99_factor
        self._slow_first.add(len(first.latencies), _slower(first.latencies, limit_s))
        # Where the first variant is that slow, too, it is nothing of the other one.
        allowed = max(_SLOW, 2.0 * self._slow_first.highest)
        slow = _slower(variant.latencies, limit_s)
        if self._slow.add(len(variant.latencies), slow, allowed):
            return (
                f"{self._slow.times} of {self._slow.seen} answers took longer than "
                f"{limit_s * 1000:.4g} ms, {self._p99_factor:g} times the 99th percentile of the "
                "first variant"
            )
        return ""


def _slower(latencies: list[float], limit_s: float) -> int:
    return sum(each > limit_s for each in latencies)
