"""The settings: frozen models, one per section of the file, with every default.

The text below a field is its documentation: `docs/configuration.md` is made from it. Rules that
span several sections stand in `lb.settings.relations`, so that they are reported together with
everything else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lb.domain.backend import BackendSpec
from lb.settings.access import AccessSettings, AdminSettings
from lb.settings.backends import BackendSettings, HealthSettings
from lb.settings.control import ControlSettings
from lb.settings.discovery import DiscoverySettings
from lb.settings.fronts import FrontSettings
from lb.settings.hedging import HedgingSettings
from lb.settings.limits import LimitSettings, TimeoutSettings
from lb.settings.listening import ListenSettings
from lb.settings.model_table import ModelTableSettings
from lb.settings.models import ModelSettings
from lb.settings.passive import OutlierSettings, SlowStartSettings, WarmUpSettings
from lb.settings.reload import ReloadSettings, UpgradeSettings
from lb.settings.reporting import AccessLogSettings, LogSettings, MetricsSettings
from lb.settings.scaling import ScalingSettings
from lb.settings.scheduling import SchedulingSettings
from lb.settings.section import Section
from lb.settings.sequences import SequenceSettings
from lb.settings.units import Duration
from lb.settings.values import Number, PositiveCount


class PolicyName(StrEnum):
    """How a backend is chosen among the eligible ones."""

    LEAST_LOADED = "least_loaded"
    LEAST_LATENCY = "least_latency"
    LEAST_REQUESTS = "least_requests"
    ROUND_ROBIN = "round_robin"


class ForwardedMode(StrEnum):
    """Which headers tell a backend who the client is."""

    OFF = "off"
    X_FORWARDED = "x_forwarded"
    FORWARDED = "forwarded"
    BOTH = "both"


class BalancingSettings(Section):
    """How requests are spread."""

    policy: PolicyName = PolicyName.LEAST_LOADED
    """`least_loaded`: the backend expected to finish the request first, by the execution times
    learnt for its model (see `scheduling`); requests that are not scheduled go to the backend with
    the fewest in flight for its weight. `least_requests`: the fewest in flight for all requests, as
    `least_conn` of nginx, `leastconn` of HAProxy and `LEAST_REQUEST` of Envoy. `least_latency`: the
    lowest latency times requests in flight, for backends of unequal speed whose requests cannot be
    scheduled. `round_robin`: in turn, by weight."""


class RetrySettings(Section):
    """Requests that failed before their answer began are sent to another backend: those that surely
    did not run, and those that may run twice, which are inferences without a sequence and reads."""

    attempts: Annotated[PositiveCount, Field(le=100)] = 3
    """Attempts in all, the first one included; 1 never repeats. A request that was lost with its
    server goes again once at most: it may be what the server died of. A server that says something
    afterwards has not died."""
    budget: Annotated[Number, Field(ge=0, le=1)] = 0.2
    """How many of those that may have run go again, as a share of all requests of the last ten
    seconds."""
    floor: Annotated[Number, Field(ge=0, le=1_000_000)] = 10.0
    """How many of them a second may do so in any case."""


class ShutdownSettings(Section):
    """What happens between SIGTERM and the end."""

    settle: Duration = 0.0
    """How long requests are still accepted after readiness went down, so that whoever sends them
    can notice. 5s in Kubernetes."""
    drain: Duration = 20.0
    """How long requests under way may then take; what is left is cut. A second signal cuts at
    once."""


class Settings(Section):
    """A whole configuration."""

    listen: ListenSettings
    backends: tuple[BackendSettings, ...] = ()
    """The servers to balance over; at least one, or a source of `discovery`."""
    discovery: DiscoverySettings = DiscoverySettings()
    balancing: BalancingSettings = BalancingSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    health: HealthSettings = HealthSettings()
    outliers: OutlierSettings = OutlierSettings()
    slow_start: SlowStartSettings = SlowStartSettings()
    warm_up: WarmUpSettings = WarmUpSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    limits: LimitSettings = LimitSettings()
    forwarded: ForwardedMode = ForwardedMode.OFF
    """Headers that tell backends who the client is: `x_forwarded` (`X-Forwarded-For`, `-Proto`,
    `-Host`), `forwarded` (RFC 7239), `both` or `off`. Off, backends are told nothing of the client;
    Triton can pass headers on to models."""
    access: AccessSettings = AccessSettings()
    admin: AdminSettings = AdminSettings()
    control: ControlSettings = ControlSettings()
    fronts: FrontSettings = FrontSettings()
    retry: RetrySettings = RetrySettings()
    hedging: HedgingSettings = HedgingSettings()
    access_log: AccessLogSettings = AccessLogSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    reload: ReloadSettings = ReloadSettings()
    upgrade: UpgradeSettings = UpgradeSettings()
    model_table: ModelTableSettings = ModelTableSettings()
    sequences: SequenceSettings = SequenceSettings()
    scaling: ScalingSettings = ScalingSettings()
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Settings per ML model, by its name as clients write it."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Return the backends as values of the domain, in the order of the file."""
        return tuple(backend.spec() for backend in self.backends)

    def health_of(self, backend: BackendSettings) -> HealthSettings:
        """Return the probe settings of one backend: its own over the common ones."""
        own = {name: getattr(backend.health, name) for name in backend.health.model_fields_set}
        return self.health.model_copy(update=own)
