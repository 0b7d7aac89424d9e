"""The seam between the two roles of a process: control and relay.

The control role watches backends and decides who gets requests. All that becomes of it is a
published snapshot. A relay role serves clients by the newest snapshot, and reports what it sees.
Neither knows the classes of the other: a relay has a `ControlSide`, the control role a `RelaySide`.
Both run in one process, so these are calls; none of them waits, except for `ControlNews.settled`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lb.domain.backend import AppProtocol, Backend
from lb.domain.control import ControlNews, Roster
from lb.domain.load import LoadReport, LoadSample, Measured
from lb.domain.model import ModelUse
from lb.domain.pool import OutcomeSink, PassiveHealthSink, PoolRef
from lb.domain.schedule import ModelBackendView


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSide:
    """The control role as relays see it: what it publishes, and who hears their reports."""

    pool: PoolRef
    """Has the newest snapshot."""
    roster: Roster
    """Whom calls to all backends reach."""
    outcomes: OutcomeSink
    """Hears of attempts that ended without an answer."""
    passive_health: PassiveHealthSink
    """Hears how requests fare."""
    misplaced: Callable[[Backend, bytes, bytes | None], None]
    """Hears of a backend, a model and a version that it says it does not have ready. The version is
    empty where it is not known, and None where the backend has no version of the model."""
    news: ControlNews
    """Hears of clients' calls that changed backends."""
    wanted: Callable[[bytes, AppProtocol, bool], None]
    """Hears of a model that a request waits for, since no backend has it, and of its protocol.
    True: a standby backend is to serve it; False: it is to be loaded."""


class RelaySide(Protocol):
    """A relay as the control role sees it. Nothing here raises or blocks."""

    def cut(self, backend: Backend) -> None:
        """Close all connections to a backend, whatever runs over them."""
        ...

    def renew(self, backend: Backend) -> None:
        """Send all further requests to a backend over new connections: its name leads elsewhere."""
        ...

    def model_use(self, backend: Backend, model: bytes) -> ModelUse:
        """Count what of a model runs on a backend. Takes as long as there are requests under way:
        for rare questions."""
        ...

    def leave_streams(self, backend: Backend, model: bytes) -> None:
        """End the streams at a backend that have asked it for a model, as soon as all is answered
        that they were asked: it is to unload the model. Their clients go on."""
        ...

    def in_flight_by_model(self, backend: Backend) -> Mapping[bytes, int]:
        """Count the scheduled requests in flight at a backend, by model."""
        ...

    def model_backends(self, models: Collection[bytes]) -> Iterable[ModelBackendView]:
        """Read what the scheduler knows of the copies of these models."""
        ...

    def models_awaited(self) -> Mapping[bytes, float]:
        """Models whose load requests wait for, and when the first of these requests came."""
        ...

    def models_streamed(self) -> Collection[bytes]:
        """Models on demand that streams under way have used since this was asked last."""
        ...

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """A backend has said how much it has to do."""
        ...

    def on_measured(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured]
    ) -> None:
        """A backend has said how long executions took there, by model and version."""
        ...

    def load_sample(self) -> LoadSample:
        """Read what the number of backends that are needed depends on."""
        ...
