"""Puts the product together: the only module that knows every package."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from random import Random

from aiohttp import web

from lb.access.gate import Gate
from lb.admin.app import make_admin_app
from lb.admin.live import LiveSources, LiveView
from lb.admin.live_api import LiveApi
from lb.admin.metrics_app import Target, make_metrics_app
from lb.admin.models import Reload, Upgrade
from lb.balancing.policies import make_policy
from lb.balancing.scheduler import Scheduler
from lb.control.directory import BackendDirectory
from lb.control.drift import ready_backends, table_statuses
from lb.control.loops import ProbeLoops, network_probe
from lb.control.membership import Membership
from lb.control.models import ModelWatch
from lb.control.plans import Planner
from lb.control.questions import READ_BYTES, Questions
from lb.control.restore import Restorer
from lb.control.scaling import LoadSample
from lb.control.statuses import conduct_statuses, port_statuses
from lb.control.warm_up import WarmUp
from lb.domain.backend import AppProtocol, BackendPort
from lb.net.ask.asker import Asker
from lb.net.ask.talk import ANSWER_BYTES
from lb.net.crowd import Crowd
from lb.net.file_thread import FileThread
from lb.net.iteration import IterationBudget
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.attempt_scan import AttemptScan
from lb.proxy.attempt_timeout import AttemptTimeout
from lb.proxy.dead_peers import DeadPeerDetector
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Exchange
from lb.proxy.fan_out.fan_out import BackendFanOut
from lb.proxy.hedging import Hedger
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http2.relay import Http2Relay
from lb.proxy.monitor import Monitor
from lb.proxy.parts import RelayParts
from lb.proxy.slow_uploads import SlowUploads
from lb.runtime.access import Access, make_access
from lb.runtime.discovery import Discovery, make_discovery
from lb.runtime.judgement import apply_judgement
from lb.runtime.load import LoadReaders, make_load_readers
from lb.runtime.logs import Logs
from lb.runtime.memory import Memory, find_memory
from lb.runtime.options import (
    attempt_times,
    dispatch_options,
    fan_out_options,
    hedge_rules,
    http1_options,
    http2_options,
)
from lb.runtime.scaling import ScalingSignal, load_sample
from lb.runtime.scheduling import plan_rules, queue_status
from lb.runtime.security import Security, make_security
from lb.settings.model import Settings
from lb.settings.relations import own_addresses
from lb.telemetry.access_log import AccessLog
from lb.telemetry.collector import BuildInfo, LoadBalancerCollector, Sources, make_registry
from lb.telemetry.loop_lag import LoopLag
from lb.telemetry.meter import Meter
from lb.telemetry.record import RequestSink
from lb.telemetry.reloads import Reloads
from lb.telemetry.reruns import RerunCounts
from lb.telemetry.sinks import combine
from lb.wire.hops import new_identity
from lb.wire.ledger import Ledger


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


@dataclass(slots=True)
class Product:
    """The parts of a running process, made by `build`; `lb.runtime.change` brings them in line with
    other settings. What has a `replace`, or can be told of other options, stays one object."""

    settings: Settings
    """Those in force."""
    rng: Random
    directory: BackendDirectory
    membership: Membership
    discovery: Discovery
    probes: ProbeLoops
    models: ModelWatch
    restorer: Restorer
    warm_up: WarmUp
    dispatcher: Dispatcher
    fan_out: BackendFanOut
    http1: Http1Relay
    http2: Http2Relay
    attempt_timeout: AttemptTimeout
    hedger: Hedger
    monitor: Monitor
    timers: TimerWheel
    tasks: TaskOwner
    ledger: Ledger
    askers: tuple[Asker, ...]
    """Who makes calls of our own."""
    meter: Meter
    loop_lag: LoopLag
    security: Security
    access: Access
    files: FileThread
    """Reads all files while the process runs."""
    reloads: Reloads
    scaling: ScalingSignal
    readers: LoadReaders
    memory: Memory = field(default_factory=find_memory)
    """What the process may use, as found at its start."""
    collector: LoadBalancerCollector = field(init=False)
    """Reads the other parts."""

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
        await self.discovery.aclose()
        await self.files.aclose()
        await self.probes.aclose()
        await self.restorer.aclose()
        await self.warm_up.aclose()
        await self.readers.aclose()
        await self.models.aclose()
        self.hedger.use(None)
        self.dispatcher.queue.close()
        await self.http1.aclose()
        await self.http2.aclose()
        await self.tasks.aclose()
        self.monitor.close()
        self.timers.close()


def build(settings: Settings, logs: Logs, digest: str = "") -> Product:
    """Make all parts. Needs a running loop; nothing listens or connects yet.

    Args:
        settings: what to build.
        logs: where to tell of it.
        digest: of the text of the settings.
    """
    security, access, files = _from_files(settings)
    rng = Random()
    directory = _directory(settings, rng)
    membership = Membership(directory)
    timers, tasks = TimerWheel(asyncio.get_running_loop()), TaskOwner()
    ledger = Ledger(find_memory().ceiling(settings.limits.memory_bytes))
    meter = Meter(max_models=settings.metrics.model_labels)
    sink = request_sink(settings, logs, meter, rng)
    dispatcher = _dispatcher(settings, directory, sink, ledger, access.gate)
    scheduler = dispatcher.queue.scheduler
    dispatcher.steps.keep_swept(timers, time.monotonic, dispatcher.pool)
    loop = asyncio.get_running_loop()
    iteration = IterationBudget(loop)
    askers = _askers(settings, security, dispatcher.identity, iteration)
    models, restorer, warm_up = _models(settings, directory, askers[1], rng)
    fan_out = _fan_out(settings, directory, askers[0], tasks, ledger)
    fan_out.news = models
    parts = RelayParts(
        loop=loop,
        dispatcher=dispatcher,
        timers=timers,
        ledger=ledger,
        tasks=tasks,
        iteration=iteration,
        crowd=Crowd(settings.limits.max_connections_per_client),
        tls=security.clients,
        fan_out=fan_out,
    )
    http1, http2 = _relays(settings, parts, meter)
    attempt_timeout = AttemptTimeout(attempt_times(settings))
    hedger = _hedger(settings, dispatcher, http1, http2)
    followers = (http1, http2), meter, fan_out, security
    discovery = make_discovery(directory, membership, followers, files)
    discovery.configure(settings)
    reloads = Reloads(digest, time.time())  # noqa: TID251  # Prometheus wants Unix time
    product = Product(
        settings=settings,
        rng=rng,
        directory=directory,
        membership=membership,
        discovery=discovery,
        probes=_probes(directory, rng, security, dispatcher.identity, iteration),
        models=models,
        restorer=restorer,
        warm_up=warm_up,
        dispatcher=dispatcher,
        fan_out=fan_out,
        http1=http1,
        http2=http2,
        attempt_timeout=attempt_timeout,
        hedger=hedger,
        monitor=_monitor(dispatcher, http1, http2, (attempt_timeout, hedger)),
        timers=timers,
        tasks=tasks,
        ledger=ledger,
        askers=askers,
        meter=meter,
        loop_lag=LoopLag(),
        security=security,
        access=access,
        files=files,
        reloads=reloads,
        scaling=_scaling(settings, meter, dispatcher, timers),
        readers=_readers(settings, directory, askers[1], scheduler, models),
    )
    product.collector = LoadBalancerCollector(_metric_sources(product, logs))
    return product


def _from_files(settings: Settings) -> tuple[Security, Access, FileThread]:
    """What is read from files at the start, and the thread that reads them from then on."""
    security, access, files = make_security(settings), make_access(settings), FileThread()
    security.use(files)
    return security, access, files


def _monitor(
    dispatcher: Dispatcher,
    http1: Http1Relay,
    http2: Http2Relay,
    attempt_checks: tuple[AttemptTimeout, Hedger],
) -> Monitor:
    def under_way() -> tuple[Exchange, ...]:
        return (*http1.under_way(), *http2.under_way())

    attempts = AttemptScan(under_way, attempt_checks)
    uploads = SlowUploads(dispatcher.queue, under_way)
    dead_peers = DeadPeerDetector(lambda: (*http1.owing(), *http2.owing()))
    checks = (attempts, uploads, dead_peers, http1.paused_clients)
    return Monitor(asyncio.get_running_loop(), http1.iteration, dispatcher, checks)


def _hedger(
    settings: Settings, dispatcher: Dispatcher, http1: Http1Relay, http2: Http2Relay
) -> Hedger:
    def relay_of(exchange: Exchange) -> Http1Relay | Http2Relay:
        return http2 if exchange.protocol is AppProtocol.GRPC else http1

    hedger = Hedger(
        dispatcher,
        begin=lambda exchange: relay_of(exchange).hedge(exchange),
        cancel=lambda exchange: relay_of(exchange).cancel_hedge(exchange),
    )
    hedger.use(hedge_rules(settings))
    return hedger


def _scaling(
    settings: Settings, meter: Meter, dispatcher: Dispatcher, timers: TimerWheel
) -> ScalingSignal:
    def read() -> LoadSample:
        return load_sample(meter, dispatcher.pool.current, dispatcher.open_exchanges)

    signal = ScalingSignal(settings.scaling.latency, read)
    signal.keep(timers, time.monotonic)
    return signal


def _metric_sources(product: Product, logs: Logs) -> Sources:
    """Where the metrics page reads."""
    table = product.dispatcher.steps.table
    return Sources(
        meter=product.meter,
        snapshot=lambda: product.directory.ref.current,
        statuses=lambda: port_statuses(product.directory),
        loop_lag=product.loop_lag,
        build=build_info(),
        started_at=time.time(),  # noqa: TID251  # Prometheus wants Unix time
        tasks=lambda: len(asyncio.all_tasks()),
        open_requests=lambda: product.dispatcher.open_exchanges,
        held_bytes=lambda: product.ledger.held,
        dropped_lines=logs.dropped,
        expiries=product.security.watch.expiries,
        reload_failures=lambda: product.security.watch.failures,
        token_requests=lambda: product.access.gate.requests,
        file_stalls=lambda: (product.files.stalls, product.files.stalled),
        token_failures=lambda: product.access.tokens.failures,
        model_tables=lambda: table_statuses(product.directory, time.monotonic()),
        ready_backends=lambda: ready_backends(product.directory, product.meter.max_models),
        restored=product.restorer.counts,
        open_sequences=lambda: table.open_by_model(product.meter.max_models),
        sequence_counts=table.counts,
        reruns=lambda: _rerun_counts(product),
        own_calls=product.fan_out.own_calls,
        conduct=lambda: conduct_statuses(product.directory),
        discovery=product.discovery.statuses,
        reloads=product.reloads,
        scaling=product.scaling.status,
        queue=lambda: queue_status(product.dispatcher.queue, time.monotonic()),
    )


def _directory(settings: Settings, rng: Random) -> BackendDirectory:
    directory = BackendDirectory(make_policy(settings.balancing.policy.value, rng))
    apply_judgement(directory, settings, time.monotonic())
    directory.use_planner(Planner(plan_rules(settings)), time.monotonic())
    return directory


def _rerun_counts(product: Product) -> RerunCounts:
    reruns, hedger = product.dispatcher.reruns, product.hedger
    return RerunCounts(
        count=reruns.count,
        refused=reruns.refused,
        blocked_models=len(reruns.deadly.blocked(time.monotonic())),
        unkept_bodies=product.ledger.unkept,
        hedges=hedger.count,
        hedges_won=hedger.won,
        hedges_refused=hedger.refused,
    )


def _dispatcher(
    settings: Settings, directory: BackendDirectory, sink: RequestSink, ledger: Ledger, gate: Gate
) -> Dispatcher:
    return Dispatcher(
        directory.ref,
        directory,
        sink,
        clock=time.monotonic,
        ledger=ledger,
        options=dispatch_options(settings),
        gate=gate,
        identity=new_identity(os.urandom),
        conduct=directory.passive,
        misplaced=lambda backend, model, version: directory.misplaced(
            backend, model, version, time.monotonic()
        ),
    )


def _fan_out(
    settings: Settings,
    directory: BackendDirectory,
    asker: Asker,
    tasks: TaskOwner,
    ledger: Ledger,
) -> BackendFanOut:
    return BackendFanOut(
        directory.roster,
        asker,
        tasks,
        ledger,
        fan_out_options(settings),
        clock=time.monotonic,
    )


def _models(
    settings: Settings, directory: BackendDirectory, asker: Asker, rng: Random
) -> tuple[ModelWatch, Restorer, WarmUp]:
    table = settings.model_table
    questions = Questions(asker)
    watch = ModelWatch(directory, questions, rng, refresh_s=table.refresh)
    restorer = Restorer(directory, watch, questions, is_on=table.restore)
    watch.joined = restorer.joined
    watch.left = restorer.left
    warm_up = WarmUp(
        directory,
        questions,
        is_on=settings.warm_up.enabled,
        timeout_s=settings.warm_up.timeout,
    )
    watch.came = warm_up.came
    return watch, restorer, warm_up


def _readers(
    settings: Settings,
    directory: BackendDirectory,
    asker: Asker,
    scheduler: Scheduler,
    watch: ModelWatch,
) -> LoadReaders:
    interval_s = settings.scheduling.load_poll_interval
    return make_load_readers(directory, asker, scheduler, watch, interval_s)


def _askers(
    settings: Settings, security: Security, identity: bytes, iteration: IterationBudget
) -> tuple[Asker, ...]:
    return tuple(
        Asker(
            security.clients,
            connect_timeout_s=settings.timeouts.connect,
            answer_bytes=answer_bytes,
            identity=identity,
            iteration=iteration,
        )
        for answer_bytes in (ANSWER_BYTES, READ_BYTES)
    )


def _probes(
    directory: BackendDirectory,
    rng: Random,
    security: Security,
    identity: bytes,
    iteration: IterationBudget,
) -> ProbeLoops:
    make_probe = partial(
        network_probe, tls=security.clients, identity=identity, iteration=iteration
    )
    return ProbeLoops(directory, rng, make_probe=make_probe)


def _relays(settings: Settings, parts: RelayParts, meter: Meter) -> tuple[Http1Relay, Http2Relay]:
    http1 = Http1Relay(parts, meter.traffic[AppProtocol.HTTP], http1_options(settings))
    http2 = Http2Relay(parts, meter.traffic[AppProtocol.GRPC], http2_options(settings))
    return http1, http2


def request_sink(settings: Settings, logs: Logs, meter: Meter, rng: Random) -> RequestSink:
    """Who is told of finished requests."""
    if logs.access is None:
        return combine(meter)
    access = settings.access_log
    log = AccessLog(logs.access, mode=access.mode, sample=access.sample, rng=rng)
    return combine(meter, log)


def scrape_targets(product: Product) -> list[Target]:
    """Backends whose metrics stand among ours."""
    targets = []
    book = product.security.clients
    for record in product.directory.records if product.settings.metrics.backends else ():
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


def metrics_app(product: Product, is_ready: Callable[[], bool]) -> web.Application:
    """The application of the metrics listener."""
    return make_metrics_app(
        make_registry(product.collector),
        is_ready=is_ready,
        targets=lambda: scrape_targets(product),
        include_backends=True,
    )


def _live_sources(product: Product) -> LiveSources:
    """Where the live document reads."""
    queue, scheduler = product.dispatcher.queue, product.dispatcher.queue.scheduler
    return LiveSources(
        directory=product.directory,
        meter=product.meter,
        version=version(),
        wall=time.time,  # noqa: TID251  # viewers compare it with their clocks
        queued=lambda: len(queue),
        oldest_s=queue.oldest_s,
        model_queues=lambda now: scheduler.model_queues(now, idle=False),
        model_backends=scheduler.model_backends,
        wait_reasons=lambda: queue.wait_reasons,
        reruns=lambda: _rerun_counts(product),
        tables=lambda: table_statuses(product.directory, time.monotonic()),
    )


def admin_app(
    product: Product,
    reload: Callable[[], Awaitable[Reload]],
    upgrade: Callable[[], Awaitable[Upgrade]],
) -> web.Application:
    """The application of the admin listener."""
    app = make_admin_app(
        product.directory,
        product.membership,
        version=version(),
        clock=product.dispatcher.clock,
        access=product.access.admin,
        own_addresses=lambda: own_addresses(product.settings),
        sources=product.discovery.statuses,
        queue=lambda: queue_status(product.dispatcher.queue, time.monotonic()),
        reload=reload,
        upgrade=upgrade,
    )
    view = LiveView(_live_sources(product), product.dispatcher.clock)
    LiveApi(view, product.access.admin).install(app)
    return app
