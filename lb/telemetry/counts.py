"""What is counted beside requests: re-runs, calls of our own, reloads, lag of the event loop.

Plain integers, read at scrape time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lb.domain.backend import Backend
from lb.domain.standby import StandbyCounts, StandbyPhase

LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds in seconds: 1 ms is a busy loop, anything above 50 ms is a bug of ours."""
LOAD_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 600.0)
"""Upper bounds in seconds: from a small python model to an engine of hundreds of gigabytes."""
APPLIED: Final = "applied"
UNCHANGED: Final = "unchanged"
REFUSED: Final = "refused"

Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
CallKey = tuple[str, Backend, str]
"""Operation, backend and outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCounts:
    """What was loaded and unloaded for requests since the start."""

    loads: Mapping[str, int] = field(default_factory=dict)
    """By result: loaded or failed."""
    load_counts: tuple[int, ...] = (0,) * (len(LOAD_BOUNDS_S) + 1)
    """Loads that succeeded, by how long they took, not cumulative; the last one is everything above
    `LOAD_BOUNDS_S`."""
    load_s: float = 0.0
    """Seconds that all loads took that succeeded."""
    evictions: Mapping[str, int] = field(default_factory=dict)
    """By why: room, idle or operator."""


def placement_rows(read: Callable[[], PlacementCounts]) -> dict[str, Rows]:
    """Rows of the metrics, by name."""
    return {
        "triton_lb_model_loads_total": lambda: [
            ((result,), count) for result, count in sorted(read().loads.items())
        ],
        "triton_lb_model_evictions_total": lambda: [
            ((why,), count) for why, count in sorted(read().evictions.items())
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunCounts:
    """Counters, and what is so now."""

    count: int = 0
    """Requests that went again."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Those that did not, by why."""
    blocked_models: int = 0
    """Models of which none goes again for now."""
    unkept_bodies: int = 0
    """Requests that would not have fitted into memory."""
    hedges: int = 0
    """Requests that were sent to a second backend beside the first."""
    hedges_won: int = 0
    """Those that the second one answered first."""
    hedges_refused: int = 0
    """Requests that were not, since the budget was spent."""


class SplitCounts:
    """Batches that were cut, as plain integers."""

    __slots__ = ("batches", "parts", "unfit")

    def __init__(self) -> None:
        self.batches = 0
        """Batches that were cut."""
        self.parts = 0
        """Parts of those."""
        self.unfit = 0
        """Models whose answers turned out not to be by rows."""


def split_rows(counts: SplitCounts) -> dict[str, Rows]:
    """Rows of the metrics, by name."""
    return {
        "triton_lb_split_batches_total": lambda: [((), counts.batches)],
        "triton_lb_split_parts_total": lambda: [((), counts.parts)],
        "triton_lb_split_unfit_models_total": lambda: [((), counts.unfit)],
    }


def rerun_rows(read: Callable[[], RerunCounts]) -> dict[str, Rows]:
    """Rows of the metrics, by name."""

    def refused() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((why,), count) for why, count in sorted(read().refused.items())]

    return {
        "triton_lb_reruns_total": lambda: [((), read().count)],
        "triton_lb_reruns_refused_total": refused,
        "triton_lb_blocked_models": lambda: [((), read().blocked_models)],
        "triton_lb_unkept_bodies_total": lambda: [((), read().unkept_bodies)],
        "triton_lb_hedges_total": lambda: [((), read().hedges)],
        "triton_lb_hedges_won_total": lambda: [((), read().hedges_won)],
        "triton_lb_hedges_refused_total": lambda: [((), read().hedges_refused)],
    }


class OwnCalls:
    """Plain counters, read at scrape time."""

    def __init__(self) -> None:
        self.counts: Counter[CallKey] = Counter()

    def count(self, operation: str, backend: Backend, outcome: str) -> None:
        """One call ended.

        Args:
            operation: its name.
            backend: who was asked.
            outcome: `ok`, `error` when the backend answered one, or why it did not answer.
        """
        self.counts[operation, backend, outcome] += 1

    def retain(self, backends: Set[Backend]) -> None:
        """Forget what was counted for all other backends."""
        for key in [key for key in self.counts if key[1] not in backends]:
            del self.counts[key]


class ScalingStatus(NamedTuple):
    """What the load asks for."""

    desired: int
    """Backends."""
    demand: float
    """Inferences a second."""
    rate: float | None
    """Inferences a second of one backend within the latency budget; None: not learnt yet."""


def standby_rows(read: Callable[[], StandbyCounts]) -> dict[str, Rows]:
    """Rows of the metrics, by name."""
    return {
        "triton_lb_standby_backends": lambda: [
            ((phase.value,), phases.get(phase.value, 0))
            for phases in [read().phases]
            if phases
            for phase in StandbyPhase
        ],
        "triton_lb_activations_total": lambda: sorted(read().activations.items()),
        "triton_lb_activation_seconds_total": lambda: [((), read().cold_start_s)],
    }


def scaling_rows(read: Callable[[], ScalingStatus]) -> dict[str, Rows]:
    """The series, by name."""

    def rate() -> Iterable[tuple[tuple[str, ...], float]]:
        found = read().rate
        return [] if found is None else [((), found)]

    return {
        "triton_lb_desired_backends": lambda: [((), read().desired)],
        "triton_lb_demand_rate": lambda: [((), read().demand)],
        "triton_lb_backend_capacity_rate": rate,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker (`workers`), as the control process sees it."""

    index: int
    pid: int
    """0 while it is away."""
    starts: int
    """How often a process with this index was started."""
    connections: int
    """Gauge: open connections of clients."""
    requests: int
    """Requests that it has finished since it was started last."""
    cpu_s: float
    """Seconds of CPU that it has used since then."""
    silent_s: float
    """Seconds since it was heard last."""
    in_flight: int
    """Gauge: requests of its clients that are not answered yet."""
    since_s: float
    """Seconds since it connected to the control process, or since it is away."""


def worker_rows(read: Callable[[], Iterable[WorkerStatus]]) -> dict[str, Rows]:
    """Rows of the metrics, by name; none where there is one process."""

    def rows(value: Callable[[WorkerStatus], float]) -> Rows:
        return lambda: [((str(each.index),), value(each)) for each in read()]

    return {
        "triton_lb_worker_up": rows(lambda worker: int(worker.pid > 0)),
        "triton_lb_worker_starts_total": rows(lambda worker: worker.starts),
        "triton_lb_worker_connections": rows(lambda worker: worker.connections),
        "triton_lb_worker_requests_total": rows(lambda worker: worker.requests),
        "triton_lb_worker_cpu_seconds_total": rows(lambda worker: worker.cpu_s),
        "triton_lb_worker_silent_seconds": rows(lambda worker: worker.silent_s),
    }


class Reloads:
    """Counters and the state of the configuration in force."""

    __slots__ = ("applied_at", "counts", "digest", "succeeded")

    def __init__(self, digest: str, now: float) -> None:
        """The process starts with a configuration.

        Args:
            digest: tells its text from others.
            now: Unix time in seconds.
        """
        self.counts = {APPLIED: 0, UNCHANGED: 0, REFUSED: 0}
        self.digest = digest
        """Of the text in force; empty where there is no file."""
        self.applied_at = now
        """When it came in force, or was last found unchanged."""
        self.succeeded = True
        """Whether the last attempt was not refused."""

    def accepted(self, digest: str, now: float, *, changed: bool) -> None:
        """A configuration is in force."""
        self.counts[APPLIED if changed else UNCHANGED] += 1
        self.digest, self.applied_at, self.succeeded = digest, now, True

    def refused(self) -> None:
        """A configuration could not be applied; the one before stays."""
        self.counts[REFUSED] += 1
        self.succeeded = False


class LoopLag:
    """Counts ticks by how late they came. The runtime ticks, this only remembers."""

    __slots__ = ("counts", "last", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)
        """Ticks per bucket, not cumulative; the last one is everything above."""
        self.sum = 0.0
        """Sum of all lags in seconds."""
        self.last = 0.0
        """Lag of the latest tick in seconds."""

    def observe(self, lag_s: float) -> None:
        """Count one tick that came `lag_s` seconds after its time; early ones count as 0."""
        lag = max(lag_s, 0.0)
        self.counts[bisect_left(LAG_BOUNDS_S, lag)] += 1
        self.sum += lag
        self.last = lag
