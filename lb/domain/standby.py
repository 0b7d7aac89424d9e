"""Standby backends: which ones serve only when the load needs them, and how they come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyRule:
    """How a backend that does not always serve is activated and deactivated."""

    rank: int
    """Lower ranks are activated first and released last."""
    load: tuple[bytes, ...] = ()
    """Models that are loaded before it serves, and unloaded afterwards."""
    start: tuple[str, ...] = ()
    """Command that starts its server, with arguments; empty: the server runs already."""
    start_limit_s: float = 0.0
    """How long an activation may take, from the command to a backend that is ready."""
    stop: tuple[str, ...] = ()
    """Command that stops its server, with arguments."""
    stop_limit_s: float = 0.0
    """How long that command may take."""


class StandbyPhase(StrEnum):
    """How far a standby backend is."""

    STANDBY = "standby"
    """It does not serve."""
    ACTIVATING = "activating"
    """It is started, or loads its models; it does not serve yet."""
    ACTIVE = "active"
    """It serves."""
    RELEASING = "releasing"
    """It gets no new requests; it finishes what it has, and is then stopped."""


class ActivationCause(StrEnum):
    """Why a backend was activated."""

    NO_BACKEND = "no_backend"
    """A request found no eligible backend."""
    LATENCY = "latency"
    """The predicted latency was above the budget."""
    OPERATOR = "operator"
    FOUND = "found"
    """Its server was found running when this process began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStatus:
    """One standby backend, for people and metrics."""

    backend: str
    rank: int
    phase: StandbyPhase
    since: float
    """When its phase began, in monotonic seconds."""
    cause: str = ""
    """Why it was activated last; empty: it was not."""
    error: str = ""
    """Why its last activation failed, or what its last release left loaded or running; empty:
    neither."""
    failures: int = 0
    """Activations in a row that failed."""
    retry_at: float = 0.0
    """When it may be activated again after failures, in monotonic seconds."""
    cold_start_s: float | None = None
    """How long its last activation took; None: there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyCounts:
    """What was done since the start."""

    activations: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """By backend, cause and result: ok, failed, or lost for one that did not stay ready."""
    cold_start_s: float = 0.0
    """Seconds that all successful activations took."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """Backends by phase."""
