"""What the control plane knows about one backend: its runtime record and a state per port."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lb.domain.backend import (
    AdminState,
    AppProtocol,
    Backend,
    BackendKind,
    BackendSpec,
    BackendState,
    Port,
)
from lb.domain.load import LoadReport
from lb.domain.names import readable
from lb.domain.standby import StandbyPhase, StandbyRule, StandbyStatus
from lb.health.models import ModelTable
from lb.health.port import PortHealth
from lb.health.thresholds import Thresholds
from lb.kserve.repository import Region
from lb.kserve.server_settings import Settings
from lb.probes.plan import ProbeChoice
from lb.probes.probe import ProbeResult

_ADMIN_STATES: Final = {
    AdminState.DRAINING: BackendState.DRAINING,
    AdminState.DISABLED: BackendState.DISABLED,
    AdminState.STANDBY: BackendState.STANDBY,
    AdminState.REMOVING: BackendState.REMOVING,
}
PAST_STATES: Final = 30
"""How many states of a backend are remembered: a minute of one that flaps every two seconds."""
LISTING_KINDS: Final = frozenset({BackendKind.TRITON, BackendKind.KSERVE})
"""Servers that may be able to list their models."""
_WORST_FIRST: Final = (
    BackendState.DOWN,
    BackendState.STARTING,
    BackendState.UNREADY,
    BackendState.PARTIAL,
    BackendState.SUSPECTED,
    BackendState.UP,
)


def _why_standby(status: StandbyStatus | None) -> str:
    """Why a standby backend does not serve."""
    if status is not None and status.phase is not StandbyPhase.STANDBY:
        return status.phase.value
    if status is None or not status.error:
        return "not needed now"
    return f"{'activation failed' if status.failures else 'not needed now'}: {status.error}"


@dataclass(frozen=True, slots=True)
class Member:
    """One backend as a source says it should be."""

    spec: BackendSpec
    thresholds: Thresholds = field(default_factory=Thresholds)
    probe: ProbeChoice = field(default_factory=ProbeChoice)
    origin: str = ""
    """What names it: the configuration, a source, the operator."""
    standby: StandbyRule | None = None
    """How it is activated; None: it always serves."""

    @property
    def first_admin(self) -> AdminState:
        """What it is before anybody says anything else."""
        return AdminState.ENABLED if self.standby is None else AdminState.STANDBY


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a server was told to have beside models, as far as known."""

    regions: tuple[Region, ...] = ()
    """Of system shared memory."""
    cuda: frozenset[str] = frozenset()
    """Names of regions of CUDA memory."""
    trace: Settings = field(default_factory=dict)
    log: Settings = field(default_factory=dict)


NO_SETUP: Final = Setup()


def _nobody() -> None:
    """Nobody asks it anything yet."""


class PortRecord:
    """The state of one port. Written by the directory only."""

    __slots__ = (
        "backend", "changes", "closed_at", "health", "last_result", "port", "protocol", "since",
        "wake", "why",
    )  # fmt: skip

    def __init__(
        self, backend: Backend, protocol: AppProtocol, rules: Thresholds, now: float
    ) -> None:
        self.backend = backend
        self.protocol = protocol
        self.port: Port = backend.port(protocol)
        self.health = PortHealth(rules)
        self.since = now
        """When the state last changed."""
        self.why = ""
        """What changed it, in words; empty when it is up or has not been probed."""
        self.changes = 0
        self.last_result: ProbeResult | None = None
        self.closed_at = 0.0
        """When it last began to refuse connections."""
        self.wake: Callable[[], None] = _nobody
        """Tells whoever probes this port that the next probe may be due earlier."""

    def __repr__(self) -> str:
        state = self.health.state.value
        return f"<PortRecord {self.backend.name} {self.protocol.label} {state}>"


class BackendRecord:
    """One backend and its ports. Written by the directory only."""

    __slots__ = (
        "_by_protocol",
        "admin",
        "admin_before",
        "backend",
        "drained_models",
        "empty_since",
        "evicted",
        "finish_by",
        "is_dismissed",
        "is_ejected",
        "lives",
        "load",
        "look_due",
        "member",
        "models",
        "outlier_reason",
        "past",
        "ports",
        "regions",
        "setup",
        "since",
        "standby",
        "stands_in",
        "state",
        "wake",
    )  # fmt: skip

    def __init__(self, member: Member, now: float) -> None:
        self.member = member
        self.backend = Backend(member.spec)
        self.ports = tuple(
            PortRecord(self.backend, protocol, member.thresholds, now)
            for protocol in AppProtocol
            if member.spec.address(protocol) is not None
        )
        ports: list[PortRecord | None] = [None] * len(AppProtocol)
        for port in self.ports:
            ports[port.protocol] = port
        self._by_protocol = tuple(ports)
        self.admin = member.first_admin
        self.admin_before = AdminState.ENABLED
        """What the operator said of one that leaves; it holds again if it is taken back."""
        self.drained_models: frozenset[bytes] = frozenset()
        """Models that the operator has drained here: they get no new requests on this backend."""
        self.evicted: frozenset[bytes] = frozenset()
        """Models that are about to be unloaded here to make room: they get no new requests."""
        self.finish_by: float | None = None
        """When what still runs on one that drains or leaves is cut; None: never."""
        self.stands_in: frozenset[AppProtocol] = frozenset()
        """Protocols for which one that leaves goes on getting requests, since none of those that
        replace it has been up yet."""
        self.is_dismissed = False
        """The operator has removed it: it leaves even if nobody replaces it."""
        self.is_ejected = False
        """As a whole, for how requests fare on it."""
        self.outlier_reason = ""
        """For which models it is ejected and why, for people."""
        self.state = BackendState.STARTING
        self.since = now
        """When `state` last changed."""
        self.past: deque[tuple[float, BackendState]] = deque([(now, self.state)], PAST_STATES)
        """The latest states and when each began, oldest first."""
        self.empty_since: float | None = None
        """When the last request of a draining or disabled backend was seen to be gone, and its
        last sequence."""
        self.lives = False
        """It has answered since it was last found dead."""
        self.standby: StandbyStatus | None = None
        """How far it is, if it serves only when it is needed. Written by `StandbyControl`."""
        self.load: LoadReport | None = None
        """What it last said of how much it has to do."""
        self.look_due = 0.0
        """When an answer may next be a reason to ask for its models at once."""
        self.models = ModelTable()
        if member.spec.kind not in LISTING_KINDS:
            self.models.cannot_list()
        self.setup = NO_SETUP
        self.regions: frozenset[bytes] = frozenset()
        """Names of the regions in `setup`, as they stand on the wire."""
        self.wake: Callable[[], None] = _nobody
        """Tells whoever asks for its models that its state has changed."""

    @property
    def word(self) -> AdminState:
        """What the operator said of it."""
        return self.admin_before if self.admin is AdminState.REMOVING else self.admin

    @property
    def why(self) -> str:
        """Why its state is what it is, for people; empty where there is nothing to say."""
        reasons = [f"{port.protocol.label}: {port.why}" for port in self.ports if port.why]
        if self.outlier_reason:
            reasons.append(self.outlier_reason)
        if self.drained_models:
            reasons.append(
                f"drained models: {', '.join(map(readable, sorted(self.drained_models)))}"
            )
        if self.admin is AdminState.REMOVING:
            reasons.insert(0, "removed")
        elif self.admin is AdminState.STANDBY:
            reasons = [_why_standby(self.standby)]
        elif self.admin is not AdminState.ENABLED:
            reasons.insert(0, "operator")
        return "; ".join(reasons)

    @property
    def is_empty(self) -> bool:
        """Whether no request of a client runs on it, and no sequence."""
        return not (self.backend.in_flight or self.backend.open_sequences)

    def is_overdue(self, now: float) -> bool:
        """Whether it has had all the time that it was given to finish what it has."""
        return self.finish_by is not None and now >= self.finish_by

    @property
    def answers(self) -> bool:
        """Whether one of its ports answers, ready or not."""
        return any(port.health.is_open for port in self.ports)

    def note_death(self) -> None:
        """Take note when all its ports are silent: its process is gone, or as good as that."""
        if not all(port.health.is_silent for port in self.ports):
            self.lives = True
        elif self.lives:
            self.lives = False
            self.backend.died()

    def is_open(self, protocol: AppProtocol) -> bool:
        """Whether it has a port of that protocol which answers, ready or not."""
        port = self.port(protocol)
        return port is not None and port.health.is_open

    def learn(self, setup: Setup) -> bool:
        """Take note of what it has beside models. Returns whether its regions have changed."""
        before = self.regions
        self.setup = setup
        names = {region.name for region in setup.regions} | setup.cuda
        self.regions = frozenset(name.encode() for name in names)
        return self.regions != before

    def settle(self, now: float) -> None:
        """Bring `state` in line with the operator and the ports; the worst port counts."""
        state = _ADMIN_STATES.get(self.admin)
        if state is None:
            states = {port.health.state for port in self.ports}
            state = next(each for each in _WORST_FIRST if each in states)
            if self.is_ejected and state is BackendState.UP:
                state = BackendState.EJECTED
        if state is not self.state:
            self.state = state
            self.since = now
            self.past.append((now, state))

    def port(self, protocol: AppProtocol) -> PortRecord | None:
        """The record of one port, None where the backend has no such port."""
        return self._by_protocol[protocol]

    def apply(self, member: Member) -> None:
        """Take over changed settings; addresses stay."""
        self.member = member
        self.backend.apply(member.spec)
        for port in self.ports:
            port.health.rules = member.thresholds

    def is_at(self, spec: BackendSpec) -> bool:
        """Whether `spec` means the same server, so that the counters may live on."""
        return self.member.spec.server == spec.server

    def __repr__(self) -> str:
        return f"<BackendRecord {self.backend.name} {self.state.value}>"
