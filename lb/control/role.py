"""The control role of a process: it watches backends, and decides who gets requests.

Probes, sources of backends, tables of models, restoring, warming up and ejection all end in one
thing, the snapshots that the directory publishes. What relays see comes in as reports. The other
role is `lb.proxy.role`; what each has of the other is in `lb.domain.roles`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Final

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.discovery import Discovery
from lb.control.load import LoadReader
from lb.control.loops import ProbeLoops, network_probe
from lb.control.membership import Membership
from lb.control.model_placement import ModelPlacement
from lb.control.models import ModelWatch
from lb.control.narrowing import narrow_rules
from lb.control.plans import Planner, plan_rules
from lb.control.priors import PriorReader
from lb.control.questions import READ_BYTES, Questions
from lb.control.record import BackendRecord
from lb.control.restore import Restorer
from lb.control.scaling import ScalingSignal
from lb.control.standby import StandbyControl
from lb.control.warm_up import WarmUp
from lb.domain.backend import AppProtocol, Backend
from lb.domain.load import LoadReport, LoadSample, Measured
from lb.domain.model import ModelUse
from lb.domain.operation import Operation
from lb.domain.roles import ControlSide, RelaySide
from lb.domain.schedule import ModelBackendView
from lb.health.models import Version
from lb.health.outliers import outlier_rules
from lb.health.ramp import ramp_rules
from lb.net.ask.backend_client import BackendClient
from lb.net.process_parts import ProcessParts
from lb.settings.model import Settings
from lb.settings.scheduling import BalancingSettings

_TABLES_S: Final = 2.0
"""How long a start waits for the backends to say which models they have."""


class _NoRelay:
    """Stands for a relay until there is one. Implements `RelaySide`."""

    def cut(self, backend: Backend) -> None:
        """There are no connections."""

    def renew(self, backend: Backend) -> None:
        """There are no connections."""

    def model_use(self, _backend: Backend, _model: bytes) -> ModelUse:
        """There are no requests."""
        return ModelUse(0, 0)

    def leave_streams(self, _backend: Backend, _model: bytes) -> None:
        """There are no streams."""

    def in_flight_by_model(self, _backend: Backend) -> Mapping[bytes, int]:
        """There are no requests."""
        return {}

    def model_backends(self, _models: Collection[bytes]) -> Iterable[ModelBackendView]:
        """Nobody schedules."""
        return ()

    def models_awaited(self) -> Mapping[bytes, float]:
        """There are no requests."""
        return {}

    def models_streamed(self) -> Collection[bytes]:
        """There are no streams."""
        return ()

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """Nobody schedules."""

    def on_measured(self, backend: Backend, measured: Mapping[Version, Measured]) -> None:
        """Nobody schedules."""

    def load_sample(self) -> LoadSample:
        """There are no requests."""
        return LoadSample(answered=0, seconds=0.0, refused=0, open=0, weight=0.0, backends=0)


class _News:
    """Tells all whom calls that changed backends concern. Implements `ControlNews`."""

    def __init__(self, models: ModelWatch, placement: ModelPlacement) -> None:
        self._models = models
        self._placement = placement

    def control_done(
        self, operation: Operation, model: bytes, backends: tuple[Backend, ...]
    ) -> None:
        """See `ControlNews`."""
        self._models.control_done(operation, model, backends)
        self._placement.control_done(operation, model)

    async def settled(self, backends: tuple[Backend, ...]) -> None:
        """See `ControlNews`."""
        await self._models.settled(backends)


class ControlRole:
    """Watches the backends of a process. Until `configure` there are none."""

    def __init__(self, parts: ProcessParts) -> None:
        self._parts = parts
        self._balancing = BalancingSettings()
        """The settings in force."""
        policy = make_policy(self._balancing.policy.value, parts.rng)
        self._relay: RelaySide = _NoRelay()
        self.directory = directory = BackendDirectory(policy)
        directory.cut = lambda backend: self._relay.cut(backend)
        directory.model_use = lambda backend, model: self._relay.model_use(backend, model)
        self.membership = Membership(directory)
        self.discovery = Discovery(
            directory, self.membership, lambda backend: self._relay.renew(backend), parts.files
        )
        make_probe = partial(
            network_probe, tls=parts.tls, identity=parts.identity, iteration=parts.iteration
        )
        self.probes = ProbeLoops(directory, parts.rng, parts.iteration, make_probe=make_probe)
        self.backend_client = BackendClient(
            parts.tls,
            answer_bytes=READ_BYTES,
            identity=parts.identity,
            iteration=parts.iteration,
        )
        """Makes our own calls to backends."""
        questions = Questions(self.backend_client)
        self.models = ModelWatch(directory, questions, parts.rng)
        self.restorer = Restorer(directory, self.models, questions)
        self.warm_up = WarmUp(directory, questions)
        self.placement = ModelPlacement(directory, self.models, questions)
        self.models.joined = self.restorer.joined
        self.models.left = self.restorer.left
        self.models.on_ready = self._on_ready
        self.load = LoadReader(
            self.backend_client,
            lambda: directory.records,
            lambda backend: self._relay.in_flight_by_model(backend),
            lambda backend, report: self._relay.on_load_report(backend, report),
        )
        self.placement.model_backends = lambda models: self._relay.model_backends(models)
        self.placement.models_awaited = lambda: self._relay.models_awaited()
        self.placement.loader.leave_streams = lambda backend, model: self._relay.leave_streams(
            backend, model
        )
        self.placement.models_streamed = lambda: self._relay.models_streamed()
        self.placement.memory_of = self.load.memory_of
        self.priors = PriorReader(
            directory,
            Questions(self.backend_client),
            lambda backend, measured: self._relay.on_measured(backend, measured),
        )
        self.scaling = ScalingSignal(lambda: self._relay.load_sample())
        self.scaling.keep(parts.timers, monotonic)
        self.standby = StandbyControl(directory, self.models, questions, self.scaling)

    def side(self) -> ControlSide:
        """What a relay has of this role."""
        directory = self.directory

        def misplaced(backend: Backend, model: bytes, version: bytes | None) -> None:
            directory.misplaced(backend, model, version, monotonic())
            self.placement.missed(model)

        return ControlSide(
            pool=directory.ref,
            roster=directory.roster,
            outcomes=directory,
            passive_health=directory.passive,
            misplaced=misplaced,
            news=_News(self.models, self.placement),
            wanted=self._wanted,
        )

    def _wanted(self, model: bytes, protocol: AppProtocol, is_standby: bool) -> None:
        if is_standby:
            self.standby.wanted(model, protocol)
        else:
            self.placement.wanted(model)

    def attach(self, relay: RelaySide) -> None:
        """Have a relay do what this role asks for. Call it before `configure`."""
        self._relay = relay

    def configure(self, settings: Settings) -> None:
        """Go by these settings, the first or other ones. What has not changed is not disturbed."""
        directory, now = self.directory, monotonic()
        if settings.balancing != self._balancing:
            self._balancing = settings.balancing
            policy = make_policy(settings.balancing.policy.value, self._parts.rng)
            directory.use_policy(policy, now)
        if (plans := plan_rules(settings)) != directory.planner.rules:
            directory.use_planner(Planner(plans), now)
        directory.narrow(narrow_rules(settings), now)
        directory.passive.configure(outlier_rules(settings), now)
        directory.ramps.configure(ramp_rules(settings))
        self.backend_client.configure(settings.timeouts)
        self.models.configure(settings.model_table)
        self.placement.configure(settings)
        self.restorer.configure(settings.model_table)
        self.restorer.restores_models = not self.placement.is_active
        self.warm_up.configure(settings.warm_up)
        self.load.configure(settings.scheduling.load_poll_interval)
        self.scaling.configure(settings.standby)
        self.standby.configure(settings.standby)
        self.discovery.configure(settings)

    async def start(self) -> None:
        """Begin to watch, and wait for what sources and backends say first, within limits."""
        await self.discovery.start()
        self.probes.start()
        self.models.start()
        await self.probes.first_round()
        await self.models.first_round(_TABLES_S)
        self.placement.start()
        self.standby.start()
        await self.placement.first_round(_TABLES_S)
        await self.priors.first_round(_TABLES_S)

    async def aclose(self) -> None:
        """Watch nobody any more."""
        await self.discovery.aclose()
        await self.probes.aclose()
        await self.standby.aclose()
        await self.placement.aclose()
        await self.restorer.aclose()
        await self.warm_up.aclose()
        await self.load.aclose()
        await self.priors.aclose()
        await self.models.aclose()

    def _on_ready(self, record: BackendRecord, versions: frozenset[Version]) -> None:
        """See `ModelWatch.on_ready`."""
        self.warm_up.on_ready(record, versions)
        self.priors.on_ready(record, versions)
