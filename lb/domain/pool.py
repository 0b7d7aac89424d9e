"""The seam between control plane and data plane: snapshots, pickers and reports.

The directory is the only writer. It publishes an immutable `PoolSnapshot` by one assignment to
`PoolRef.current`; the relay reads that and reports through `OutcomeSink`. There is never a
half-updated state, and a reload is one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lb.domain.backend import AppProtocol, Backend
from lb.domain.fault import Fault
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome
from lb.domain.schedule import QueuePlan


class Picker(Protocol):
    """Chooses from a fixed, non-empty set of eligible backends. Never blocks."""

    def pick(self) -> Backend | None:
        """Return the backend for one request; None when every one of them is full."""
        ...


class Policy(Protocol):
    """A configured way of choosing. Building a picker is slow-path; picking is hot.

    State that must survive a rebuild (a round-robin cursor) lives here or on `Backend`.
    """

    def build(self, backends: Sequence[Backend]) -> Picker:
        """Make a picker over a non-empty set."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """What one protocol needs to place a request."""

    eligible: tuple[Backend, ...]
    """Backends that may get new requests: probes passed, enabled, not suspected of a stall."""
    picker: Picker | None
    """None exactly when `eligible` is empty."""
    policy: Policy
    """Builds a picker over a part of `eligible`, for a retry elsewhere."""


Placements = tuple[Placement, Placement]
"""Indexed by `AppProtocol`."""


@dataclass(frozen=True, slots=True)
class OnDemand:
    """What inferences of a model that is loaded nowhere wait for: it is loaded for them."""

    wait_s: float
    """How long they wait."""
    error: str = ""
    """Why it is not loaded for a while, in the words of a backend; empty where it is. Then they do
    not wait."""
    is_standby: bool = False
    """They wait for a standby backend, and not for a model to be loaded."""
    retry_after_s: float = 0.0
    """After which time one that was refused may be sent again; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """Where requests for one model go, and what is known of it."""

    facts: ModelFacts
    placements: Placements | None = None
    """The backends that have it ready; None where those are the same as for everything else, or
    where there is none, and any backend may say so."""
    versions: Mapping[bytes, Placements] = field(default_factory=dict)
    """Of versions for which it is others than `placements`."""
    ready_versions: frozenset[bytes] = frozenset()
    """Those that some eligible backend has ready; an empty one is of a backend that names none."""
    is_uniform: bool = False
    """It is certainly stateless, and nothing is special about its backends."""
    plan: QueuePlan | None = None
    """How its requests are scheduled; None where they are not."""
    is_plain: bool = False
    """It is uniform and not scheduled: requests for it need no second look."""
    on_demand: OnDemand | None = None
    """Set where it is loaded nowhere and will be when a request needs it; `placements` are empty
    then."""

    @property
    def is_ready(self) -> bool:
        """Whether some eligible backend has a version of it ready."""
        return bool(self.ready_versions)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Everything the data plane needs to place requests, consistent with itself."""

    generation: int
    backends: tuple[Backend, ...]
    placements: Placements
    """Where requests go about whose model nothing special is known."""
    routes: Mapping[bytes, ModelRoute] = field(default_factory=dict)
    """By the name of the model, as it stands on the wire: every model that a backend lists."""
    regions: Mapping[bytes, Placements] = field(default_factory=dict)
    """By its name: where a region of shared memory is registered that not all have."""
    partial: tuple[tuple[Backend, ...], tuple[Backend, ...]] = ((), ())
    """By protocol: backends that get requests for some models only, since others of theirs are not
    ready. They stand in `routes`, and in `placements` when there is nothing better."""
    knows_all: bool = False
    """Every backend that may get requests has listed its models."""
    only_unready: tuple[bool, bool] = (False, False)
    """By protocol: `placements` holds nothing but backends that say that they are not ready. They
    get requests, so that clients get their answers; we are not ready either."""
    parting: frozenset[Backend] = frozenset()
    """Backends that are to become empty: nobody wants them any more, or the operator says so."""
    on_standby: OnDemand | None = None
    """What inferences wait for that find no backend, where a standby backend may be activated."""

    loadable: Mapping[bytes, OnDemand] = field(default_factory=dict)
    """Models that are loaded on demand, whether they are loaded now or not. Whoever was under way
    to the only backend that had one of them waits until another backend has it."""

    def placement(self, protocol: AppProtocol) -> Placement:
        """The placement of one protocol."""
        return self.placements[protocol]

    def ready(self, protocol: AppProtocol) -> tuple[Backend, ...]:
        """Backends that get requests of any model and are ready; none: we are not ready."""
        return () if self.only_unready[protocol] else self.placements[protocol].eligible

    def usable(self, protocol: AppProtocol) -> frozenset[Backend]:
        """Backends that may get new requests of any kind."""
        return frozenset(self.placements[protocol].eligible + self.partial[protocol])

    def is_served(self, model: bytes, version: bytes, protocol: AppProtocol) -> bool | None:
        """Whether a backend that may get requests has a model ready; an empty version is any.

        None: nobody lists it, and somebody who cannot list what he has may have it.
        """
        route = self.routes.get(model)
        ready = route.ready_versions if route is not None else frozenset()
        if route is not None and (version in ready or b"" in ready or (ready and not version)):
            placements = route.versions.get(version) or route.placements or self.placements
            return bool(placements[protocol].eligible)
        return False if self.knows_all else None


class PoolRef:
    """The one mutable reference. `publish` belongs to the directory."""

    __slots__ = ("_listeners", "current")

    def __init__(self, first: PoolSnapshot) -> None:
        self.current = first
        self._listeners: dict[object, Callable[[PoolSnapshot], None]] = {}
        """By subscription: clients may have very many, and end them in any order."""

    def publish(self, snapshot: PoolSnapshot) -> None:
        """Replace the snapshot, then tell the listeners (connection pools, health watchers)."""
        self.current = snapshot
        self.announce()

    def announce(self) -> None:
        """Tell the listeners again: something that they judge beside the snapshot has changed."""
        for listener in tuple(self._listeners.values()):
            listener(self.current)

    def subscribe(self, listener: Callable[[PoolSnapshot], None]) -> Callable[[], None]:
        """Call `listener` after every publication. Returns the function that ends it."""
        subscription = object()
        self._listeners[subscription] = listener

        def unsubscribe() -> None:
            self._listeners.pop(subscription, None)

        return unsubscribe


class OutcomeSink(Protocol):
    """How the data plane tells the control plane what it saw."""

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """One attempt ended without an answer of the backend. Never raises, never blocks."""
        ...


class PassiveHealthSink(Protocol):
    """How the data plane tells the control plane how requests fare. Never raises, never blocks.

    Times are monotonic seconds.
    """

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """A good answer to a model came; only as many as `Backend.reports_due` asks for."""
        ...

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """An attempt failed in a way that may be the backend's fault."""
        ...

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """A client, or its deadline, did not wait for the first byte of an answer."""
        ...
