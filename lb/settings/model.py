"""The settings: frozen models, one per section of the file, with every default.

The text below a field is its documentation: `docs/configuration.md` is made from it. Rules between
values of a section are its `broken_rules`; rules between sections stand in `lb.settings.relations`.
All are reported together with values that cannot be read.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from lb.domain.backend import BackendSpec
from lb.settings.access import AccessSettings, AdminSettings
from lb.settings.backends import BackendSettings, HealthSettings
from lb.settings.discovery import DiscoverySettings
from lb.settings.fronts import FrontSettings
from lb.settings.limits import LimitSettings, TimeoutSettings
from lb.settings.listening import ListenSettings
from lb.settings.passive import (
    ModelTableSettings,
    OutlierDetectionSettings,
    SlowStartSettings,
    WarmUpSettings,
)
from lb.settings.placement import PlacementSettings
from lb.settings.reporting import (
    AccessLogSettings,
    DiagnosticsSettings,
    LogSettings,
    MetricsSettings,
    PayloadLogSettings,
)
from lb.settings.retry import FanOutSettings, HedgingSettings, RetrySettings
from lb.settings.scheduling import (
    BalancingSettings,
    ModelSettings,
    SchedulingSettings,
    SequenceSettings,
)
from lb.settings.section import Section
from lb.settings.standby import StandbySettings
from lb.settings.tracing import TracingSettings
from lb.settings.units import Duration
from lb.settings.values import Boolean, FileName, Workers


class ForwardedMode(StrEnum):
    """Which headers tell a backend who the client is."""

    OFF = "off"
    X_FORWARDED = "x_forwarded"
    FORWARDED = "forwarded"
    BOTH = "both"

    @property
    def has_x_forwarded(self) -> bool:
        """Whether there are `X-Forwarded-For`, `-Proto` and `-Host`."""
        return self in (ForwardedMode.X_FORWARDED, ForwardedMode.BOTH)

    @property
    def has_forwarded(self) -> bool:
        """Whether there is `Forwarded` (RFC 7239)."""
        return self in (ForwardedMode.FORWARDED, ForwardedMode.BOTH)


class Cancellation(StrEnum):
    """What Tritons hear of clients that do not wait for an answer any more."""

    PASS = "pass"
    WITHHOLD = "withhold"


class ShutdownSettings(Section):
    """What happens between SIGTERM and the end of the process."""

    pre_stop_delay: Duration = 0.0
    """How long requests are still accepted after readiness is down, so that load balancers in front
    of us can notice.

    Set this when the process runs behind a load balancer or in Kubernetes (5s); otherwise requests
    that arrive during the shutdown are refused."""
    drain: Duration = 20.0
    """How long running requests may then still take; the rest is cut. A second signal cuts at once.

    Set this when inferences or streams run longer than 20 seconds; otherwise they are cut."""


class ReloadSettings(Section):
    """Another configuration while the process runs: SIGHUP and `triton-lb reload` apply the whole
    file, or nothing if it has an error."""

    watch: Boolean = False
    """Whether a changed file is applied by itself, within two seconds.

    Set this when a tool such as a ConfigMap replaces the file and cannot signal; otherwise changes
    wait for SIGHUP or `triton-lb reload`."""


class Settings(Section):
    """A whole configuration."""

    listen: ListenSettings
    workers: Workers = 1
    """Processes that serve clients side by side and share the listeners; `auto` is one for each
    core that the process may use. With 2 or more, a further process watches the backends and has
    the admin API and the metrics of all (docs/workers.md says what each worker decides alone). A
    reload cannot change it.

    Set this when one core is fully used; otherwise one process does everything and knows all
    load."""
    backends: tuple[BackendSettings, ...] = ()
    """The servers to balance over; at least one, or a source in `discovery`.

    Set this when the addresses of your Tritons are fixed; otherwise `discovery` must find them."""
    discovery: DiscoverySettings = DiscoverySettings()
    balancing: BalancingSettings = BalancingSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    health: HealthSettings = HealthSettings()
    outlier_detection: OutlierDetectionSettings = OutlierDetectionSettings()
    slow_start: SlowStartSettings = SlowStartSettings()
    warm_up: WarmUpSettings = WarmUpSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    limits: LimitSettings = LimitSettings()
    forwarded: ForwardedMode = ForwardedMode.OFF
    """Headers that tell backends who the client is: `x_forwarded` (`X-Forwarded-For`, `-Proto`,
    `-Host`), `forwarded` (RFC 7239), `both` or `off`. Triton can pass headers on to models.

    Set this when models or servers behind us need the client's address; otherwise they are not
    told."""
    cancellation: Cancellation = Cancellation.PASS
    """What a Triton hears when nobody waits for a unary inference over gRPC any more: its client
    has left, its deadline has passed, or another Triton was quicker. `pass` cancels it there, so
    that a Triton drops what waits in its queue. `withhold` lets the Triton compute it and drops the
    answer, as is always done over HTTP. Deadlines (`grpc-timeout`) are kept here then, and not
    passed on.

    Set this when Tritons end with signal 11 where many calls are cancelled or have short deadlines
    (docs/protocols.md); otherwise they spend no time on what nobody waits for."""
    access: AccessSettings = AccessSettings()
    admin: AdminSettings = AdminSettings()
    fan_out: FanOutSettings = FanOutSettings()
    fronts: FrontSettings = FrontSettings()
    retry: RetrySettings = RetrySettings()
    hedging: HedgingSettings = HedgingSettings()
    access_log: AccessLogSettings = AccessLogSettings()
    payload_log: PayloadLogSettings = PayloadLogSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    diagnostics: DiagnosticsSettings = DiagnosticsSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    reload: ReloadSettings = ReloadSettings()
    model_table: ModelTableSettings = ModelTableSettings()
    placement: PlacementSettings = PlacementSettings()
    sequences: SequenceSettings = SequenceSettings()
    standby: StandbySettings = StandbySettings()
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Settings per ML model, by its name as clients write it.

    Set this when one model needs other settings than the rest; otherwise all are treated alike."""

    state: FileName | None = None
    """File in which shares of variants are kept that were changed while the process ran: by an
    operator, a ramp or a rollback.

    Set this when a restart must not begin with the shares of this file again; otherwise it does."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Return the backends as values of the domain, in the order of the file."""
        return tuple(backend.spec() for backend in self.backends)

    @property
    def private_fields(self) -> frozenset[bytes]:
        """Headers that only we may send to backends, in lower case, whatever listener a request
        came through: subjects of certificates, and tokens that are ours."""
        headers = self.listen.subject_headers | self.access.token_headers
        return frozenset(header.lower().replace("_", "-").encode() for header in headers)

    def health_of(self, backend: BackendSettings) -> HealthSettings:
        """Return the probe settings of one backend: its own over the common ones."""
        own = {name: getattr(backend.health, name) for name in backend.health.model_fields_set}
        return self.health.model_copy(update=own)
