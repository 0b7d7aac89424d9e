"""Builds relays for tests and benchmarks, without a control plane.

This is the only module of tests outside of `tests/unit` that knows of which classes a relay is made
(`tests/architecture/test_guards.py`). A test gets listening sockets or protocol factories, gives
options as plain values, and sees only what a `Relay` tells: records of finished requests, counters,
gauges. What a `Relay` has under `parts` is for unit tests and for modules of `tests/fakes`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from lb.access.gate import Gate
from lb.balancing.policies import make_policy
from lb.balancing.scheduler import Scheduler
from lb.balancing.sequences import OpenSequence
from lb.comparison.pairs import Rules
from lb.domain.backend import (
    Address,
    AppProtocol,
    Backend,
    BackendKind,
    BackendSpec,
    BackendTls,
    parse_address,
)
from lb.domain.errors import RequestRefused
from lb.domain.fault import Fault
from lb.domain.hedge import HedgeRules
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome
from lb.domain.pool import (
    ModelRoute,
    OutcomeSink,
    PassiveHealthSink,
    Placement,
    Policy,
    PoolRef,
    PoolSnapshot,
)
from lb.domain.schedule import ModelBackendView, Ticket
from lb.domain.sequence import Question, SequenceKey, SequenceStep
from lb.net.ask.backend_client import BackendClient
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.iteration import IterationBudget
from lb.net.splice import Pumps
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.payloads.log import PayloadLog, PayloadRules
from lb.payloads.writer import PayloadWriter
from lb.proxy.attempt_scan import AttemptCheck, AttemptScan
from lb.proxy.attempt_timeout import AttemptTimeout, AttemptTimes
from lb.proxy.dead_peers import DeadPeerDetector
from lb.proxy.dispatch import Dispatcher, DispatchOptions, NoPassiveHealth
from lb.proxy.exchange import Attempt, Exchange, RoutingHints
from lb.proxy.fan_out.account import AnswerAccount
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.hedging import Hedger
from lb.proxy.http1.client import Http1ClientConnection
from lb.proxy.http1.heads import HeadReader
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http2.client import Http2ClientConnection
from lb.proxy.http2.options import Http2Options
from lb.proxy.http2.relay import Http2Relay
from lb.proxy.http2.server import Http2ServerConnection
from lb.proxy.monitor import Monitor
from lb.proxy.parts import RelayParts
from lb.proxy.queue import Queue, QueueOptions
from lb.proxy.reruns import RerunLimits
from lb.proxy.retry import Misplaced
from lb.proxy.shadow import ShadowOptions, ShadowRules, Shadows
from lb.proxy.silent_backends import SilentBackends
from lb.proxy.slow_clients import SlowClients
from lb.proxy.sniff import Sniffer
from lb.proxy.split import SplitRule
from lb.proxy.steps import SequenceRules
from lb.proxy.tracing import Tracer, TraceRules
from lb.proxy.variants import NameRules, VariantOptions, VariantRules
from lb.telemetry.counts import SplitCounts
from lb.telemetry.meter import Meter, Traffic
from lb.telemetry.record import RequestRecord, RequestSink, combine
from lb.telemetry.sampling import both
from lb.wire.http1.limits import HeadLimits
from lb.wire.http2.flow import Pipe
from lb.wire.memory_budget import MemoryBudget
from lb.wire.trace_context import Traces
from tests.fakes.clock import FakeLoop
from tests.fakes.records import INFER
from tests.reference.http2_receive import receive_plainly

if TYPE_CHECKING:
    from lb.runtime.wiring import LoadBalancer

Clock = Callable[[], float]
Options = Mapping[str, Any]
"""Values of `Http1Options` or `Http2Options`, by name. Unit tests may give the objects."""
MakeTransport = Callable[[asyncio.Protocol], asyncio.Transport]


class FewestInFlight:
    """The plainest policy and picker: the first of the least loaded."""

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self._backends = backends

    def build(self, backends: Sequence[Backend]) -> FewestInFlight:
        return FewestInFlight(backends)

    def pick(self) -> Backend | None:
        free = [backend for backend in self._backends if backend.has_room]
        return min(free, key=lambda backend: backend.in_flight, default=None)


class Outcomes:
    """Remembers what the relay reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Outcome]] = []

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        self.seen.append((backend.name, outcome))


class KeptRecord:
    """A finished request, with what it knows of its attempt and variant while it is told of."""

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.connected_at = record.connected_at
        self.first_byte_at = record.first_byte_at
        self.variant = record.variant

    def __getattr__(self, name: str) -> Any:
        return getattr(self.record, name)


class Finished:
    """Remembers finished requests and counts them as the product does."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.records: list[Any] = []

    def finished(self, record: RequestRecord) -> None:
        self.records.append(KeptRecord(record))
        self.meter.finished(record)


_PLAIN = ModelRoute(
    facts=ModelFacts(is_stateful=False),
    ready_versions=frozenset({b"1"}),
    is_uniform=True,
    is_plain=True,
)


def _http1_options(given: Any) -> Http1Options:
    return given if isinstance(given, Http1Options) else Http1Options(**(given or {}))


def _http2_options(given: Any) -> Http2Options:
    return given if isinstance(given, Http2Options) else Http2Options(**(given or {}))


def named_policy(name: str) -> Policy:
    """A policy of the product, by the name that the configuration uses."""
    return make_policy(name, Random(1))


def new_scheduler() -> Scheduler:
    """The scheduler of the product."""
    return Scheduler()


def head_lookups(limits: HeadLimits) -> tuple[Callable[[bytes], object], Callable[[bytes], object]]:
    """Two ways to look up the head of an HTTP/1.1 request: one for heads that were seen before, and
    one that parses the others."""
    reader = HeadReader(limits)
    return reader.known_request, reader.request


def snapshot_of(backends: Sequence[Backend], generation: int = 1) -> PoolSnapshot:
    """All of `backends` eligible, each on the ports that it has.

    The models m and simple are known to be stateless. Nothing is known of other models.
    """
    policy = FewestInFlight()
    placements = []
    for protocol in AppProtocol:
        eligible = tuple(b for b in backends if b.ports[protocol] is not None)
        picker = policy.build(eligible) if eligible else None
        placements.append(Placement(eligible, picker, policy))
    routes = {b"m": _PLAIN, b"simple": _PLAIN}
    return PoolSnapshot(generation, tuple(backends), (placements[0], placements[1]), routes)


class RecordedFanOut:
    """Answers every fan-out request with `reply`, once `may_answer` is set."""

    def __init__(self, reply: FanOutReply, memory_budget: MemoryBudget | None = None) -> None:
        self.reply = reply
        self.memory_budget = MemoryBudget(1 << 30) if memory_budget is None else memory_budget
        self.questions: list[FanOutRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        """See `lb.proxy.fan_out.question.FanOut`."""
        self.questions.append(question)
        account = AnswerAccount(self.memory_budget)
        account.keep(len(question.body))
        try:
            await self.may_answer.wait()
        finally:
            account.close()
        return self.reply


# What a test sees


@dataclass(frozen=True, slots=True)
class ClientStream:
    """An open HTTP/2 stream of a client."""

    held: int
    """Bytes of the response that wait for the client."""
    window: int
    """Bytes of the response that its backend may send beyond what the client has taken."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """An open connection of a client, as it is when a test asks for it."""

    transport: asyncio.Transport
    is_paused: bool
    """The transport has asked us to write no more."""
    is_busy: bool
    """A request is under way. HTTP/1.1 only."""
    is_answering: bool
    """The head of the response has been sent. HTTP/1.1 only."""
    has_ended: bool
    """The client has closed its direction. HTTP/1.1 only."""
    is_leaving: bool
    """The connection is closed after the next response. HTTP/1.1 only."""
    streams: tuple[ClientStream, ...] = ()
    """Those that are open. HTTP/2 only."""


@dataclass(frozen=True, slots=True)
class Http2Facts:
    """The state of one HTTP/2 connection of a relay."""

    last_peer_stream: int
    """The last stream that the peer opened."""
    next_stream: int
    """The next stream that we would open; 0 towards clients."""
    streams: Mapping[int, Pipe[Any]]
    """What comes in on each open stream."""
    credit: int
    """Bytes that the peer's connection window lets us send."""
    owed: int
    """Bytes of our connection window that the peer has used and not got back."""
    is_paused: bool
    """The transport has asked us to write no more."""
    waiting: int
    """Streams with payload that waits for the connection."""

    def carried(self, stream: int) -> tuple[int, int]:
        """Bytes that a request and its response have carried so far."""
        record: Any = self.streams[stream].owner
        return record.bytes_in, record.bytes_out


class QueueView:
    """The queue of a relay."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __len__(self) -> int:
        """Queued requests."""
        return len(self._dispatcher.queue)

    def configure(self, **options: Any) -> None:
        """Go by these values of `QueueOptions`, and by the defaults of the others."""
        self._dispatcher.queue.configure(QueueOptions(**options))

    def tickets(self) -> list[Ticket]:
        """The tickets of queued requests."""
        return list(self._dispatcher.queue.waiting())

    @property
    def reserved(self) -> int:
        """Bytes that queued requests may come to hold."""
        return self._dispatcher.queue._held

    @property
    def positions(self) -> dict[bytes, int]:
        """The sum of the positions at which requests were queued, by model."""
        return {model: each.sum for model, each in self._dispatcher.queue.positions.items()}

    @property
    def wait_reasons(self) -> dict[tuple[bytes, str], int]:
        """How many requests had to wait, by model and why."""
        return dict(self._dispatcher.queue.wait_reasons)

    @property
    def awaited(self) -> set[bytes]:
        """The models of requests that wait for a backend or a load."""
        return set(self._dispatcher.queue.models_awaited())

    def note_wanted(self) -> list[bytes]:
        """The models that requests wait for from now on, one entry for each request."""
        wanted: list[bytes] = []
        self._dispatcher.placer.wanted = lambda model, *_: wanted.append(model)
        return wanted

    def model_backends(self) -> list[ModelBackendView]:
        """What is known of each scheduled model on each backend."""
        return list(self._dispatcher.queue.scheduler.model_backends())

    @property
    def in_flight(self) -> list[int]:
        """Scheduled requests that run, for each model on each backend."""
        return [lane.in_flight for lane in self.model_backends()]


class _Turns:
    """When queued requests begin, if that is said by hand. Timers never fire."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> _Turns:
        """See `lb.proxy.queue.Later`."""
        if not delay_s:
            self._due.append(call)
        return self

    def cancel(self) -> None:
        """Of a timer."""

    def give(self) -> None:
        """Have those begin that are due."""
        while self._due:
            self._due.pop()()


class HedgeView:
    """The hedges of a relay."""

    def __init__(self, hedger: Hedger, dispatcher: Dispatcher) -> None:
        self._hedger = hedger
        self._dispatcher = dispatcher

    def learn(self, model: bytes, took_s: float, times: int) -> None:
        """Responses of a model have taken so long."""
        for _ in range(times):
            self._dispatcher.blame.durations.add(model, took_s)

    def stop(self) -> None:
        """Send no hedges any more, and end those under way."""
        self._hedger.configure(None)

    def __len__(self) -> int:
        """Hedges under way."""
        return len(self._hedger)

    @property
    def count(self) -> int:
        """Hedges sent so far."""
        return self._hedger.count

    @property
    def won(self) -> int:
        """Hedges that answered first."""
        return self._hedger.won


# Reference forms of HTTP/2 connections: plain where the product has a short way


class SingleFrameServer(Http2ServerConnection):
    """Sends every frame by itself."""

    __slots__ = ()

    def run_room(self, pipe: Pipe[Any], length: int) -> int:
        return 0


class SingleFrameClient(Http2ClientConnection):
    """Sends every frame by itself."""

    __slots__ = ()

    def run_room(self, pipe: Pipe[Any], length: int) -> int:
        return 0


class PlainServer(Http2ServerConnection):
    """Knows no short way for whole small messages."""

    __slots__ = ()

    def receive(self, data: bytes) -> None:
        receive_plainly(self, data)

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        return 0


class PlainClient(Http2ClientConnection):
    """Knows no short way for whole small messages."""

    __slots__ = ()

    def receive(self, data: bytes) -> None:
        receive_plainly(self, data)

    def take_whole(self, data: bytes, pos: int, stream_id: int, block: bytes) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Form:
    """How the connections of a relay are made."""

    server: Callable[..., Http2ServerConnection] = Http2ServerConnection
    client: Callable[..., Http2ClientConnection] = Http2ClientConnection


USUAL = Form()
SINGLE_FRAMES = Form(SingleFrameServer, SingleFrameClient)
WITHOUT_SHORT_WAYS = Form(PlainServer, PlainClient)


def counts_runs() -> tuple[Form, Callable[[], int]]:
    """A form that counts the frames that pass in runs toward clients, and the count."""

    class Counting(Http2ServerConnection):
        __slots__ = ()
        runs = 0

        def send_run(self, pipe: Pipe[Any], pieces: Any, length: int) -> None:
            Counting.runs += len(pieces)
            super().send_run(pipe, pieces, length)

    return Form(Counting), lambda: Counting.runs


# Relays


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes that a relay is made of; not for tests that are to outlive them."""

    dispatcher: Dispatcher
    http1: Http1Relay
    http2: Http2Relay


class Relay:
    """A relay for both protocols over fixed backends. Needs a running loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        http1: Options | None = None,
        http2: Options | None = None,
        snapshot: PoolSnapshot | None = None,
        ceiling: int = 2**28,
        gate: Gate | None = None,
        clock: Clock = time.monotonic,
        timers: TimerWheel | None = None,
        retry_loop: asyncio.AbstractEventLoop | None = None,
        form: Form = USUAL,
        identity: bytes = b"",
        forgets: bool = False,
        sink: RequestSink | None = None,
        queue_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """
        Args:
            backends: those of the pool.
            http1: values of `Http1Options`.
            http2: values of `Http2Options`.
            snapshot: the pool at first; otherwise that of `snapshot_of`.
            ceiling: bytes that may be held.
            gate: who may do what.
            clock: of the data plane; monotonic seconds.
            timers: other ones than those of the running loop.
            retry_loop: waits before retries instead of the running loop, always equally long.
            form: of HTTP/2 connections.
            identity: ours in hop markers; empty: requests get none.
            forgets: finished requests are counted alone, and outcomes are not remembered.
            sink: is told of finished requests instead of us.
            queue_loop: has the clock and the timers of queued requests instead of the running loop.
        """
        self.backends = backends
        self.pool = PoolRef(snapshot or snapshot_of(backends))
        self.outcomes = Outcomes()
        self.finished = Finished()
        self.memory_budget = MemoryBudget(ceiling)
        self.timers = TimerWheel(asyncio.get_running_loop()) if timers is None else timers
        self.tasks = TaskOwner()
        self._judges = _Judges()
        self.misplaced: Misplaced = lambda backend, model, version: None
        """Is told of a backend, a model and a version that it says it does not have ready."""
        dispatcher = Dispatcher(
            self.pool,
            _IgnoredOutcomes() if forgets else self.outcomes,
            sink or (self.finished.meter if forgets else self.finished),
            clock=clock,
            memory_budget=self.memory_budget,
            gate=gate,
            identity=identity,
            passive_health=self._judges,
            misplaced=lambda backend, model, version: self.misplaced(backend, model, version),
            reruns=None
            if retry_loop is None
            else RerunLimits(
                self.pool, retry_loop.time, schedule=retry_loop.call_later, rng=Random(1)
            ),
            queue=None
            if queue_loop is None
            else Queue(
                Scheduler(),
                self.pool,
                queue_loop.time,
                self.memory_budget,
                later=queue_loop.call_later,
            ),
        )
        loop = asyncio.get_running_loop()
        self.payload_log = PayloadLog(self.memory_budget, loop.call_soon_threadsafe, Random(1))
        self._copier = BackendClient(clock=clock)
        self.shadows = Shadows(
            self.pool,
            self.memory_budget,
            self._copier,
            self.tasks,
            Random(1),
            clock=clock,
            queued=lambda: len(dispatcher.queue),
        )
        shared = RelayParts(
            loop=loop,
            dispatcher=dispatcher,
            timers=self.timers,
            memory_budget=self.memory_budget,
            tasks=self.tasks,
            iteration=IterationBudget(loop),
            connection_limiter=ConnectionLimiter(),
            tls=ClientTlsBook(),
            pumps=Pumps(loop),
            payloads=self.payload_log,
            shadows=self.shadows,
        )
        traffic = self.finished.meter.traffic
        self.parts = Parts(
            dispatcher,
            Http1Relay(shared, traffic[AppProtocol.HTTP], _http1_options(http1)),
            Http2Relay(shared, traffic[AppProtocol.GRPC], _http2_options(http2)),
        )
        self.form = form
        self.flush = self.parts.http2.flush
        """Writes what HTTP/2 connections have collected, as at the end of a loop iteration. Not a
        method, since benchmarks count calls."""
        self.queue = QueueView(dispatcher)
        self._attempt_checks: list[AttemptCheck] = []
        self._watches_peers = False
        http1 = self.parts.http1
        self.monitor = Monitor(
            retry_loop or asyncio.get_running_loop(),
            http1.iteration,
            dispatcher,
            (
                AttemptScan(self._under_way, self._attempt_checks),
                SlowClients(dispatcher.queue, self.pool, self._under_way),
                DeadPeerDetector(self._owing),
                SilentBackends(self.parts.http2.stuck),
                http1.paused_clients,
            ),
        )

    def trace(
        self,
        *,
        ratio: float = 0.0,
        trusts_all: bool = True,
        spans_per_s: int = 10**6,
        contexts: Traces = Traces.STRIP,
    ) -> Tracer:
        """Trace requests from now on. Arguments as in `TraceRules`, and what becomes of trace
        contexts."""
        http1, http2, dispatcher = self.parts.http1, self.parts.http2, self.parts.dispatcher
        rules = TraceRules(ratio=ratio, trusts_all=trusts_all, spans_per_s=spans_per_s)
        tracer = dispatcher.tracer
        tracer.configure(rules)
        dispatcher.placer.tracer = tracer
        dispatcher.accounts.configure(dispatcher.accounts.requests, tracer)
        http1.configure(replace(http1.options, traces=contexts))
        http2.configure(replace(http2.options, traces=contexts))
        http1.draw = tracer.draw
        http2.draw = both(tracer.draw, self.payload_log.draw)
        return tracer

    def log_payloads(self, rules: PayloadRules, writer: PayloadWriter) -> None:
        """Log payloads, as the option `payloads` asks for it."""
        self.payload_log.configure(rules, writer)
        self.parts.http2.draw = both(self.parts.dispatcher.tracer.draw, self.payload_log.draw)
        accounts = self.parts.dispatcher.accounts
        accounts.configure(combine(accounts.requests, self.payload_log), accounts.tracer)

    # Variants

    def use_variants(
        self,
        name: bytes,
        *variants: Mapping[str, Any],
        header: bytes = b"",
        rollback: tuple[float | None, float | None, int] | None = None,
    ) -> None:
        """Have variants serve a name, which is to be among `variant_names` of the options.

        Args:
            name: that clients use.
            variants: values of `VariantRules`.
            header: by which clients are told apart.
            rollback: as in `NameRules`.
        """
        rules = NameRules(
            variants=tuple([VariantRules(**each) for each in variants]),
            header=header,
            rollback=rollback,
        )
        self.parts.dispatcher.variants.configure(VariantOptions(names={name: rules}))

    def use_shadow(
        self,
        name: bytes,
        model: bytes,
        version: bytes,
        *,
        noise: bool = False,
        compare: Rules | None = None,
    ) -> None:
        """Copy all inferences for a name that has variants to a model, two at a time. Bodies have
        1 MiB at most. With `noise`, some are copied to the model in service too."""
        rules = ShadowRules(
            model=model,
            version=version,
            share=1.0,
            max_concurrent=2,
            timeout_s=30.0,
            p99=1.2,
            noise=noise,
            compare=compare,
        )
        self.shadows.configure(ShadowOptions(names={name: rules}, max_body_bytes=2**20))

    def split(self, model: bytes, max_rows: int, **rule: Any) -> None:
        """Cut batches of a model, on connections that are made from now on.

        Args:
            model: that all backends have.
            max_rows: of one execution.
            rule: values of `SplitRule`, beside the usual limits.
        """
        snapshot = self.pool.current
        route = snapshot.routes[model]
        route = replace(route, facts=replace(route.facts, max_rows=max_rows))
        self.pool.publish(replace(snapshot, routes={**snapshot.routes, model: route}))
        limits = {"at_once": 8, "max_bytes": 2**26, **rule}
        self.parts.dispatcher.splits.configure({model: SplitRule(**limits)})
        models = frozenset({model})
        http1, http2 = self.parts.http1, self.parts.http2
        http1.configure(replace(http1.options, split_models=models))
        http2.configure(replace(http2.options, split_models=models))

    def divide_batches(self, *parts: int) -> None:
        """Divide batches of scheduled models into parts of so many rows, as if that were best."""
        self.parts.dispatcher.splits._divider = _FixedDivision(parts)

    @property
    def split_counts(self) -> SplitCounts:
        """Of batches that were cut."""
        return self.parts.dispatcher.splits.counts

    def variant_counts(self) -> list[tuple[int, int]]:
        """Answers and errors of each variant."""
        statuses = self.parts.dispatcher.variants.statuses()
        return [(each.answers, each.errors) for each in statuses]

    def variant_waits(self) -> list[float]:
        """How long clients waited for the first variant until they gave up, in milliseconds. It is
        to be judged."""
        split = next(iter(self.parts.dispatcher.variants.sets.values()))
        return [round(1000 * each) for each in split.variants[0].recent.waits]

    def variant_durations(self) -> list[float]:
        """The sum of the durations of each variant's good answers, in milliseconds."""
        statuses = self.parts.dispatcher.variants.statuses()
        return [round(1000 * each.durations.sum) for each in statuses]

    # Connections without sockets

    def server_protocol(self, protocol: AppProtocol) -> asyncio.Protocol:
        """The protocol of one accepted connection."""
        if protocol is AppProtocol.HTTP:
            return self.parts.http1.server_protocol()
        return self.form.server(self.parts.http2)

    def sniffing_protocol(self) -> asyncio.Protocol:
        """The protocol of one connection that was accepted on a port for both protocols."""
        http1, http2 = self.parts.http1, self.parts.http2
        return Sniffer(http1.server_protocol, http2.server_protocol, self.timers, 10.0)()

    def backend_protocol(
        self,
        backend: Backend,
        protocol: AppProtocol,
        transport_of: MakeTransport,
        *,
        is_reused: bool = False,
    ) -> asyncio.Protocol:
        """The protocol of an idle connection to a backend, as if it had just been dialled.

        An HTTP/1.1 connection may also count as one that has served requests before.
        """
        if protocol is AppProtocol.HTTP:
            relay = self.parts.http1
            connection = Http1ClientConnection(relay, backend, backend.port(protocol))
            connection.connection_made(transport_of(connection))
            connection.is_reused = is_reused
            relay.upstreams.put(connection)
            return connection
        pool = self.parts.http2.pool(backend)
        connection = self.form.client(pool)
        connection.connection_made(transport_of(connection))
        self.flush()
        pool.discard(connection)  # it waits for its greeting no more
        pool.connections.append(connection)
        return connection

    def stand_still(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use another event loop from now on: for benchmarks, one that does nothing."""
        self.parts.http1.loop = self.parts.http2.loop = loop

    def take_turns(self) -> Callable[[], None]:
        """Have queued requests begin only when what is returned is called: for benchmarks, at the
        end of a loop iteration."""
        turns = _Turns()
        self.parts.dispatcher.queue._later = turns.later
        return turns.give

    def read_on(self, connection: Any) -> None:
        """Go on with a long read on an HTTP/2 connection, as in the next loop iteration."""
        connection.relay.iteration.renew()

    def _side(self, protocol: AppProtocol) -> Http1Relay | Http2Relay:
        return self.parts.http1 if protocol is AppProtocol.HTTP else self.parts.http2

    # What a test sees

    def http2_facts(self, connection: Any) -> Http2Facts:
        """The state of an HTTP/2 connection."""
        return Http2Facts(
            last_peer_stream=connection.last_peer_id,
            next_stream=connection.next_id if isinstance(connection, Http2ClientConnection) else 0,
            streams=connection.streams,
            credit=connection.credit,
            owed=connection.owed,
            is_paused=connection.congested,
            waiting=len(connection.waiting),
        )

    def serving(self, connection: Any) -> object | None:
        """The request that an HTTP/1.1 connection to a backend serves, to be compared alone."""
        found: object | None = connection.attempt
        return found

    def evict(self, connection: Any) -> None:
        """Cut a client's HTTP/1.1 connection for want of memory, as the memory budget does."""
        connection.evict()

    @property
    def open_requests(self) -> int:
        """Requests that have begun and not finished."""
        return self.parts.dispatcher.open_exchanges

    @property
    def in_flight(self) -> int:
        """Attempts under way at all backends."""
        return sum(backend.in_flight for backend in self.backends)

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return self.parts.http1.upstream_connections + self.parts.http2.upstream_connections

    @property
    def idle_upstreams(self) -> int:
        """Open HTTP/1.1 connections to backends that serve no request."""
        return len(self.parts.http1.upstreams)

    @property
    def upstream_transports(self) -> list[asyncio.Transport]:
        """The transports of connections to backends."""
        pools = self.parts.http2.pools.values()
        connections = [connection for pool in pools for connection in pool.all_links()]
        both = (*self.parts.http1.upstreams.open, *connections)
        return [each.transport for each in both if each.transport]

    @property
    def clients(self) -> list[ClientView]:
        """Open connections of clients."""
        views = [
            ClientView(
                transport=server.transport,
                is_paused=server.is_full,
                is_busy=server.exchange is not None,
                is_answering=server.exchange is not None and server.exchange.response_begun,
                has_ended=server.eof,
                is_leaving=server.is_leaving,
            )
            for server in self.parts.http1.servers
            if server.transport is not None
        ]
        return views + [
            ClientView(
                transport=connection.transport,
                is_paused=connection.congested,
                is_busy=bool(connection.streams),
                is_answering=False,
                has_ended=False,
                is_leaving=False,
                streams=tuple(
                    ClientStream(pipe.opposite.held, pipe.opposite.window_size)
                    for pipe in connection.streams.values()
                ),
            )
            for connection in self.parts.http2.servers
            if connection.transport is not None
        ]

    @property
    def client_connections(self) -> int:
        """Connections of clients that are not closed yet."""
        return len(self.parts.http1.servers) + len(self.parts.http2.servers)

    @property
    def unread_clients(self) -> int:
        """HTTP/1.1 clients that nothing is read from while their requests are queued."""
        return len(self.parts.http1.paused_clients)

    @property
    def begun_blocks(self) -> int:
        """HTTP/2 clients of whose next header block only a part has come."""
        return sum(any(server.begun()) for server in self.parts.http2.servers)

    @property
    def pumps(self) -> int:
        """Long bodies that the kernel moves from socket to socket."""
        return self.parts.http1.pumps.running

    @property
    def answer_window(self) -> int:
        """Bytes of a response that a backend may send beyond what its client has taken. HTTP/2."""
        return self.parts.http2.options.answer_window

    @property
    def stream_window_max(self) -> int:
        """Bytes that the window of a client's stream may grow to. HTTP/2."""
        return self.parts.http2.options.stream_window_max

    @property
    def blocked_models(self) -> bool:
        """Whether a model is suspected to have killed a backend."""
        return bool(self.parts.dispatcher.reruns.poison_models.seen)

    @property
    def open_sequences(self) -> int:
        """Sequences that are bound to a backend."""
        return len(self.parts.dispatcher.steps.table)

    def have_others_asked(self, question: Question) -> None:
        """Have steps of unknown sequences wait for the answer of other processes."""
        self.parts.dispatcher.steps.table.ask = lambda: question

    def hear_of_sequence(self, model: bytes, sequence: int, backend: Backend) -> None:
        """Another process tells of a sequence that it has begun."""
        dispatcher = self.parts.dispatcher
        news = OpenSequence(SequenceKey(model, sequence), backend.name, lifetime_s=60.0)
        dispatcher.steps.table.adopt(news, backend, dispatcher.clock())

    def sweep_sequences(self, later_s: float) -> None:
        """Forget the sequences that will have expired then, as the sweep of every second does."""
        dispatcher = self.parts.dispatcher
        dispatcher.steps.table.sweep(dispatcher.clock() + later_s, 1000)

    def home_of(self, model: bytes, sequence: int) -> Backend | None:
        """The backend that a sequence is bound to."""
        return self.parts.dispatcher.steps.table.backend_of(SequenceKey(model, sequence))

    def leftovers(self) -> dict[str, int]:
        """Everything that must be zero when no request is under way."""
        http1, http2 = self.parts.http1, self.parts.http2
        return {
            "open": self.open_requests,
            "held": self.memory_budget.held,
            "holders": len(self.memory_budget),
            "in_flight": self.in_flight,
            "tasks": len(self.tasks),
            "busy": sum(server.exchange is not None for server in http1.servers),
            "not pooled": http1.upstream_connections - len(http1.upstreams),
            "pumps": http1.pumps.running,
            "stored": http1.pumps.store.pipes,
            "streams": sum(len(server.streams) for server in http2.servers),
        }

    def is_clean(self) -> bool:
        """Whether no request left anything behind."""
        return not any(self.leftovers().values())

    # What a test changes

    def begin_drain(self) -> None:
        """Ask clients to leave."""
        self.parts.http1.begin_drain()
        self.parts.http2.begin_drain()

    def leave_streams(self, number: int, model: bytes) -> None:
        """A backend is to unload a model."""
        self.parts.http2.leave_streams(self.backends[number], model)

    def use_identity(self, identity: bytes) -> None:
        """Have another identity in hop markers."""
        self.parts.dispatcher.identity = identity
        for side in (self.parts.http1, self.parts.http2):
            side.configure(side.options)

    def announce_exit(self) -> None:
        """Answer questions about readiness as a process that shuts down."""
        self.parts.dispatcher.exiting = True

    @property
    def max_attempts(self) -> int:
        """At backends, for one request."""
        return self.parts.dispatcher.retry.rules.max_attempts

    @max_attempts.setter
    def max_attempts(self, count: int) -> None:
        self._retry(max_attempts=count)

    def run_once(self, *models: bytes) -> None:
        """Requests for these models must not run twice."""
        self._retry(never=frozenset(models))

    def allow_retries(self, per_s: float) -> None:
        """Of requests that may have run: so many a second, however many requests there are."""
        self._retry(share=0.0, floor=per_s)

    def _retry(self, **rules: Any) -> None:
        retry = self.parts.dispatcher.retry
        retry.configure(replace(retry.rules, **rules))

    @property
    def judge(self) -> PassiveHealthSink:
        """Who is told how requests fare, as passive health is in the product."""
        return self._judges.judge

    @judge.setter
    def judge(self, judge: PassiveHealthSink) -> None:
        self._judges.judge = judge

    def record_fan_out(self, **reply: Any) -> RecordedFanOut:
        """Answer requests that concern all backends with `reply`, without asking any."""
        recorded = RecordedFanOut(FanOutReply(**reply))
        for relay in (self.parts.http1, self.parts.http2):
            relay.parts = replace(relay.parts, fan_out=recorded)
        return recorded

    def limit_age(self, limit_s: float) -> None:
        """Close the connections of clients that are open now when they are older."""
        for server in (*self.parts.http1.servers, *self.parts.http2.servers):
            server.limit_age(limit_s)

    def skip_streams(self, at: int, next_id: int) -> None:
        """Have the only HTTP/2 connection to a backend open its next stream with this number."""
        (connection,) = self.parts.http2.pool(self.backends[at]).connections
        connection.next_id = next_id

    def awaits_uploads(self) -> bool:
        """Whether a backend has begun to get a request whose client still sends it."""
        return any(each.is_uploading for each in self.parts.dispatcher.queue.uploads)

    def limit_attempts(self, limit_s: float, at: int = 0) -> None:
        """Give an attempt up that has no response from this backend after so long. The others may
        be as slow as the machine is."""
        self.check_attempts(_BackendTimeout(self.backends[at], limit_s))

    def check_attempts(self, check: AttemptCheck) -> None:
        """Have all attempts checked by one more."""
        self._attempt_checks.append(check)
        self.monitor.wake()

    def hedge(self, rules: HedgeRules) -> HedgeView:
        """Send hedges from now on."""

        def begin(exchange: Any) -> Any:
            return self._side(exchange.protocol).hedge(exchange)

        def cancel(exchange: Any) -> None:
            self._side(exchange.protocol).cancel_hedge(exchange)

        hedger = Hedger(self.parts.dispatcher, begin, cancel)
        hedger.configure(rules)
        self.check_attempts(hedger)
        return HedgeView(hedger, self.parts.dispatcher)

    def watch_unheard(self) -> None:
        """Give connections to backends up over which nothing arrives any more."""
        self._watches_peers = True
        self.monitor.wake()

    def _owing(self) -> list[Any]:
        sides = (self.parts.http1, self.parts.http2) if self._watches_peers else ()
        return [connection for side in sides for connection in side.owing()]

    def _under_way(self) -> list[Any]:
        return [*self.parts.http1.under_way(), *self.parts.http2.under_way()]

    async def aclose(self) -> None:
        """Close all connections, requests under way included."""
        await self.parts.http1.aclose()
        await self.parts.http2.aclose()
        self.parts.http1.pumps.close()
        self._copier.close()
        self.monitor.close()


class Placed:
    """A request that a `Desk` has sent to a backend."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.exchange = attempt.exchange
        self.backend = attempt.backend


class Desk:
    """PositionHistogram requests of a published pool, without connections."""

    def __init__(
        self, pool: PoolRef, outcomes: OutcomeSink, clock: Clock, *, max_sequences: int
    ) -> None:
        self._clock = clock
        self._dispatcher = Dispatcher(
            pool,
            outcomes,
            Finished(),
            clock=clock,
            memory_budget=MemoryBudget(2**20),
            options=DispatchOptions(sequences=SequenceRules(limit=max_sequences)),
        )

    @property
    def open_requests(self) -> int:
        """Requests that have begun and not finished."""
        return self._dispatcher.open_exchanges

    def begin(self, protocol: AppProtocol) -> Placed | None:
        """Begin an inference; None: it was refused."""
        exchange = self._exchange(protocol)
        self._dispatcher.accounts.begin()
        try:
            attempt = self._dispatcher.placer.place(exchange, Attempt)
        except RequestRefused:
            self._dispatcher.accounts.finish(exchange)
            return None
        assert attempt is not None, "nothing is queued"
        return Placed(attempt)

    def answer(self, placed: Placed) -> None:
        """The backend has answered well."""
        now = self._clock()
        self._dispatcher.accounts.attempt_ended(placed.attempt, Outcome.ANSWERED, 200, now)
        self._dispatcher.accounts.finish(placed.exchange, None, now)

    def lose(self, placed: Placed) -> None:
        """The connection to the backend was lost."""
        self._dispatcher.accounts.attempt_ended(placed.attempt, Outcome.LOST)
        self._dispatcher.accounts.finish(placed.exchange)

    def step(self, sequence: SequenceStep) -> Backend | None:
        """Place a step of a sequence, which is answered at once; None: it was refused."""
        exchange = self._exchange(AppProtocol.GRPC)
        exchange.hints = RoutingHints()
        exchange.hints.step = sequence
        try:
            attempt = self._dispatcher.placer.place(exchange, Attempt)
        except RequestRefused:
            return None
        assert attempt is not None, "steps are not queued"
        self._dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 0, self._clock())
        return attempt.backend

    def home_of(self, key: SequenceKey) -> Backend | None:
        """The backend that a sequence is bound to."""
        return self._dispatcher.steps.table.backend_of(key)

    def _exchange(self, protocol: AppProtocol) -> Exchange:
        return Exchange(protocol, INFER, "10.9.9.9:1", self._clock())


class RunningRelay(Relay):
    """A relay with a listener for one protocol on a free port of loopback."""

    def __init__(
        self,
        backends: Sequence[Backend],
        protocol: AppProtocol,
        options: Options,
        ceiling: int,
        gate: Gate | None,
        loop: FakeLoop | None,
    ) -> None:
        is_http = protocol is AppProtocol.HTTP
        super().__init__(
            backends,
            http1=options if is_http else None,
            http2=None if is_http else options,
            ceiling=ceiling,
            gate=gate,
            clock=time.monotonic if loop is None else loop.time,
            timers=None if loop is None else loop.wheel(),
            retry_loop=loop,
            queue_loop=loop,
        )
        self.protocol = protocol
        self.port = 0

    @property
    def target(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def traffic(self) -> Traffic:
        """Counters of the clients' side."""
        return self.finished.meter.traffic[self.protocol]

    def accept(self) -> asyncio.Protocol:
        """The protocol of one accepted connection, for further listeners."""
        return self.server_protocol(self.protocol)

    def configure(self, **options: Any) -> None:
        """Go by these values, and by those in force for the others."""
        side = self._side(self.protocol)
        side.configure(replace(side.options, **options))

    async def until_clean(self) -> None:
        """Wait until nothing of any request is left; without clients, nothing of connections."""
        for _ in range(2000):
            left = self.leftovers()
            if not self.client_connections:
                left["timers"] = len(self.timers)
            if not any(left.values()):
                return
            await asyncio.sleep(0.001)
        raise AssertionError(left)


class _FixedDivision:
    """Divides all batches alike."""

    def __init__(self, parts: tuple[int, ...]) -> None:
        self._parts = parts

    def divide(self, *_: Any) -> tuple[int, ...]:
        """See `Divider`."""
        return self._parts

    def may_divide(self, *_: Any) -> bool:
        """See `Divider`."""
        return True


class _Judges:
    """Tells how requests fare to whom a test names."""

    def __init__(self) -> None:
        self.judge: PassiveHealthSink = NoPassiveHealth()

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """See `PassiveHealthSink`."""
        self.judge.answered(backend, model, took_s, now)

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """See `PassiveHealthSink`."""
        self.judge.failed(backend, model, fault, took_s, now)

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """See `PassiveHealthSink`."""
        self.judge.abandoned(backend, model, waited_s, now)


class _BackendTimeout:
    """Finds the attempts at one backend that are late."""

    may_rest = True

    def __init__(self, backend: Backend, limit_s: float) -> None:
        self._backend = backend
        self._timeout = AttemptTimeout(AttemptTimes(common=limit_s))

    def interval_s(self, now: float) -> float:
        return self._timeout.interval_s(now)

    def begin(self, now: float) -> None:
        self._timeout.begin(now)

    def check(self, exchange: Exchange, since: float, now: float) -> bool:
        return exchange.backend is self._backend and self._timeout.check(exchange, since, now)


class _IgnoredOutcomes:
    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """There is no control plane."""


def lanes_of(product: LoadBalancer) -> list[ModelBackendView]:
    """What a whole product knows of each scheduled model on each backend."""
    return list(product.relay.dispatcher.queue.scheduler.model_backends())


def relay_configuration(product: LoadBalancer) -> dict[str, Any]:
    """What the relay of a whole product was told by its settings, to be compared."""
    dispatcher = product.relay.dispatcher
    table, reruns = dispatcher.steps.table, dispatcher.reruns
    return {
        "http1": product.relay.http1.options,
        "http2": product.relay.http2.options,
        "fan_out": product.relay.fan_out.options,
        "kinds": (product.relay.http1.kinds, product.relay.http2.kinds),
        "connection_limiter": (
            product.relay.http1.parts.connection_limiter.limit,
            product.relay.http2.parts.connection_limiter.limit,
        ),
        "retry": dispatcher.retry.rules,
        "traces": dispatcher.tracer.rules,
        "sequences": (dispatcher.steps.rules, table.limit, table.affinity, table.bound),
        "gates": dispatcher.gate is product.access.gate,
        "sink": type(dispatcher.accounts.requests).__name__,
        "budget": (reruns.budget.share, reruns.budget.floor),
        "attempt timeout": product.relay.attempt_timeout.times,
        "hedging": product.relay.hedger.rules,
        "queue": dispatcher.queue.options,
    }


@asynccontextmanager
async def running_relay(
    *targets: str,
    options: Options | None = None,
    ceiling: int = 2**28,
    gate: Gate | None = None,
    tls: BackendTls | None = None,
    loop: FakeLoop | None = None,
) -> AsyncIterator[RunningRelay]:
    """Run a gRPC relay over backends at `targets` (HOST:PORT); `loop` as of an HTTP/1.1 relay."""
    backends = [
        Backend(BackendSpec(name=f"b{number}", grpc=parse_address(target), tls=tls))
        for number, target in enumerate(targets)
    ]
    relay = RunningRelay(backends, AppProtocol.GRPC, options or {}, ceiling, gate, loop)
    async with _listening(relay):
        yield relay


@asynccontextmanager
async def running_http1_relay(
    *targets: Address | str,
    options: Options | None = None,
    ceiling: int = 2**28,
    gate: Gate | None = None,
    kind: BackendKind = BackendKind.TRITON,
    loop: FakeLoop | None = None,
    **spec: Any,
) -> AsyncIterator[RunningRelay]:
    """Run an HTTP/1.1 relay over backends at `targets`.

    Args:
        targets: HOST:PORT, or addresses.
        options: values of `Http1Options`.
        ceiling: bytes that may be held.
        gate: who may do what.
        kind: of the backends.
        loop: has the relay's clock and timers, so that time passes only when the test says so.
        spec: further values of `BackendSpec`.
    """
    backends = [
        Backend(
            BackendSpec(
                name=f"b{number}",
                http=target if isinstance(target, Address) else parse_address(target),
                kind=kind,
                **spec,
            )
        )
        for number, target in enumerate(targets)
    ]
    relay = RunningRelay(backends, AppProtocol.HTTP, options or {}, ceiling, gate, loop)
    async with _listening(relay):
        yield relay


@asynccontextmanager
async def _listening(relay: RunningRelay) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(relay.accept, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        await relay.aclose()
        await relay.tasks.aclose()
        relay.timers.close()
