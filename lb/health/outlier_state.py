"""How one backend does with one ML model: runs of bad answers, shares, and what is usual.

Not every good answer is told of, only samples and those that may end a run of bad ones; so runs
are exact, and shares are taken of samples.
"""

from __future__ import annotations

from enum import Enum
from math import exp, log
from typing import Final

from lb.domain.fault import Fault
from lb.domain.trial import Trial

MEMORY: Final = 64
"""Samples that shares and usual times go by, about."""
_KEEP: Final = 1.0 - 1.0 / MEMORY
_RECENT: Final = 1.0 / 16
_OUTLYING_STEP: Final = 1.0 / 16
"""How much more slowly what is usual follows answers that are not."""


class Phase(Enum):
    """Whether a backend gets requests for a model."""

    SERVING = "serving"
    EJECTED = "ejected"
    PROBATION = "probation"
    """It gets one request, and the answer decides."""


class FailureRate:
    """The share of samples that were bad, over the last 64 or so and over the last 16."""

    __slots__ = ("bad", "good", "recent")

    def __init__(self) -> None:
        self.good = 0.0
        self.bad = 0.0
        self.recent = 0.0

    def add(self, *, is_bad: bool) -> None:
        """One more sample."""
        self.good *= _KEEP
        self.bad *= _KEEP
        self.recent -= self.recent * _RECENT
        if is_bad:
            self.bad += 1.0
            self.recent += _RECENT
        else:
            self.good += 1.0

    @property
    def value(self) -> float:
        """Between 0 and 1; 0 without any sample."""
        total = self.good + self.bad
        return self.bad / total if total else 0.0


class Run:
    """Bad answers in a row."""

    __slots__ = ("certain", "count", "last", "since")

    def __init__(self) -> None:
        self.count = 0
        self.certain = 0
        """Those of which no single request can be the reason."""
        self.last = Fault.ERROR
        self.since = 0.0
        """When the first of them came."""

    def add(self, fault: Fault, now: float) -> None:
        """One more."""
        if not self.count:
            self.since = now
        self.count += 1
        self.certain += fault.is_certain
        self.last = fault

    def end(self) -> None:
        """A good one came."""
        self.count = self.certain = 0


class Usual:
    """The time that answers usually take: a mean of logarithms, so that a few long ones do not
    count for more than others."""

    __slots__ = ("_log", "count")

    def __init__(self) -> None:
        self.count = 0
        self._log = 0.0

    @property
    def seconds(self) -> float:
        """0 without any sample."""
        return exp(self._log) if self.count else 0.0

    def add(self, took_s: float, *, is_outlying: bool) -> None:
        """One more sample."""
        self.count = min(self.count + 1, MEMORY)
        step = 1.0 / self.count
        if is_outlying:
            step *= _OUTLYING_STEP
        self._log += (log(max(took_s, 1e-6)) - self._log) * step


class OutlierState:
    """One backend and one model. Times are monotonic seconds."""

    __slots__ = (
        "ejected_at", "ejections", "errors", "failing", "forgiven_at", "judge_due", "late", "phase",
        "reason", "slow", "trial", "trial_due", "until", "used_at", "usual",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.used_at = now
        """When it last answered, or failed to."""
        self.judge_due = 0.0
        """When a long run is next compared with the rest."""
        self.failing = Run()
        self.slow = Run()
        self.errors = FailureRate()
        self.late = FailureRate()
        """Of samples that were slow."""
        self.usual = Usual()
        self.phase = Phase.SERVING
        self.reason = Fault.ERROR
        """Why it was ejected."""
        self.ejections = 0
        """How often in a row, without a long time in between that it served well."""
        self.ejected_at = 0.0
        self.until = 0.0
        """When its ejection ends; while it serves, until when it is watched more closely."""
        self.forgiven_at = 0.0
        """When its ejections do not count any more."""
        self.trial: Trial | None = None
        """On probation."""
        self.trial_due = 0.0
        """When another trial may be given, if nothing has come of this one."""
