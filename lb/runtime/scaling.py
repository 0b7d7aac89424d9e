"""Looks at the counters of the process now and then, for the number of backends that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.control.scaling import TICK_S, LoadSample, Scaling
from lb.domain.backend import AppProtocol
from lb.domain.operation import OperationKind
from lb.domain.pool import PoolSnapshot
from lb.net.timers import TimerWheel
from lb.telemetry.meter import Meter
from lb.telemetry.scaling import ScalingStatus

_REFUSALS: Final = frozenset({
    "no_backend", "backends_full", "queue_full", "queue_shed", "queue_timeout",
})  # fmt: skip
"""Reasons that more backends would mend."""


def load_sample(meter: Meter, snapshot: PoolSnapshot, open_requests: int) -> LoadSample:
    """How much was asked, and who there is to answer."""
    count, seconds, refused = 0, 0.0, 0
    for traffic in meter.traffic:
        for usage in tuple(traffic.operations.values()):
            if usage.kind is OperationKind.INFERENCE:
                count += sum(usage.durations.counts)
                seconds += usage.durations.sum
        for reason, times in tuple(traffic.reasons.items()):
            if reason.value in _REFUSALS:
                refused += times
    backends = set[object]()
    weight = 0.0
    for protocol in AppProtocol:
        for backend in snapshot.ready(protocol):
            if backend not in backends:
                backends.add(backend)
                weight += backend.spec.weight * backend.share
    return LoadSample(
        answered=max(0, count - refused),
        seconds=seconds,
        refused=refused,
        open=open_requests,
        weight=weight,
        backends=len(backends),
    )


class ScalingSignal:
    """The number of backends that the load of this process needs."""

    def __init__(self, budget_s: float, sample: Callable[[], LoadSample]) -> None:
        """
        Args:
            budget_s: see `Scaling`.
            sample: reads the counters.
        """
        self.scaling = Scaling(budget_s)
        self._sample = sample

    def keep(self, timers: TimerWheel, clock: Callable[[], float]) -> None:
        """Look every few seconds from now on, until the timers are closed."""
        self.scaling.observe(self._sample(), clock())
        timers.after(TICK_S, lambda: self.keep(timers, clock))

    def status(self) -> ScalingStatus:
        """For the metrics."""
        scaling = self.scaling
        return ScalingStatus(scaling.desired, scaling.demand, scaling.rate)
