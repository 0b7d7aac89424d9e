"""The relay role of a process: it serves clients, by the snapshots of the control role.

It goes by the newest snapshot alone, and reports what it sees (`lb.domain.roles`). The other role
is `lb.control.role`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

from lb.access.gate import Gate
from lb.balancing.scheduler import Scheduler
from lb.domain.backend import AppProtocol, Backend
from lb.domain.load import LoadReport, LoadSample, Measured
from lb.domain.model import ModelUse
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.domain.roles import ControlSide
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.net.ask.backend_client import BackendClient
from lb.net.ask.client_call import ANSWER_BYTES
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.process_parts import ProcessParts
from lb.net.splice import Pumps
from lb.payloads.log import PayloadLog, payload_rules
from lb.payloads.writer import PayloadWriter
from lb.proxy.attempt_scan import AttemptScan
from lb.proxy.attempt_timeout import AttemptTimeout, attempt_times
from lb.proxy.dead_peers import DeadPeerDetector
from lb.proxy.dispatch import Dispatcher, dispatch_options
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.fan_out.fan_out import BackendFanOut
from lb.proxy.fan_out.named_statistics import NamedStatistics
from lb.proxy.fan_out.options import FanOutOptions, fan_out_options
from lb.proxy.hedging import Hedger, hedge_rules
from lb.proxy.http1.options import Http1Options, http1_options
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http2.options import Http2Options, http2_options
from lb.proxy.http2.relay import Http2Relay
from lb.proxy.monitor import Monitor
from lb.proxy.parts import RelayParts
from lb.proxy.revoked_tokens import RevokedTokens
from lb.proxy.shadow import Shadows, shadow_options
from lb.proxy.silent_backends import SilentBackends
from lb.proxy.slow_clients import SlowClients
from lb.proxy.tracing import Tracer
from lb.settings.model import Settings
from lb.telemetry.counts import RerunCounts
from lb.telemetry.meter import Meter
from lb.telemetry.queue import QueueStatus
from lb.telemetry.record import RequestSink, combine
from lb.telemetry.sampling import both
from lb.telemetry.slow_models import SlowModels
from lb.telemetry.spans import SpanQueue
from lb.wire.memory_budget import MemoryBudget

_MENDED_BY_BACKENDS = frozenset({
    Reason.NO_BACKEND, Reason.BACKENDS_FULL, Reason.QUEUE_FULL, Reason.QUEUE_SHED,
    Reason.QUEUE_TIMEOUT,
})  # fmt: skip
"""Reasons of refusals that more backends would mend."""


class RelayRole:
    """Serves clients. It goes by default settings until `configure`. Implements `RelaySide`."""

    def __init__(
        self,
        parts: ProcessParts,
        control: ControlSide,
        ceiling: Callable[[int], int],
        scheduler: Scheduler | None = None,
    ) -> None:
        """
        Args:
            parts: of the process.
            control: publishes the pool, and hears reports.
            ceiling: says how many bytes of payload the process may hold, given how many the
                settings ask for.
            scheduler: one that knows of other workers; otherwise there are none.
        """
        self._ceiling = ceiling
        self._pool = control.pool
        self.worker_inferences = 0
        """Gauge: open inferences that workers tell of."""
        self.worker_dropped_lines = Counter[str]()
        """By log, what workers have lost."""
        self._backends: tuple[Backend, ...] = ()
        """The backends of the last snapshot."""
        self.meter = meter = Meter()
        self.spans = SpanQueue()
        """What is to be sent of traces."""
        self.slow_models = SlowModels(meter, time.monotonic)
        tracer = Tracer(parts.rng, self.spans, time.monotonic)
        tracer.slow = self.slow_models.limits
        self.memory_budget = memory_budget = MemoryBudget(ceiling(0))
        self.connection_limiter = ConnectionLimiter()
        self.payload_log = PayloadLog(memory_budget, parts.loop.call_soon_threadsafe, parts.rng)
        self.dispatcher = dispatcher = Dispatcher(
            control.pool,
            control.outcomes,
            meter,
            clock=time.monotonic,
            memory_budget=memory_budget,
            identity=parts.identity,
            tracer=tracer,
            passive_health=control.passive_health,
            misplaced=control.misplaced,
            scheduler=scheduler,
        )
        dispatcher.placer.wanted = control.wanted
        dispatcher.steps.keep_swept(parts.timers, time.monotonic, control.pool)
        self.backend_client = BackendClient(
            parts.tls,
            answer_bytes=ANSWER_BYTES,
            identity=parts.identity,
            iteration=parts.iteration,
        )
        """Makes the calls of the fan-out."""
        self.fan_out = BackendFanOut(
            control.roster,
            self.backend_client,
            parts.tasks,
            memory_budget,
            FanOutOptions(),
            clock=time.monotonic,
        )
        self.fan_out.news = control.news
        self._copier = BackendClient(
            parts.tls,
            answer_bytes=ANSWER_BYTES,
            identity=parts.identity,
            iteration=parts.iteration,
            clock=time.monotonic,
        )
        self.shadows = Shadows(
            control.pool,
            memory_budget,
            self._copier,
            parts.tasks,
            parts.rng,
            clock=time.monotonic,
            queued=lambda: len(dispatcher.queue),
        )
        self.shadows.keep(parts.timers)
        shared = RelayParts(
            loop=parts.loop,
            dispatcher=dispatcher,
            timers=parts.timers,
            memory_budget=memory_budget,
            tasks=parts.tasks,
            iteration=parts.iteration,
            connection_limiter=self.connection_limiter,
            tls=parts.tls,
            pumps=Pumps(parts.loop),
            payloads=self.payload_log,
            shadows=self.shadows,
            fan_out=NamedStatistics(self.fan_out, dispatcher.variants.models_of),
        )
        self.http1 = Http1Relay(shared, meter.traffic[AppProtocol.HTTP], Http1Options())
        self.http2 = Http2Relay(shared, meter.traffic[AppProtocol.GRPC], Http2Options())
        self.attempt_timeout = AttemptTimeout()
        self.hedger = Hedger(dispatcher, begin=self._begin_hedge, cancel=self._cancel_hedge)
        checks = (
            AttemptScan(self._under_way, (self.attempt_timeout, self.hedger)),
            SlowClients(dispatcher.queue, control.pool, self._under_way),
            DeadPeerDetector(lambda: (*self.http1.owing(), *self.http2.owing())),
            SilentBackends(self.http2.stuck),
            RevokedTokens(lambda: dispatcher.gate, self.http2.without_token),
            self.http1.paused_clients,
        )
        self.monitor = Monitor(parts.loop, parts.iteration, dispatcher, checks)
        control.pool.subscribe(self._follow)

    def configure(
        self,
        settings: Settings,
        gate: Gate,
        requests: RequestSink,
        payloads: PayloadWriter | None = None,
    ) -> None:
        """Go by these settings, the first or other ones. What has not changed is not disturbed.

        Args:
            settings: those.
            gate: who may do what.
            requests: is told of finished requests.
            payloads: writes the payload log; None where that is off.
        """
        is_other_gate = gate is not self.dispatcher.gate
        limits = settings.limits
        self.memory_budget.resize(self._ceiling(limits.memory_bytes))
        # What is kept for another attempt may be queued once more, as may a window of either side.
        once = max(limits.retained_body_bytes, limits.stream_window_max_bytes)
        self.memory_budget.relayed_at_most = 2 * once
        self.meter.configure(settings.metrics)
        self.connection_limiter.limit = limits.max_connections_per_client
        self.backend_client.configure(settings.timeouts)
        self._copier.configure(settings.timeouts)
        self.payload_log.configure(payload_rules(settings.payload_log), payloads)
        if payloads is not None:
            requests = combine(requests, self.payload_log)
        self.dispatcher.configure(dispatch_options(settings), gate, requests)
        self.shadows.configure(shadow_options(settings))
        self.fan_out.configure(fan_out_options(settings))
        http1, http2 = http1_options(settings), http2_options(settings)
        if is_other_gate or http1 != self.http1.options:
            self.http1.configure(http1)
        if is_other_gate or http2 != self.http2.options:
            self.http2.configure(http2)
        self.http1.draw = self.dispatcher.tracer.draw
        self.http2.draw = both(self.dispatcher.tracer.draw, self.payload_log.draw)
        self.attempt_timeout.configure(attempt_times(settings))
        self.hedger.configure(hedge_rules(settings))
        self.monitor.wake()

    # What the control role asks for: see `RelaySide`

    def cut(self, backend: Backend) -> None:
        """Close all connections to a backend, whatever runs over them."""
        self.http1.cut(backend)
        self.http2.cut(backend)
        self.shadows.close_idle(backend)

    def renew(self, backend: Backend) -> None:
        """Send all further requests to a backend over new connections."""
        self.http1.renew(backend)
        self.http2.renew(backend)
        self.shadows.close_idle(backend)

    def model_use(self, backend: Backend, model: bytes) -> ModelUse:
        """Count what of a model runs on a backend."""
        found = [each.attempt for each in self._under_way() if each.backend is backend]
        attempts = [attempt for attempt in found if attempt is not None]
        unseen = max(0, backend.in_flight - len(attempts))
        idle = [each for each in attempts if not each.may_use(model)]
        return ModelUse(
            unseen + len(attempts) - len(idle),
            self.dispatcher.steps.table.open_on(model, backend),
            sum(each.has_used(model) for each in idle),
        )

    def leave_streams(self, backend: Backend, model: bytes) -> None:
        """See `RelaySide`."""
        self.http2.leave_streams(backend, model)

    def in_flight_by_model(self, backend: Backend) -> Mapping[bytes, int]:
        """Count the scheduled requests in flight at a backend, by model."""
        return self.dispatcher.queue.scheduler.in_flight_by_model(backend)

    def model_backends(self, models: Collection[bytes]) -> Iterable[ModelBackendView]:
        """Read what the scheduler knows of the copies of these models."""
        return self.dispatcher.queue.scheduler.model_backends(models)

    def models_awaited(self) -> Mapping[bytes, float]:
        """See `RelaySide`."""
        return self.dispatcher.queue.models_awaited()

    def models_streamed(self) -> Collection[bytes]:
        """See `RelaySide`."""
        return self.http2.models_streamed()

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """A backend has said how much it has to do."""
        self.dispatcher.queue.scheduler.on_load_report(backend, report)

    def on_measured(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured]
    ) -> None:
        """A backend has said how long executions took there, by model and version."""
        self.dispatcher.queue.scheduler.assume(backend, measured, time.monotonic())

    def load_sample(self) -> LoadSample:
        """Read how much was asked, and who there is to answer."""
        queue = self.dispatcher.queue
        return load_sample(
            self.meter,
            self._pool.current,
            self.open_inferences(),
            len(queue) - queue.unplaced,
        )

    def open_inferences(self) -> int:
        """Count the inferences that are under way or wait; streams are none. That is asked now and
        then, so it looks at all exchanges rather than count each of them as it begins and ends."""
        exchanges = chain(self.http1.open_exchanges(), self.http2.open_exchanges())
        own = sum([each.operation.kind is OperationKind.INFERENCE for each in exchanges])
        return own + self.worker_inferences

    def _follow(self, snapshot: PoolSnapshot) -> None:
        """Forget backends that have left the pool, and know of which kinds the others are."""
        if snapshot.backends == self._backends:
            return
        self._backends = snapshot.backends
        present = frozenset(snapshot.backends)
        self.meter.retain(present)
        self.fan_out.own_calls.retain(present)
        kinds = frozenset(backend.spec.kind for backend in snapshot.backends)
        if self.http1.kinds != kinds:
            self.http1.kinds = self.http2.kinds = kinds
            self.http2.configure(self.http2.options)  # what it decided for heads depends on them

    # What people are shown

    @property
    def idle(self) -> bool:
        """Whether no request is under way, and no change that its client did not wait for."""
        return not (self.dispatcher.open_exchanges or self.fan_out.is_changing)

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return sum([traffic.connections for traffic in self.meter.traffic])

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return self.http1.upstream_connections + self.http2.upstream_connections

    def queue_status(self) -> QueueStatus:
        """What there is of requests that wait."""
        queue = self.dispatcher.queue
        return QueueStatus(
            model_queues=tuple(queue.scheduler.model_queues(time.monotonic())),
            model_backends=tuple(queue.scheduler.model_backends()),
            waits=queue.waits,
            positions=queue.positions,
            wait_reasons=queue.wait_reasons,
            unplaced=queue.unplaced,
        )

    def queued(self) -> int:
        """See `QueueReader`."""
        return len(self.dispatcher.queue)

    def oldest_s(self, now: float) -> float:
        """See `QueueReader`."""
        return self.dispatcher.queue.oldest_s(now)

    def model_queues(self, now: float) -> Iterable[ModelQueueView]:
        """See `QueueReader`."""
        return self.dispatcher.queue.scheduler.model_queues(now, idle=False)

    def rerun_counts(self) -> RerunCounts:
        """What became of requests that may have run and might go again."""
        reruns, hedger = self.dispatcher.reruns, self.hedger
        return RerunCounts(
            count=reruns.count,
            refused=reruns.refused,
            blocked_models=len(reruns.poison_models.blocked(time.monotonic())),
            unkept_bodies=self.memory_budget.unkept,
            hedges=hedger.count,
            hedges_won=hedger.won,
            hedges_refused=hedger.refused,
        )

    # Checks

    def _under_way(self) -> tuple[Exchange, ...]:
        return (*self.http1.under_way(), *self.http2.under_way())

    def _begin_hedge(self, exchange: Exchange) -> Attempt | None:
        relay = self.http2 if exchange.protocol is AppProtocol.GRPC else self.http1
        return relay.hedge(exchange)

    def _cancel_hedge(self, exchange: Exchange) -> None:
        relay = self.http2 if exchange.protocol is AppProtocol.GRPC else self.http1
        relay.cancel_hedge(exchange)

    # Life

    def begin_drain(self, *, gently: bool = False) -> None:
        """Ask clients to leave: see `Http1Relay.begin_drain`."""
        self.http1.begin_drain(gently=gently)
        self.http2.begin_drain()

    async def aclose(self) -> None:
        """Close everything; what still runs is cut."""
        self.hedger.configure(None)
        self.dispatcher.queue.close()
        await self.http1.aclose()
        await self.http2.aclose()
        self.http1.pumps.close()
        self._copier.close()
        self.monitor.close()


def load_sample(
    meter: Meter, snapshot: PoolSnapshot, open_inferences: int, queued: int = 0
) -> LoadSample:
    """How much was asked, and who there is to answer."""
    count, seconds, refused = 0, 0.0, 0
    for traffic in meter.traffic:
        for usage in tuple(traffic.operations.values()):
            if usage.kind is OperationKind.INFERENCE:
                count += sum(usage.durations.counts)
                seconds += usage.durations.sum
        for reason, times in tuple(traffic.inference_reasons.items()):
            if reason in _MENDED_BY_BACKENDS:
                refused += times
    backends = set[Backend]()
    weight = 0.0
    for protocol in AppProtocol:
        for backend in snapshot.ready(protocol):
            if backend not in backends:
                backends.add(backend)
                weight += backend.spec.weight * backend.share
    return LoadSample(
        answered=max(0, count - refused),
        seconds=seconds,
        refused=refused,
        open=open_inferences,
        weight=weight,
        backends=len(backends),
        queued=queued,
    )
