"""Puts the product together: the only module that knows every package."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from random import Random
from typing import Final

from aiohttp import web

from lb.access.gate import Gate
from lb.admin.app import make_admin_app
from lb.admin.metrics_app import Target, make_metrics_app
from lb.balancing.policies import make_policy
from lb.balancing.sequences import Affinity, SequenceTable
from lb.control.directory import BackendDirectory
from lb.control.loops import ProbeLoops, network_probe
from lb.control.membership import Membership
from lb.control.model_views import ready_backends, table_statuses
from lb.control.models import ModelWatch
from lb.control.questions import READ_BYTES, Questions
from lb.control.restore import Restorer
from lb.control.views import port_statuses
from lb.domain.backend import AppProtocol, Backend, BackendPort
from lb.net.ask.asker import Asker
from lb.net.ask.talk import ANSWER_BYTES
from lb.net.crowd import Crowd
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.proxy.dispatch import Dispatcher
from lb.proxy.fan_out.fan_out import BackendFanOut
from lb.proxy.fan_out.options import FanOutOptions
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http2.relay import Http2Options, Http2Relay
from lb.proxy.steps import Steps
from lb.runtime.access import Access, credential_fields, make_access
from lb.runtime.logs import Logs
from lb.runtime.memory import held_ceiling, memory_limit
from lb.runtime.security import Security, make_security, private_fields
from lb.settings.model import ForwardedMode, Settings
from lb.telemetry.access_log import AccessLog
from lb.telemetry.collector import BuildInfo, LoadBalancerCollector, Sources, make_registry
from lb.telemetry.loop_lag import LoopLag
from lb.telemetry.meter import Meter
from lb.telemetry.record import RequestSink
from lb.telemetry.sinks import combine
from lb.wire.http1.limits import HeadLimits
from lb.wire.ledger import Ledger

_X_FORWARDED: Final = (ForwardedMode.X_FORWARDED, ForwardedMode.BOTH)
_FORWARDED: Final = (ForwardedMode.FORWARDED, ForwardedMode.BOTH)


def http1_options(settings: Settings) -> Http1Options:
    """Limits and times of the HTTP/1.1 side."""
    limits, timeouts = settings.limits, settings.timeouts
    return Http1Options(
        head=HeadLimits(
            head_bytes=limits.head_bytes,
            line_bytes=limits.request_line_bytes,
            fields=limits.fields,
        ),
        body_size=limits.body_bytes,
        retained_size=limits.retained_body_bytes,
        buffer_size=limits.http_buffer_bytes,
        connect_timeout_s=timeouts.connect,
        head_timeout_s=timeouts.head,
        body_timeout_s=timeouts.body_progress,
        client_idle_s=timeouts.client_idle,
        upstream_idle_s=timeouts.upstream_idle,
        request_timeout_s=timeouts.request,
        handshake_timeout_s=timeouts.handshake,
        private_fields=private_fields(settings) | credential_fields(settings),
        x_forwarded=settings.forwarded in _X_FORWARDED,
        forwarded=settings.forwarded in _FORWARDED,
        trusted_proxies=settings.listen.proxies,
    )


def http2_options(settings: Settings) -> Http2Options:
    """Limits and times of the HTTP/2 side."""
    limits, timeouts = settings.limits, settings.timeouts
    return Http2Options(
        concurrent_streams=limits.concurrent_streams,
        stream_window=limits.stream_window_bytes,
        stream_window_max=limits.stream_window_max_bytes,
        frame_size=limits.frame_bytes,
        head_size=limits.head_bytes,
        fields=limits.fields,
        message_size=limits.body_bytes,
        retained_size=limits.retained_body_bytes,
        connect_timeout_s=timeouts.connect,
        head_timeout_s=timeouts.head,
        client_idle_s=timeouts.client_idle,
        stream_stalled_s=timeouts.stream_stalled,
        request_timeout_s=timeouts.request,
        handshake_timeout_s=timeouts.handshake,
        private_fields=private_fields(settings) | credential_fields(settings),
        x_forwarded=settings.forwarded in _X_FORWARDED,
        forwarded=settings.forwarded in _FORWARDED,
        trusted_proxies=settings.listen.proxies,
    )


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


@dataclass(frozen=True, slots=True)
class Product:
    """The parts of a running process, made by `build`."""

    settings: Settings
    directory: BackendDirectory
    membership: Membership
    probes: ProbeLoops
    models: ModelWatch
    restorer: Restorer
    dispatcher: Dispatcher
    fan_out: BackendFanOut
    http1: Http1Relay
    http2: Http2Relay
    timers: TimerWheel
    tasks: TaskOwner
    meter: Meter
    loop_lag: LoopLag
    collector: LoadBalancerCollector
    security: Security
    access: Access

    @property
    def idle(self) -> bool:
        """Whether no request is under way, and no change that its client did not wait for."""
        return not (self.dispatcher.open_exchanges or self.fan_out.is_changing)

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return sum(traffic.connections for traffic in self.meter.traffic)

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return self.http1.upstream_connections + self.http2.upstream_connections

    async def aclose(self) -> None:
        """Close everything; what still runs is cut."""
        await self.probes.aclose()
        await self.restorer.aclose()
        await self.models.aclose()
        await self.http1.aclose()
        await self.http2.aclose()
        await self.tasks.aclose()
        self.timers.close()


def build(settings: Settings, logs: Logs) -> Product:
    """Make all parts. Needs a running loop; nothing listens or connects yet."""
    security = make_security(settings)
    access = make_access(settings)
    rng = Random()
    directory = BackendDirectory(make_policy(settings.balancing.policy.value, rng))
    membership = Membership(directory)
    membership.configure(settings.backends, settings.health)
    timers = TimerWheel(asyncio.get_running_loop())
    tasks = TaskOwner()
    ledger = Ledger(held_ceiling(settings.limits.memory_bytes, memory_limit()))
    meter = Meter(max_models=settings.metrics.model_labels)
    sink = _sink(settings, logs, meter, rng)
    dispatcher = _dispatcher(settings, directory, sink, ledger, access.gate)
    dispatcher.steps.keep_swept(timers, time.monotonic)
    models, restorer = _models(settings, directory, security, rng)
    http1, http2 = _relays(settings, (dispatcher, timers, ledger, tasks), meter, security)
    fan_out = _fan_out(settings, directory, security, tasks, ledger)
    http1.fan_out = http2.fan_out = fan_out
    fan_out.news = models
    _follow_pool(membership, directory, (http1, http2), meter, fan_out)
    loop_lag = LoopLag()
    sources = Sources(
        meter=meter,
        snapshot=lambda: directory.ref.current,
        statuses=lambda: port_statuses(directory),
        loop_lag=loop_lag,
        build=build_info(),
        started_at=time.time(),  # noqa: TID251  # Prometheus wants Unix time
        open_requests=lambda: dispatcher.open_exchanges,
        held_bytes=lambda: ledger.held,
        dropped_lines=logs.dropped,
        expiries=security.watch.expiries,
        reload_failures=lambda: security.watch.failures,
        token_requests=access.gate.requests,
        token_failures=lambda: access.tokens.failures,
        model_tables=lambda: table_statuses(directory, time.monotonic()),
        ready_backends=lambda: ready_backends(directory, settings.metrics.model_labels),
        restored=restorer.counts,
        open_sequences=lambda: dispatcher.steps.table.open_by_model(settings.metrics.model_labels),
        sequence_counts=dispatcher.steps.table.counts,
        own_calls=fan_out.own_calls,
    )
    return Product(
        settings=settings,
        directory=directory,
        membership=membership,
        probes=ProbeLoops(directory, rng, make_probe=partial(network_probe, tls=security.clients)),
        models=models,
        restorer=restorer,
        dispatcher=dispatcher,
        fan_out=fan_out,
        http1=http1,
        http2=http2,
        timers=timers,
        tasks=tasks,
        meter=meter,
        loop_lag=loop_lag,
        collector=LoadBalancerCollector(sources),
        security=security,
        access=access,
    )


def _dispatcher(
    settings: Settings, directory: BackendDirectory, sink: RequestSink, ledger: Ledger, gate: Gate
) -> Dispatcher:
    dispatcher = Dispatcher(
        directory.ref,
        directory,
        sink,
        clock=time.monotonic,
        ledger=ledger,
        max_attempts=settings.retry.attempts,
        gate=gate,
    )
    affinity = Affinity(settings.sequences.affinity.value)
    table = SequenceTable(limit=settings.sequences.max_open, affinity=affinity)
    dispatcher.steps = Steps(table)
    dispatcher.misplaced = lambda backend, model, version: directory.misplaced(
        backend, model, version, time.monotonic()
    )
    return dispatcher


def _fan_out(
    settings: Settings,
    directory: BackendDirectory,
    security: Security,
    tasks: TaskOwner,
    ledger: Ledger,
) -> BackendFanOut:
    return BackendFanOut(
        directory.roster,
        _asker(settings, security),
        tasks,
        ledger,
        fan_out_options(settings),
        clock=time.monotonic,
    )


def _models(
    settings: Settings, directory: BackendDirectory, security: Security, rng: Random
) -> tuple[ModelWatch, Restorer]:
    table = settings.model_table
    questions = Questions(_asker(settings, security, READ_BYTES))
    watch = ModelWatch(directory, questions, rng, refresh_s=table.refresh)
    restorer = Restorer(directory, watch, questions)
    if table.restore:
        watch.joined = restorer.joined
        watch.left = restorer.left
    return watch, restorer


def _asker(settings: Settings, security: Security, answer_bytes: int = ANSWER_BYTES) -> Asker:
    """For calls of our own."""
    return Asker(
        security.clients, connect_timeout_s=settings.timeouts.connect, answer_bytes=answer_bytes
    )


def fan_out_options(settings: Settings) -> FanOutOptions:
    """How requests that concern all backends are carried out."""
    control = settings.control
    return FanOutOptions(
        rolling=control.rolling,
        deadline_s=control.deadline,
        read_timeout_s=control.read_timeout,
        concurrent=control.concurrent,
    )


def _relays(
    settings: Settings,
    shared: tuple[Dispatcher, TimerWheel, Ledger, TaskOwner],
    meter: Meter,
    security: Security,
) -> tuple[Http1Relay, Http2Relay]:
    http1 = Http1Relay(
        *shared, meter.traffic[AppProtocol.HTTP], http1_options(settings), security.clients
    )
    http2 = Http2Relay(
        *shared, meter.traffic[AppProtocol.GRPC], http2_options(settings), security.clients
    )
    http1.crowd = http2.crowd = Crowd(settings.limits.connections_per_client)
    return http1, http2


def _follow_pool(
    membership: Membership,
    directory: BackendDirectory,
    relays: tuple[Http1Relay, Http2Relay],
    meter: Meter,
    fan_out: BackendFanOut,
) -> None:
    """Have everybody who keeps something about backends go along with what the pool becomes."""
    http1, http2 = relays

    def cut(backend: Backend) -> None:
        http1.cut(backend)
        http2.cut(backend)
        present = frozenset(directory.ref.current.backends)
        meter.retain(present)
        fan_out.own_calls.retain(present)
        changed()

    def changed() -> None:
        kinds = frozenset(record.backend.spec.kind for record in directory.records)
        if http1.kinds != kinds:
            http1.kinds = http2.kinds = kinds
            http2.configure(http2.options)  # what it decided for heads depends on them

    directory.cut = cut
    membership.changed = changed
    changed()


def _sink(settings: Settings, logs: Logs, meter: Meter, rng: Random) -> RequestSink:
    """Who is told of finished requests."""
    if logs.access is None:
        return combine(meter)
    access = settings.access_log
    log = AccessLog(logs.access, mode=access.mode, sample=access.sample, rng=rng)
    return combine(meter, log)


def scrape_targets(directory: BackendDirectory, book: ClientTlsBook) -> list[Target]:
    """Backends that have a metrics port."""
    targets = []
    for record in directory.records:
        spec = record.backend.spec
        address, settings = spec.metrics, spec.tls_of(BackendPort.METRICS)
        if address is None:
            continue
        if settings is None:
            targets.append(Target(spec.name, address))
        else:
            tls = book.load(settings, AppProtocol.HTTP)
            targets.append(Target(spec.name, address, tls.context, tls.server_name(address)))
    return targets


def metrics_app(product: Product, is_ready: Callable[[], bool]) -> web.Application:
    """The application of the metrics listener."""
    return make_metrics_app(
        make_registry(product.collector),
        is_ready=is_ready,
        targets=lambda: scrape_targets(product.directory, product.security.clients),
        include_backends=product.settings.metrics.backends,
    )


def admin_app(product: Product) -> web.Application:
    """The application of the admin listener."""
    return make_admin_app(
        product.directory,
        version=version(),
        clock=product.dispatcher.clock,
        access=product.access.admin,
    )
