"""The seam between control plane and data plane: snapshots, pickers and reports.

The directory is the only writer. It publishes an immutable `PoolSnapshot` by one assignment to
`PoolRef.current`; the relay reads that and reports through `OutcomeSink`. There is never a
half-updated state, and a reload is one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from lb.domain.backend import AppProtocol, Backend
from lb.domain.outcome import Outcome


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


class PolicyFactory(Protocol):
    """Makes a policy; randomness is an argument."""

    def __call__(self, rng: Random) -> Policy: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """What one protocol needs to place a request."""

    eligible: tuple[Backend, ...]
    """Backends that may get new requests: probes passed, enabled, not suspected of a stall."""
    picker: Picker | None
    """None exactly when `eligible` is empty."""
    policy: Policy
    """Builds a picker over a part of `eligible`, for a retry elsewhere."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Everything the data plane needs to place requests, consistent with itself."""

    generation: int
    backends: tuple[Backend, ...]
    placements: tuple[Placement, Placement]
    """Indexed by `AppProtocol`."""

    def placement(self, protocol: AppProtocol) -> Placement:
        """The placement of one protocol."""
        return self.placements[protocol]


class PoolRef:
    """The one mutable reference. `publish` belongs to the directory."""

    __slots__ = ("_listeners", "current")

    def __init__(self, first: PoolSnapshot) -> None:
        self.current = first
        self._listeners: list[Callable[[PoolSnapshot], None]] = []

    def publish(self, snapshot: PoolSnapshot) -> None:
        """Replace the snapshot, then tell the listeners (connection pools, health watchers)."""
        self.current = snapshot
        self.announce()

    def announce(self) -> None:
        """Tell the listeners again: something that they judge beside the snapshot has changed."""
        for listener in tuple(self._listeners):
            listener(self.current)

    def subscribe(self, listener: Callable[[PoolSnapshot], None]) -> Callable[[], None]:
        """Call `listener` after every publication. Returns the function that ends it."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe


class OutcomeSink(Protocol):
    """How the data plane tells the control plane what it saw."""

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """One attempt ended without an answer of the backend. Never raises, never blocks."""
        ...
