"""Which standby backends are activated and released.

A backend is activated at once for a request that no backend is eligible for, and after a time for
a predicted latency above the budget. It is released when the others have been predicted to keep the
budget for a cool-down, and no other was released in that time. Both predictions are those of
`triton_lb_desired_backends` (`lb.control.scaling`). Time is an argument; times are monotonic
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from lb.domain.backend import AppProtocol
from lb.domain.standby import ActivationCause, StandbyPhase

COLD_STARTS: Final = 5.0
"""A backend is kept for at least this many times its cold start: otherwise it spends too much of
its time starting."""
HEADROOM: Final = 0.95
"""Part of what the others can do within the budget that the demand may use when one is released.
With all of it, a little more load would bring the backend back; with less, backends serve in vain
(0067)."""

Wanted = tuple[bytes, AppProtocol]
"""A model and the protocol of a request for it."""


class StandbyBackend(NamedTuple):
    """One standby backend that may be activated or released."""

    name: str
    rank: int
    weight: float
    phase: StandbyPhase
    since: float
    """When its phase began."""
    retry_at: float = 0.0
    """When it may be activated again after a failure."""
    cold_start_s: float = 0.0
    is_stopping: bool = False
    """It cannot be taken back before it has stopped."""
    has_sequences: bool = False
    """Sequences are open there."""


class Load(NamedTuple):
    """What is predicted of the load."""

    latency: float
    """Predicted latency, as a multiple of the budget; 0: nothing is predicted."""
    needed: float | None
    """Weight of the backends that the demand needs; None: not known yet."""
    serving: float
    """Weight of the backends that serve."""

    @property
    def is_late(self) -> bool:
        """Whether the latency is predicted to be above the budget."""
        return self.latency > 1.0


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """What is to be done."""

    activate: tuple[tuple[str, ActivationCause], ...] = ()
    release: str = ""
    """One backend, or none."""


class StandbyPlanner:
    """Decides. Remembers since when something has been so."""

    def __init__(self, for_s: float = 2.0, cooldown_s: float = 600.0) -> None:
        self.for_s = for_s
        """How long the latency is above the budget before a backend is activated."""
        self.cooldown_s = cooldown_s
        self._late_s = 0.0
        """How long it has been too high."""
        self._planned_at: float | None = None
        self._unneeded_since: dict[str, float] = {}
        self._released_at = -inf

    def cooldown_of(self, backend: StandbyBackend) -> float:
        """How long a backend is kept after it was needed, in seconds."""
        return max(self.cooldown_s, COLD_STARTS * backend.cold_start_s)

    def plan(
        self,
        backends: Sequence[StandbyBackend],
        load: Load,
        wanted: Collection[Wanted],
        may_serve: Callable[[str, Wanted], bool],
        now: float,
    ) -> StandbyPlan:
        """Decide what to do now.

        Args:
            backends: all that may be activated or released.
            load: what is predicted.
            wanted: what requests ask for that no backend is eligible for.
            may_serve: says whether a backend, once it is active, may serve such requests.
            now: the time.
        """
        backends = sorted(backends, key=lambda each: (each.rank, each.name))
        idle = [each for each in backends if _may_be_activated(each, now)]
        activate = dict(_for_wanted(backends, idle, wanted, may_serve))
        for backend in self._for_latency(backends, idle, activate, load, now):
            activate[backend.name] = ActivationCause.LATENCY
        return StandbyPlan(tuple(activate.items()), self._unneeded(backends, load, wanted, now))

    def _for_latency(
        self,
        backends: Sequence[StandbyBackend],
        idle: Sequence[StandbyBackend],
        chosen: Collection[str],
        load: Load,
        now: float,
    ) -> Iterator[StandbyBackend]:
        """One backend after the other, or as many as the demand needs if these are more."""
        passed_s = 0.0 if self._planned_at is None else now - self._planned_at
        self._planned_at = now
        if not load.is_late:
            self._late_s = 0.0
            return
        self._late_s += passed_s
        if self._late_s < self.for_s:
            return
        coming = [
            each
            for each in backends
            if each.phase is StandbyPhase.ACTIVATING or each.name in chosen
        ]
        # Whoever has just begun to serve gets time to be felt.
        is_fresh = any(
            each.phase is StandbyPhase.ACTIVE and now - each.since < self.for_s for each in backends
        )
        expected = load.serving + sum(each.weight for each in coming)
        for backend in idle:
            is_needed = load.needed is not None and load.needed > expected
            if backend.name in chosen or not (is_needed or not (coming or is_fresh)):
                continue
            coming.append(backend)
            expected += backend.weight
            yield backend

    def _unneeded(
        self,
        backends: Sequence[StandbyBackend],
        load: Load,
        wanted: Collection[Wanted],
        now: float,
    ) -> str:
        """The backend of the last rank without which the others have kept the budget for the
        cool-down; one in each cool-down, so that there is room if another burst follows."""
        left = load.serving
        unneeded: dict[str, float] = {}
        release = ""
        for backend in reversed(backends):
            if backend.phase is not StandbyPhase.ACTIVE:
                continue
            left -= backend.weight
            is_enough = load.needed is not None and load.needed <= HEADROOM * max(left, 0.0)
            if wanted or load.is_late or not is_enough:
                break
            since = unneeded[backend.name] = self._unneeded_since.get(backend.name, now)
            kept_s = now - max(since, backend.since, self._released_at)
            if kept_s >= self.cooldown_of(backend) and not backend.has_sequences:
                release = release or backend.name
        self._unneeded_since = unneeded
        if release:
            self._released_at = now
        return release


def _may_be_activated(backend: StandbyBackend, now: float) -> bool:
    if backend.phase is StandbyPhase.RELEASING:
        return not backend.is_stopping
    return backend.phase is StandbyPhase.STANDBY and now >= backend.retry_at


def _for_wanted(
    backends: Sequence[StandbyBackend],
    idle: Sequence[StandbyBackend],
    wanted: Collection[Wanted],
    may_serve: Callable[[str, Wanted], bool],
) -> Iterator[tuple[str, ActivationCause]]:
    """One backend for each that waits, unless one is coming that may serve it."""
    coming = {each.name for each in backends if each.phase is StandbyPhase.ACTIVATING}
    for each_wanted in sorted(wanted):
        if any(may_serve(name, each_wanted) for name in coming):
            continue
        # What nobody is known to have, any of them may have, or say that it does not exist.
        known = [each for each in idle if may_serve(each.name, each_wanted)]
        if not known and coming:
            continue
        best = next(iter(known or idle), None)
        if best is not None and best.name not in coming:
            coming.add(best.name)
            yield best.name, ActivationCause.NO_BACKEND
