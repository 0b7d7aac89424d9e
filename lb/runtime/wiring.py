"""Puts a process together: the control role, the relay role, and what people see of both."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import metadata
from random import Random

from aiohttp import web

from lb.admin.app import make_admin_app
from lb.admin.live import LiveSources, LiveView
from lb.admin.live_api import LiveApi
from lb.admin.live_variants import shadow_rows
from lb.admin.log_level import LogLevelSwitch
from lb.admin.metrics_app import Target, make_metrics_app
from lb.admin.models import Reload, Upgrade
from lb.balancing.scheduler import Scheduler
from lb.control.drift import ready_backends, table_statuses
from lb.control.role import ControlRole
from lb.control.statuses import outlier_statuses, port_statuses
from lb.domain.backend import Address, AppProtocol, BackendPort
from lb.domain.pool import PoolSnapshot
from lb.domain.roles import ControlSide
from lb.net.file_thread import FileThread
from lb.net.http_sessions import SteadyConnector
from lb.net.iteration import IterationBudget
from lb.net.process_parts import ProcessParts
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.role import RelayRole
from lb.proxy.split import longest_batch
from lb.runtime.access import make_access
from lb.runtime.limits import find_memory, keep_freed_memory
from lb.runtime.logs import Logs
from lb.runtime.otel_variables import export_options, with_variables
from lb.runtime.security import make_security
from lb.runtime.variant_state import VariantState
from lb.settings.effective import effective
from lb.settings.model import Settings
from lb.settings.placement import PlacementMode
from lb.settings.relations import own_addresses
from lb.sharing.usage import UsageTable
from lb.telemetry.access_log import AccessLog
from lb.telemetry.collector import BuildInfo, LoadBalancerCollector, Sources, make_registry
from lb.telemetry.counts import LoopLag, Reloads, WorkerStatus
from lb.telemetry.queue import QueueReader
from lb.telemetry.record import RequestSink, combine
from lb.telemetry.span_exporter import SpanExporter
from lb.wire.hops import new_identity


def version() -> str:
    """The installed version of this distribution."""
    try:
        return metadata.version("triton-lb")
    except metadata.PackageNotFoundError:
        return "unknown"


def build_info() -> BuildInfo:
    """What runs."""
    loop = asyncio.get_running_loop()
    is_uvloop = type(loop).__module__.partition(".")[0] == "uvloop"
    return BuildInfo(
        version=version(),
        python=platform.python_version(),
        uvloop=metadata.version("uvloop") if is_uvloop else "",
    )


MakeSide = Callable[[ProcessParts], ControlSide]
"""Makes the control role as a relay sees it, from what a process shares."""


class RelayHost:
    """A process that serves clients, without its listeners and without what decides who gets
    requests.

    Settings reach the parts through `configure` alone, at the start and at each reload. What can
    fail (files) is made before, by `make_security`, `make_access` and `Logs`.
    """

    def __init__(
        self,
        settings: Settings,
        logs: Logs,
        make_side: MakeSide,
        digest: str = "",
        *,
        identity: bytes = b"",
        workers: int = 1,
        scheduler: Scheduler | None = None,
        usage: UsageTable | None = None,
    ) -> None:
        """Make all parts. Needs a running loop; nothing listens or connects yet.

        Args:
            settings: to begin with.
            logs: where to tell of it.
            make_side: makes what publishes the pool and hears reports.
            digest: of the text of the settings.
            identity: in hop markers; empty: a new one.
            workers: how many processes share the limits of the settings.
            scheduler: one that knows of other workers; otherwise there are none.
            usage: what workers tell each other of limits per client; None: there are no others.
        """
        self.settings = settings
        """The settings in force, as the file has them."""
        self.effective = settings
        """The same with what variables of the environment say of traces."""
        self.logs = logs
        self.workers = workers
        self.security = make_security(settings)
        self.usage = usage
        self.access = make_access(settings, table=usage)
        loop = asyncio.get_running_loop()
        self.parts = parts = ProcessParts(
            loop=loop,
            timers=TimerWheel(loop),
            tasks=TaskOwner(),
            iteration=IterationBudget(loop),
            files=FileThread(),
            tls=self.security.clients,
            rng=Random(),
            identity=identity or new_identity(os.urandom),
        )
        self.security.use(parts.files)
        self.side = side = make_side(parts)
        """The control role."""
        memory = find_memory()
        self.relay = RelayRole(
            parts, side, lambda wanted: memory.ceiling(wanted) // workers, scheduler
        )
        self._snapshot = side.pool.current
        side.pool.subscribe(self._follow)
        self.exporter = SpanExporter(self.relay.spans, parts.rng, connector=SteadyConnector)
        self.exporter.on_interval = self.relay.slow_models.update
        self._exporting: asyncio.Task[None] | None = None
        self.loop_lag = LoopLag()
        self.reloads = Reloads(digest, time.time())  # noqa: TID251  # Prometheus wants Unix time

    @property
    def max_connections(self) -> int:
        """Connections of clients that this process may have; 0 is as many as there is room for."""
        return -(-self.settings.limits.max_connections // self.workers)

    def configure(self, settings: Settings) -> None:
        """Go by these settings, the first or other ones, and by what was made for them. Nothing
        here can fail."""
        self.settings = settings
        self.effective = settings = with_variables(settings, os.environ)
        self._export_spans(settings)
        keep_freed_memory(longest_batch(settings))
        files = self.logs.files
        self.relay.configure(settings, self.access.gate, self._request_sink(), files.payloads)

    async def aclose(self) -> None:
        """Close everything; what still runs is cut."""
        await self.parts.files.aclose()
        await self.relay.aclose()
        if self._exporting is not None:
            self._exporting.cancel()
            await asyncio.wait([self._exporting])
            await self.exporter.flush()
        await self.parts.tasks.aclose()
        self.parts.timers.close()

    def _export_spans(self, settings: Settings) -> None:
        """Send spans where the settings say, if they do."""
        options = export_options(
            settings, os.environ, version=version(), instance=self.parts.identity.decode()
        )
        self.exporter.configure(options)
        if options.endpoint and self._exporting is None:
            self._exporting = self.parts.tasks.spawn(self.exporter.run(), name="spans")

    def _request_sink(self) -> RequestSink:
        """Who is told of finished requests."""
        file, options = self.logs.files.access, self.settings.access_log
        sinks: list[RequestSink] = [self.relay.meter, *self._more_sinks()]
        if file is not None:
            sinks.append(
                AccessLog(file, mode=options.mode, sample=options.sample, rng=self.parts.rng)
            )
        return combine(*sinks)

    def _more_sinks(self) -> Iterable[RequestSink]:
        """Parts of the process that are told of finished requests as well."""
        return ()

    def dropped_lines(self) -> Mapping[str, int]:
        """Count what each log that is on has lost: lines, or inferences of the payload log."""
        dropped = dict(self.logs.dropped())
        if self.logs.files.payloads is not None:
            dropped["payload"] = self.relay.payload_log.dropped
        return dropped

    def _follow(self, snapshot: PoolSnapshot) -> None:
        """Load and watch the TLS files of the backends that there are now."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot.backends != before.backends:
            self.security.follow([backend.spec for backend in snapshot.backends])


class LoadBalancer(RelayHost):
    """A process without its listeners: both roles, what they share, and what people see of them."""

    control: ControlRole

    def __init__(
        self, settings: Settings, logs: Logs, digest: str = "", *, identity: bytes = b""
    ) -> None:
        """Make all parts. Needs a running loop; nothing listens or connects yet.

        Args:
            settings: to begin with.
            logs: where to tell of it.
            digest: of the text of the settings.
            identity: in hop markers; empty: a new one.
        """
        super().__init__(settings, logs, self._make_side, digest, identity=identity)
        self.control.attach(self.relay)
        parts = self.parts
        self.variant_state = VariantState(self.relay.dispatcher.variants, parts.timers, parts.tasks)
        self.queues: QueueReader = self.relay
        """Knows of requests that wait."""
        self.worker_statuses: Callable[[], Iterable[WorkerStatus]] = tuple
        """The workers, where there are some."""
        self.collector = LoadBalancerCollector(_metric_sources(self))
        """Reads the other parts."""
        self.configure(settings)

    def _make_side(self, parts: ProcessParts) -> ControlSide:
        self.control = ControlRole(parts)
        return self.control.side()

    def configure(self, settings: Settings) -> None:
        """See `RelayHost`."""
        super().configure(settings)
        self.control.configure(self.effective)
        self.variant_state.configure(self.effective.state)

    async def aclose(self) -> None:
        """See `RelayHost`."""
        await self.control.aclose()
        await super().aclose()

    def _more_sinks(self) -> Iterable[RequestSink]:
        """See `RelayHost`."""
        is_off = self.settings.placement.mode is PlacementMode.OFF
        return () if is_off else (self.control.placement,)


def _metric_sources(balancer: LoadBalancer) -> Sources:
    """Where the metrics page reads."""
    control, relay, security = balancer.control, balancer.relay, balancer.security
    directory, files = control.directory, balancer.parts.files
    table = relay.dispatcher.steps.table
    return Sources(
        meter=relay.meter,
        snapshot=lambda: directory.ref.current,
        statuses=lambda: port_statuses(directory),
        loop_lag=balancer.loop_lag,
        build=build_info(),
        started_at=time.time(),  # noqa: TID251  # Prometheus wants Unix time
        tasks=lambda: len(asyncio.all_tasks()),
        open_requests=lambda: relay.dispatcher.open_exchanges,
        held_bytes=lambda: relay.memory_budget.held,
        dropped_lines=balancer.dropped_lines,
        expiries=security.watch.expiries,
        reload_failures=lambda: security.watch.failures,
        token_requests=lambda: balancer.access.gate.requests,
        file_stalls=lambda: (files.stalls, files.stalled),
        token_failures=lambda: balancer.access.tokens.failures,
        model_tables=lambda: table_statuses(directory, time.monotonic()),
        ready_backends=lambda: ready_backends(directory, relay.meter.max_models),
        restored=control.restorer.counts,
        placement=control.placement.counts,
        open_sequences=lambda: table.open_by_model(relay.meter.max_models),
        sequence_counts=table.counts,
        reruns=relay.rerun_counts,
        splits=relay.dispatcher.splits.counts,
        own_calls=relay.fan_out.own_calls,
        outliers=lambda: outlier_statuses(directory),
        discovery=control.discovery.statuses,
        reloads=balancer.reloads,
        scaling=control.scaling.status,
        standby=control.standby.counts,
        queue=lambda: balancer.queues.queue_status(),
        spans=relay.spans,
        variants=relay.dispatcher.variants.statuses,
        shadows=relay.shadows.statuses,
        workers=lambda: balancer.worker_statuses(),
    )


def scrape_targets(balancer: LoadBalancer) -> list[Target]:
    """Backends whose metrics stand among ours."""
    targets = []
    book = balancer.security.clients
    for record in balancer.control.directory.records if balancer.settings.metrics.backends else ():
        spec = record.backend.spec
        address, settings = spec.metrics, spec.tls_of(BackendPort.METRICS)
        if address is None:
            continue
        if settings is None:
            targets.append(Target(spec.name, address))
        else:
            tls = book.find(settings, AppProtocol.HTTP)
            if tls is not None and tls.is_loaded:
                targets.append(Target(spec.name, address, tls.context, tls.server_name(address)))
    return targets


def metrics_app(balancer: LoadBalancer, is_ready: Callable[[], bool]) -> web.Application:
    """The application of the metrics listener."""
    return make_metrics_app(
        make_registry(balancer.collector),
        is_ready=is_ready,
        targets=lambda: scrape_targets(balancer),
        include_backends=True,
    )


def _live_sources(balancer: LoadBalancer) -> LiveSources:
    """Where the live document reads."""
    return LiveSources(
        directory=balancer.control.directory,
        meter=balancer.relay.meter,
        version=version(),
        wall=time.time,  # noqa: TID251  # viewers compare it with their clocks
        queued=lambda: balancer.queues.queued(),
        oldest_s=lambda now: balancer.queues.oldest_s(now),
        model_queues=lambda now: balancer.queues.model_queues(now),
        model_backends=lambda models: balancer.queues.model_backends(models),
        wait_reasons=lambda: balancer.relay.dispatcher.queue.wait_reasons,
        reruns=balancer.relay.rerun_counts,
        hedges=lambda: balancer.relay.hedger.models,
        replicas=lambda: balancer.settings.admin.replicas,
        tables=lambda: table_statuses(balancer.control.directory, time.monotonic()),
        variants=balancer.relay.dispatcher.variants.statuses,
        shadows=lambda: shadow_rows(balancer.relay.shadows),
        placement=balancer.control.placement.status,
        workers=lambda: balancer.worker_statuses(),
    )


def admin_app(
    balancer: LoadBalancer,
    reload: Callable[[], Awaitable[Reload]],
    upgrade: Callable[[], Awaitable[Upgrade]],
    listening: Callable[[], Mapping[str, Address]],
) -> web.Application:
    """The application of the admin listener.

    Args:
        balancer: it shows and changes.
        reload: the configuration.
        upgrade: the process.
        listening: where the process listens, by listener, with the ports that the kernel chose.
    """

    def ours() -> dict[str, Address]:
        bound = listening()
        owners = own_addresses(balancer.settings)
        return {name: bound.get(name.partition(".")[2], owners[name]) for name in owners}

    app = make_admin_app(
        balancer.control.directory,
        balancer.control.membership,
        version=version(),
        clock=balancer.relay.dispatcher.clock,
        access=balancer.access.admin,
        own_addresses=ours,
        sources=balancer.control.discovery.statuses,
        queue=lambda: balancer.queues.queue_status(),
        placement=balancer.control.placement,
        order_standby=balancer.control.standby.order,
        variants=balancer.relay.dispatcher.variants,
        shadows=balancer.relay.shadows,
        reload=reload,
        upgrade=upgrade,
        config=lambda: effective(balancer.effective),
        set_log_level=LogLevelSwitch(balancer.logs.application, balancer.parts.timers.after).change,
    )
    view = LiveView(_live_sources(balancer), balancer.relay.dispatcher.clock)
    LiveApi(view, balancer.access.admin).install(app)
    return app
