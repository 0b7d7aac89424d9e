"""What a backend says of its own load, and of what executions took there before we came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """Of one model at one backend: all its versions, and the requests of everybody."""

    pending: float = 0.0
    """Gauge: requests that wait there; those that are being executed do not count."""
    requests: float = 0.0
    """Requests that it has answered. This and what follows only grow, until it restarts."""
    executions: float = 0.0
    """Executions that these were part of: fewer, where it batches."""
    execution_s: float = 0.0
    """Sum over these requests: seconds of the execution that each was part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """One device (a GPU, or a slice of one) as a backend sees it; None: it does not say."""

    device: bytes
    """Its UUID: backends on the same device give the same."""
    utilization: float | None = None
    """Part of the time in which anybody used it, 0 to 1."""
    memory_used: float | None = None
    """Bytes."""
    memory_total: float | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What one backend said when it was asked."""

    at: float
    """Monotonic seconds."""
    models: Mapping[bytes, ModelLoad] = field(default_factory=dict)
    """By name."""
    devices: tuple[DeviceLoad, ...] = ()
    others: float | None = None
    """Part of the time in which others than we keep its devices busy; None: that cannot be told."""
    in_flight: Mapping[bytes, int] = field(default_factory=dict)
    """By model: requests of ours that were under way to it when it was asked."""

    @property
    def pending(self) -> float:
        """Requests that wait there, of all models."""
        return sum([load.pending for load in self.models.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What executions of one version of a model took at a backend since it started, by its own
    statistics: base_s + row_s for each row."""

    base_s: float
    row_s: float = 0.0
    rows: float = 1.0
    """Of an execution on average."""
    rows_variance: float = 0.0
    """Of the rows of an execution."""

    @property
    def mean_s(self) -> float:
        """Seconds of an execution on average."""
        return self.base_s + self.row_s * self.rows


class LoadSample(NamedTuple):
    """Counters of a process, and who there is to do the work: how many backends the load needs."""

    answered: int
    """Inferences that were finished but not refused."""
    seconds: float
    """How long all of them took together."""
    refused: int
    """Inferences that found no backend, or no room."""
    open: int
    """Inferences under way, those that wait included."""
    weight: float
    """Of the backends that may get requests, as far as slow start lets them."""
    backends: int
    """How many these are."""
    queued: int = 0
    """Gauge: requests that wait here for their turn at a backend."""
