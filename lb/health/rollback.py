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
from math import inf, log, sqrt
from typing import Any, Final

_ALARM_ERRORS: Final = 12.0
"""Evidence of errors that is enough, a natural logarithm: odds of 160,000 to one."""
_ALARM_SLOW: Final = 7.0
"""The same of slow answers: 1,100 to one. Equal variants are further from the allowed share."""
_TOO_MANY_ERRORS: Final = 3.0
"""The share of errors that is tested for, times the allowed one."""
_TOO_MANY_SLOW: Final = 1.6
"""The same of slow answers. A smaller excess takes longer to find with the factor of errors: with
heavy-tailed latencies, answers that take twice as long are only 1.4 times the allowed share."""
_LEAST_ERRORS: Final = 0.005
"""Share of errors that is always allowed."""
_SLOW: Final = 0.01
"""Share of the answers that take longer than the 99th percentile."""
_QUANTILES: Final = (0.8, 1.0 - _SLOW)
"""Where latencies are compared. One answer in a hundred says little within minutes; one in five
does."""
_SLOWEST: Final = 3
"""Answers beyond the limit of the 99th percentile that have to be seen, at least."""
_SLOW_ALIKE: Final = 1.3
"""Times the first variant's share of slow answers that is always allowed."""
_UPPER: Final = 2.0
"""Standard deviations by which the first variant's share may be higher than it was seen."""
_MAX_ALLOWED: Final = 0.9
"""With a higher allowed share, nothing is judged."""
_LATENCIES: Final = 4096
"""Latencies of the first variant that its quantiles are taken of."""
_ENOUGH_LATENCIES: Final = 200
_RENEWED_LATENCIES: Final = _LATENCIES // 4
"""After so many more the quantiles are taken again."""
_MOST_AT_ONCE: Final = 0.25
"""Part of an alarm that the requests of one look may be: those of a variant that stood still for a
second are late together, which is one event and not many."""
_LOOKS: Final = 10.0
"""Looks of the first variant that its share is taken of, or as many more as have `_REQUESTS`."""
_REQUESTS: Final = 1000.0
_LAST_LOOKS: Final = 2.0
"""Looks of the first variant that show what has just begun for both, or as many more as have
`_LAST_REQUESTS`."""
_LAST_REQUESTS: Final = 20.0


class Counts:
    """What the requests of a variant came to since the last look."""

    __slots__ = ("errors", "latencies", "requests", "waits")

    def __init__(self) -> None:
        self.requests = self.errors = 0
        self.latencies: list[float] = []
        """Seconds, of good answers."""
        self.waits: list[float] = []
        """Seconds that clients waited in vain until they gave up. They are no requests yet."""

    def add(self, latency_s: float | None, *, is_error: bool) -> None:
        """Count a request, which took so long if it is known."""
        self.requests += 1
        self.errors += is_error
        if latency_s is not None and not is_error:
            self.latencies.append(latency_s)

    @property
    def is_empty(self) -> bool:
        """Whether there was no request."""
        return not (self.requests or self.waits)

    def export(self) -> list[Any]:
        """Return all of it, as JSON has it: latencies to the microsecond."""
        latencies = [round(each, 6) for each in self.latencies]
        return [self.requests, self.errors, latencies, self.waits]

    def add_exported(
        self, requests: int, errors: int, latencies: list[float], waits: list[float]
    ) -> None:
        """Count what `export` returned to another process, too."""
        self.requests += requests
        self.errors += errors
        self.latencies += latencies
        self.waits += waits

    def judge_waits(self, patience_s: float) -> None:
        """Count requests as errors whose clients gave up after more than so long. Who gives up
        sooner says nothing: a good variant would not have answered in time either."""
        failed = _slower(self.waits, patience_s)
        self.requests += failed
        self.errors += failed
        self.waits.clear()


class _Excess:
    """The cumulative sum of one share."""

    __slots__ = ("_alarm", "_too_many", "evidence", "seen", "times")

    def __init__(self, alarm: float, too_many: float) -> None:
        """
        Args:
            alarm: evidence that is enough.
            too_many: times the allowed share is the one that is tested for.
        """
        self._alarm = alarm
        self._too_many = too_many
        self.evidence = 0.0
        self.seen = self.times = 0
        """Since the evidence was last 0."""

    def add(self, seen: int, times: int, allowed: float) -> bool:
        """Take more of it. Whether the share is certainly higher than allowed."""
        if allowed > _MAX_ALLOWED or not seen:
            return False
        tested = min(self._too_many * allowed, (1.0 + allowed) / 2)
        more = times * log(tested / allowed)
        more += (seen - times) * log((1.0 - tested) / (1.0 - allowed))
        self.evidence += min(more, _MOST_AT_ONCE * self._alarm)
        if self.evidence <= 0.0:
            self.evidence = 0.0
            self.seen = self.times = 0
            return False
        self.seen += seen
        self.times += times
        return self.evidence >= self._alarm


class _Recent:
    """How many of a variant's requests were of a kind, with older ones counted less and less."""

    __slots__ = ("_looks", "_requests", "seen", "times")

    def __init__(self, looks: float, requests: float) -> None:
        """
        Args:
            looks: that count.
            requests: that count at least, for which there may have to be more looks.
        """
        self._looks = looks
        self._requests = requests
        self.seen = self.times = 0.0

    def add(self, seen: int, times: int) -> None:
        """A look's worth of requests."""
        left = 1.0 - min(1.0 / self._looks, seen / self._requests)
        self.seen = self.seen * left + seen
        self.times = self.times * left + times


class _Lately:
    """The share of some of the first variant's requests."""

    __slots__ = ("_last", "_recent")

    def __init__(self) -> None:
        self._recent = _Recent(_LOOKS, _REQUESTS)
        self._last = _Recent(_LAST_LOOKS, _LAST_REQUESTS)

    def add(self, seen: int, times: int) -> None:
        """A look's worth of requests."""
        self._recent.add(seen, times)
        self._last.add(seen, times)

    @property
    def highest(self) -> float:
        """The share is hardly higher than this."""
        now = self._last.times / self._last.seen if self._last.seen else 0.0
        return max(now, _at_most(self._recent.times, self._recent.seen))


class Baseline:
    """What the first variant shows lately."""

    __slots__ = ("_errors", "_latencies", "_new", "patience_s", "quantiles_s")

    def __init__(self) -> None:
        self._errors = _Lately()
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._new = 0
        """Latencies since the quantiles were taken."""
        self.quantiles_s: tuple[float, ...] = ()
        """Its latencies at `_QUANTILES`; empty while they are not known."""
        self.patience_s = inf
        """Nearly all of its answers come within this time: so few of them take longer that, counted
        as errors, they are always allowed. Infinite while latencies are not known."""

    def add(self, counts: Counts) -> None:
        """A look's worth of requests."""
        self._errors.add(counts.requests, counts.errors)
        self._latencies.extend(counts.latencies)
        self._new += len(counts.latencies)
        if self._new >= (_RENEWED_LATENCIES if self.quantiles_s else _ENOUGH_LATENCIES):
            self._new = 0
            ordered = sorted(self._latencies)
            self.quantiles_s = tuple(ordered[int(len(ordered) * each)] for each in _QUANTILES)
            self.patience_s = ordered[int(len(ordered) * (1.0 - _LEAST_ERRORS))]

    def allowed_errors(self, factor: float) -> float:
        """The share of errors that a variant may have."""
        return max(_LEAST_ERRORS, factor * self._errors.highest)


def _at_most(times: float, seen: float) -> float:
    """A share is hardly higher than this, where so many of so many were seen (Wilson's bound)."""
    z = _UPPER * _UPPER
    if not seen:
        return 1.0
    share = times / seen
    spread = _UPPER * sqrt(share * (1.0 - share) / seen + z / (4 * seen * seen))
    return (share + z / (2 * seen) + spread) / (1.0 + z / seen)


class _Slowness:
    """Whether a variant's latency at one quantile is certainly too high, and its 99th percentile
    seems to be."""

    __slots__ = ("_allowed", "_excess", "_first", "_tail")

    def __init__(self, quantile: float) -> None:
        self._allowed = 1.0 - quantile
        self._excess = _Excess(_ALARM_SLOW, _TOO_MANY_SLOW)
        self._first = _Lately()
        """Answers of the first variant that were as slow."""
        self._tail = 0
        """The variant's answers beyond the limit of its 99th percentile, since the evidence was
        last 0."""

    def add(
        self, variant: list[float], first: list[float], limit_s: float, p99_limit_s: float
    ) -> str:
        """Take more latencies.

        Args:
            variant: latencies of the variant in question, in seconds.
            first: those of the first variant meanwhile.
            limit_s: that the variant's latency at this quantile may have.
            p99_limit_s: that its 99th percentile may have.

        Returns:
            How many of how many answers were too slow; empty unless that is certainly too much.
        """
        self._first.add(len(first), _slower(first, limit_s))
        # Where the first variant is that slow, too, it is nothing of the other one.
        allowed = max(self._allowed, _SLOW_ALIKE * self._first.highest)
        excess = self._excess
        is_certain = excess.add(len(variant), _slower(variant, limit_s), allowed)
        self._tail = self._tail + _slower(variant, p99_limit_s) if excess.seen else 0
        # The rule is about the 99th percentile, so that has to be seen too high, too.
        if not is_certain or self._tail < max(_SLOWEST, _SLOW * excess.seen):
            return ""
        return f"{excess.times} of {excess.seen}"


class VariantJudge:
    """Judges one variant by the first one."""

    __slots__ = ("_errors", "_errors_factor", "_p99_factor", "_slow")

    def __init__(self, errors: float | None, p99: float | None) -> None:
        """
        Args:
            errors: times the first variant's share of errors that is allowed; None: any.
            p99: the same of the 99th percentile of latencies.
        """
        self._errors_factor = errors
        self._p99_factor = p99
        self._errors = _Excess(_ALARM_ERRORS, _TOO_MANY_ERRORS)
        self._slow = [_Slowness(each) for each in _QUANTILES]

    def verdict(self, variant: Counts, first: Counts, baseline: Baseline) -> str:
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
        factor = self._p99_factor
        if factor is None or not baseline.quantiles_s:
            return ""
        limits_s = [factor * each for each in baseline.quantiles_s]
        whys = []
        for quantile, slow, limit_s in zip(_QUANTILES, self._slow, limits_s, strict=True):
            share = slow.add(variant.latencies, first.latencies, limit_s, limits_s[-1])
            if share:
                whys.append(
                    f"{share} answers took longer than {limit_s * 1000:.4g} ms, {factor:g} times "
                    f"the {100 * quantile:.0f}th percentile of the first variant"
                )
        return whys[0] if whys else ""


def _slower(latencies: list[float], limit_s: float) -> int:
    return sum(each > limit_s for each in latencies)
