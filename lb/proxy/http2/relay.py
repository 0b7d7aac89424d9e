"""The gRPC data plane: what makes its connections, calls and attempts, and their life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.kserve.operations import MODEL_INFER, MODEL_STREAM_INFER
from lb.net.timers import Timer
from lb.proxy.exchange import Exchange
from lb.proxy.http2.attempt import TO_CLIENT, GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.client import Http2ClientConnection
from lb.proxy.http2.connection import Http2Connection
from lb.proxy.http2.decisions import Decisions
from lb.proxy.http2.hedge import make_hedge
from lb.proxy.http2.options import Http2Options
from lb.proxy.http2.pool import UpstreamPool
from lb.proxy.http2.recorded import RecordedResponse, recorded_attempt
from lb.proxy.http2.server import Http2ServerConnection
from lb.proxy.http2.shared import Http2Shared
from lb.proxy.http2.split_session import GrpcPart, SplitSession, rows_of_first
from lb.proxy.http2.variant_call import begin_variant
from lb.proxy.parts import RelayParts
from lb.proxy.split import TOO_LARGE
from lb.telemetry.meter import Traffic
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.flow import Payload
from lb.wire.http2.heads import NO_LENGTH, RequestHead

_PARTING_S: Final = 1.0
"""Between two looks at streams with sequences on a backend that is to become empty."""
_CLOSING_TURNS: Final = 100
"""Iterations of the event loop that aborted connections may take to be gone; two do."""


class Http2Relay(Http2Shared):
    """Owns downstream connections, upstream pools, and the list of connections to flush."""

    def __init__(self, parts: RelayParts, traffic: Traffic, options: Http2Options) -> None:
        super().__init__(parts, traffic, options)
        self.pools: dict[Backend, UpstreamPool] = {}
        """Pools that were asked for; see `pool`."""
        self._decisions = Decisions(self)
        self._make_attempt = self._attempt_maker()
        self._parting_timer: Timer | None = None
        self._unsubscribe = self.dispatcher.pool.subscribe(self._on_snapshot)

    def configure(self, options: Http2Options) -> None:
        """Go by other options, and by the gate that the dispatcher has now. Calls under way go on
        as they began; who a client is, and what it was told in SETTINGS, stays what it was when
        it connected."""
        self.use(options)
        self._decisions = Decisions(self)
        self._make_attempt = self._attempt_maker()
        for server in self.servers:
            server.configured()

    def _attempt_maker(self) -> Callable[[Call, Backend, Port, float], GrpcAttempt]:
        return GrpcAttempt if self.options.payloads is None else recorded_attempt

    # What connections and calls ask for

    def decide(self, head: RequestHead) -> Operation:
        """See `Http2Shared`."""
        return self._decisions.decide(head)

    def flush(self) -> None:
        """See `Http2Shared`."""
        # HOT PATH (benchmarks/load). One write per connection and iteration of the loop: flushing
        # after every read instead costs 8 % more CPU per call.
        connection: Http2Connection
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for connection in dirty:
                try:
                    connection.flush()
                    if connection.waiting and not connection.congested:
                        connection.drain_waiting()
                except Exception as error:  # see `on_error`
                    connection.on_error(error)
        if self.closing:
            closing, self.closing = self.closing, []
            for connection in closing:
                if not connection.streams:
                    connection.part()

    def pool(self, backend: Backend) -> UpstreamPool:
        """The connections to a backend."""
        pool = self.pools.get(backend)
        if pool is None:
            pool = self.pools[backend] = UpstreamPool(self, backend)
        return pool

    def place(self, call: Call) -> None:
        """See `Http2Shared`."""
        try:
            attempt = self.placer.place(call, self._make_attempt, self.now, call)
        except RequestRefused as refusal:
            call.refuse(refusal)
            return
        if attempt is not None:
            self.pool(attempt.backend).start(attempt)

    def place_whole(self, call: Call, payload: bytes, size: int) -> None:
        """See `Http2Shared`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `place` for the common unary call; that, and
        # `UpstreamPool.start_whole`, are the reference.
        try:
            attempt = self.placer.place(call, GrpcAttempt, self.now, call)
        except RequestRefused as refusal:
            call.refuse(refusal)
            return
        if attempt is None:
            call.request.push(payload)
            return
        pool = self.pools.get(attempt.backend)
        if pool is None:
            pool = self.pool(attempt.backend)
        connections = pool.connections
        if connections and len((connection := connections[0]).streams) < connection.stream_limit:
            connection.open_whole(attempt, payload, size)
        else:
            pool.start_whole(attempt, payload, size)

    def place_in_turn(self, call: Call) -> None:
        """See `Http2Shared`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `place` is the reference.
        try:
            attempt = self.placer.place(call, self._make_attempt, self.now, call)
        except RequestRefused as refusal:
            call.refuse(refusal)
            return
        if attempt is None:
            return
        pool = self.pools.get(attempt.backend)
        if pool is None:
            pool = self.pool(attempt.backend)
        request = call.request
        waits = request.queue
        if (
            waits is None
            or len(waits) != 1
            or not isinstance(payload := waits[0], bytes)
            or (size := len(payload)) >= COPY_BELOW
            or not (request.ended and call.head.facts.is_plain)
            or request.trailers
            or call.attempts != 1
            or ((hints := call.hints) is not None and hints.pin is not None)
        ):
            pool.start(attempt)
            return
        waits.popleft()
        self.memory_budget.release(request, size)
        connections = pool.connections
        if connections and len((connection := connections[0]).streams) < connection.stream_limit:
            connection.open_whole(attempt, payload, size)
        else:
            pool.start_whole(attempt, payload, size)

    def sink_of(self, call: Call) -> ResponseSink:
        """See `Http2Shared`."""
        part = call.part
        sink = (part.new_sink() if part is not None else None) or TO_CLIENT
        recording = self.parts.payloads.recording_of(call)
        return sink if recording is None else RecordedResponse(recording, sink)

    def begin_variant(self, call: Call, data: bytes, end_stream: int) -> bool | None:
        """See `Http2Shared`."""
        split = self.dispatcher.variants.sets.get(call.model)
        return split is not None and begin_variant(call, split, data, end_stream)

    def begin_split(self, call: Call, payload: Payload, *, is_all: bool) -> bool | None:
        """See `Http2Shared`."""
        hints = call.hints
        if (
            call.operation is not MODEL_INFER
            or call.guard is not None
            or call.head.facts.content_length != NO_LENGTH
            or (hints is not None and hints.step is not None)
        ):
            return False
        splits = self.dispatcher.splits
        if (
            hints is not None
            and hints.rows > 1
            and not hints.version
            and splits.stays_whole(call.model, hints.rows)
        ):
            return False
        data = b"".join((*(call.request.queue or ()), payload))
        rows = rows_of_first(data, call.model, is_all=is_all)
        if rows is None:
            return None
        size = int.from_bytes(data[1:PREFIX_SIZE], "big")
        plan = splits.plan(call, rows, size)
        is_long = plan is not None and size > plan.rule.max_bytes
        if plan is None or (is_long and not plan.must):
            return False
        call.held_back = False
        if is_long:
            call.fail(Reason.BODY_TOO_LARGE, TOO_LARGE)
            return True
        recording = self.parts.payloads.recording_of(call)
        if recording is not None:
            recording.forget()  # the session takes the call from it
        SplitSession(call, plan).take(payload, int(is_all))
        return True

    def start(self, attempt: GrpcAttempt) -> None:
        """See `Http2Shared`."""
        self.pool(attempt.backend).start(attempt)

    # Life

    def server_protocol(self) -> Http2ServerConnection:
        """A protocol for one accepted connection."""
        return Http2ServerConnection(self)

    def _on_snapshot(self, snapshot: PoolSnapshot) -> None:
        """Close idle connections to backends that get nothing new, so that they can exit."""
        eligible = snapshot.usable(AppProtocol.GRPC)
        present = set(snapshot.backends)
        for backend, pool in tuple(self.pools.items()):
            if backend not in eligible:
                pool.retire_all()
            if pool.port.may_hang:
                pool.leave_hung()
            if backend not in present and pool.is_empty:
                del self.pools[backend]
        if snapshot.parting and self._parting_timer is None:
            self._leave_parting()

    def _leave_parting(self) -> None:
        """Have streams leave backends that are to become empty; look again while there are any."""
        self._parting_timer = None
        self.now = self.clock()
        pools = [self.pools.get(backend) for backend in self.dispatcher.pool.current.parting]
        attempts = [each for pool in pools if pool is not None for each in pool.attempts()]
        for attempt in attempts:
            attempt.leave_parting()
        if attempts:
            self._parting_timer = self.timers.after(_PARTING_S, self._leave_parting)

    def under_way(self) -> list[Exchange]:
        """Calls with an attempt that has not ended."""
        attempts = (attempt for pool in self.pools.values() for attempt in pool.attempts())
        return [each.exchange for each in attempts if each.exchange.attempt is each]

    def open_exchanges(self) -> Iterator[Exchange]:
        """Calls that have begun and are not finished."""
        for server in self.servers:
            for pipe in server.streams.values():
                owner = pipe.owner
                call = owner.call if isinstance(owner, CallPart) else owner
                if call is not None and not call.finished:
                    yield call

    def stuck(self) -> list[GrpcAttempt]:
        """Attempts under way on backends that are down because they are silent."""
        pools = [pool for pool in self.pools.values() if pool.port.may_hang]
        return [each for pool in pools for each in pool.attempts() if each.is_given_up]

    def without_token(self) -> list[Call]:
        """Streams of inferences whose token is valid no more."""
        gate = self.dispatcher.gate
        wholes = {each.whole for each in self.under_way()}
        return [
            whole
            for whole in wholes
            if isinstance(whole, Call)
            and whole.operation is MODEL_STREAM_INFER
            and gate.has_revoked(whole.credentials)
        ]

    def leave_streams(self, backend: Backend, model: bytes) -> None:
        """End the streams at a backend that have asked it for a model, as soon as all is answered
        that they were asked. Their clients go on."""
        pool = self.pools.get(backend)
        if pool is None:
            return
        self.now = self.clock()
        for attempt in pool.attempts():
            if attempt.has_used(model):
                attempt.leave_stream()

    def models_streamed(self) -> set[bytes]:
        """Models on demand that streams under way have used since this was asked last."""
        wholes = {each.whole for each in self.under_way()}
        parts = [each.part for each in wholes if isinstance(each, Call)]
        return {model for part in parts if part is not None for model in part.models_used()}

    def owing(self) -> list[Http2ClientConnection]:
        """Connections to backends over which answers are to come, or acknowledgements of what a
        call sent before it was ended; whoever waits for the first SETTINGS has a limit for it."""
        connections = (
            connection for pool in self.pools.values() for connection in pool.all_links()
        )
        return [connection for connection in connections if connection.greeted.done()]

    def hedge(self, exchange: Exchange) -> GrpcAttempt | None:
        """Send a unary request to a second backend; None where that cannot be."""
        if isinstance(exchange, GrpcPart):
            self.now = self.clock()
            return exchange.begin_hedge()
        if not isinstance(exchange, Call) or exchange.request.retained is None:
            return None
        self.now = self.clock()
        try:
            attempt = self.placer.place_beside(exchange, make_hedge, self.now)
        except RequestRefused:
            return None
        request = attempt.request
        # Its sender was credited for it before.
        request.replayed = sum(map(len, exchange.request.retained))
        if all(request.push(piece) for piece in exchange.request.retained):
            self.pool(attempt.backend).start(attempt)
        return attempt if attempt.outcome is None else None

    def cancel_hedge(self, exchange: Exchange) -> None:
        """End the second attempt of a call."""
        if isinstance(exchange, Call | GrpcPart):
            self.now = self.clock()
            exchange.cancel_hedge()

    def cut(self, backend: Backend) -> None:
        """Close all connections to a backend, whatever runs over them."""
        pool = self.pools.pop(backend, None)
        if pool is not None:
            pool.close()

    def renew(self, backend: Backend) -> None:
        """Begin no call any more on connections that stand to a backend: its name leads elsewhere
        now."""
        pool = self.pools.get(backend)
        if pool is not None:
            pool.retire_all()

    @property
    def upstream_connections(self) -> int:
        """Open connections to backends."""
        return sum(len(pool) for pool in self.pools.values())

    def begin_drain(self) -> None:
        """Ask every client to open no new streams; those that run finish."""
        self.draining = True
        for server in tuple(self.servers):
            server.begin_drain()
        self.dispatcher.pool.announce()  # those who watch health end

    async def aclose(self) -> None:
        """Close everything, calls that still run included."""
        self._unsubscribe()
        for server in tuple(self.servers):
            server.abort()
        for pool in self.pools.values():
            pool.close()
        # connection_lost comes in the next iterations of the loop.
        for _ in range(_CLOSING_TURNS):
            for server in tuple(self.leaving):
                server.drop(len(server.streams))
            if not self.servers and not self.upstream_connections:
                return
            await asyncio.sleep(0)
