"""Puts a process together: the control role, the relay role, and what people see of both."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import metadata

from aiohttp import web

from lb.admin.access import AdminAccess
from lb.admin.app import make_admin_app
from lb.admin.live import LiveSources, LiveView
from lb.admin.live_api import LiveApi
from lb.admin.live_variants import shadow_rows
from lb.admin.log_level import LogLevelSwitch
from lb.admin.metrics_app import Target, make_metrics_app, nothing_lacks
from lb.admin.models import Reload, Upgrade
from lb.control.drift import ready_backends, table_statuses
from lb.control.role import ControlRole
from lb.control.statuses import outlier_statuses, port_statuses
from lb.domain.backend import Address, AppProtocol, BackendPort
from lb.domain.roles import ControlSide
from lb.net.process_parts import ProcessParts
from lb.runtime.logs import Logs
from lb.runtime.relay_host import RelayHost, version
from lb.runtime.variant_state import VariantState
from lb.settings.choices import PlacementMode
from lb.settings.effective import effective
from lb.settings.model import Settings
from lb.settings.relations import own_addresses
from lb.telemetry.collector import BuildInfo, LoadBalancerCollector, Sources, make_registry
from lb.telemetry.counts import WorkerStatus
from lb.telemetry.queue import QueueReader
from lb.telemetry.record import RequestSink


def build_info() -> BuildInfo:
    """What runs."""
    loop = asyncio.get_running_loop()
    is_uvloop = type(loop).__module__.partition(".")[0] == "uvloop"
    return BuildInfo(
        version=version(),
        python=platform.python_version(),
        uvloop=metadata.version("uvloop") if is_uvloop else "",
    )


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
        self.admin_access = AdminAccess()
        """Who may use the admin API."""
        parts = self.parts
        variants = self.relay.dispatcher.variants
        variants.keep(parts.timers)
        self.variant_state = VariantState(variants, parts.timers, parts.tasks)
        self.queues: QueueReader = self.relay
        """Knows of requests that wait."""
        self.worker_statuses: Callable[[], Iterable[WorkerStatus]] = tuple
        """The workers, where there are some."""
        self.control_process_starts = 0
        """How often a control process was started; 0: there is none beside this process."""
        self.collector = LoadBalancerCollector(_metric_sources(self))
        """Reads the other parts."""
        self.configure(settings)

    def _make_side(self, parts: ProcessParts) -> ControlSide:
        self.control = ControlRole(parts)
        return self.control.side()

    def configure(self, settings: Settings) -> None:
        """See `RelayHost`."""
        super().configure(settings)
        self.admin_access.replace(*self.access.admin_rules)
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
        control_process_starts=lambda: balancer.control_process_starts,
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
            targets.append(Target(spec.name, address, is_dead=not record.lives))
        else:
            tls = book.find(settings, AppProtocol.HTTP)
            if tls is not None and tls.is_loaded:
                targets.append(
                    Target(
                        spec.name,
                        address,
                        tls.context,
                        tls.server_name(address),
                        is_dead=not record.lives,
                    )
                )
    return targets


def metrics_app(
    balancer: LoadBalancer,
    is_ready: Callable[[], bool],
    is_complete: Callable[[], Awaitable[bool]] = nothing_lacks,
) -> web.Application:
    """The application of the metrics listener. See `make_metrics_app`."""
    return make_metrics_app(
        make_registry(balancer.collector),
        is_ready=is_ready,
        targets=lambda: scrape_targets(balancer),
        include_backends=True,
        is_complete=is_complete,
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
        access=balancer.admin_access,
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
    LiveApi(view, balancer.admin_access).install(app)
    return app
