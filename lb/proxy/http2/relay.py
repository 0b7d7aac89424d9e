"""The gRPC data plane: what its connections share, and their life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import AppProtocol, Backend, BackendKind
from lb.domain.client import NO_PROXIES, Client, TrustedProxies
from lb.domain.errors import RequestRefused
from lb.domain.pool import PoolSnapshot
from lb.kserve.gate import masked
from lb.net.crowd import Crowd
from lb.net.iteration import IterationBudget
from lb.net.tasks import TaskOwner
from lb.net.timers import Timer, TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Exchange
from lb.proxy.fan_out.question import FanOut
from lb.proxy.http2.attempt import GrpcAttempt, second_attempt
from lb.proxy.http2.call import Call
from lb.proxy.http2.client import ClientLink
from lb.proxy.http2.decisions import Decisions
from lb.proxy.http2.models import KnownModels
from lb.proxy.http2.pool import UpstreamPool
from lb.proxy.http2.server import ServerLink
from lb.telemetry.meter import Traffic
from lb.wire.http1.forwarded import CLAIMS
from lb.wire.http2 import frames as fr
from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.budget import client_allowances
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import Pipe
from lb.wire.ledger import Ledger

if TYPE_CHECKING:
    from lb.proxy.http2.link import Link

_SHORT_S: Final = 30.0
"""How long memory may be short without a break before the largest holders give way; as for the
progress of HTTP/1.1 bodies."""
_PARTING_S: Final = 1.0
"""Between two looks at streams with sequences on a backend that is to become empty."""
_CLOSING_TURNS: Final = 100
"""Turns of the event loop that aborted connections may take to be gone; two do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Options:
    """Limits and times of the HTTP/2 side. Bytes and seconds."""

    concurrent_streams: int = 1024
    stream_window: int = 2**20
    stream_window_max: int = 4 * 2**20
    answer_window: int = fr.DEFAULT_WINDOW
    """Of an answer, until its reader has taken half of it. Small, so that a hundred streams whose
    windows never open hold 6 MiB and not 100."""
    frame_size: int = 2**20
    head_size: int = 32 * 1024
    """Decoded size of a request head; larger ones are answered RESOURCE_EXHAUSTED."""
    retained_size: int = 8 * 2**20
    connect_timeout_s: float = 1.0
    head_timeout_s: float = 10.0
    """Until a new client has sent its preface and SETTINGS."""
    client_idle_s: float = 620.0
    fields: int = 100
    """Header fields of a request; more are answered RESOURCE_EXHAUSTED."""
    message_size: int = 0
    """Longest gRPC message of a request; 0 is no limit."""
    handshake_timeout_s: float = 10.0
    """TLS with a backend."""
    stream_stalled_s: float = 300.0
    """How long payload may wait for a peer that takes none of it; 0 is no limit."""
    request_timeout_s: float = 0.0
    """From a request's head to the end of its answer; 0 is no limit."""
    x_forwarded: bool = False
    forwarded: bool = False
    private_fields: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that we alone may send to backends: the clients' are
    dropped."""
    trusted_proxies: TrustedProxies = NO_PROXIES
    noted: frozenset[bytes] = frozenset()
    """Names, in lower case, of fields that the queue goes by."""

    def server_settings(self) -> dict[int, int]:
        """What clients are told in SETTINGS."""
        return {
            **self._common_settings(),
            fr.SETTINGS_INITIAL_WINDOW_SIZE: self.stream_window,
            fr.SETTINGS_MAX_CONCURRENT_STREAMS: self.concurrent_streams,
        }

    def client_settings(self) -> dict[int, int]:
        """What backends are told in SETTINGS."""
        return {
            **self._common_settings(),
            fr.SETTINGS_INITIAL_WINDOW_SIZE: self.answer_window,
            fr.SETTINGS_ENABLE_PUSH: 0,
        }

    def _common_settings(self) -> dict[int, int]:
        return {
            fr.SETTINGS_HEADER_TABLE_SIZE: 0,
            fr.SETTINGS_MAX_FRAME_SIZE: self.frame_size,
            fr.SETTINGS_MAX_HEADER_LIST_SIZE: self.head_size,
        }


class Http2Relay:
    """Owns downstream connections, upstream pools, and the list of connections to flush."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        timers: TimerWheel,
        ledger: Ledger,
        tasks: TaskOwner,
        traffic: Traffic,
        options: Http2Options,
        tls: ClientTlsBook | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self.timers = timers
        self.ledger = ledger
        self.tasks = tasks
        self.traffic = traffic
        """Counters of the clients' side."""
        self.tls = tls or ClientTlsBook()
        """For connections to backends."""
        self.crowd = Crowd()
        """How many connections each client has; the wiring gives both relays the same."""
        self.iteration = IterationBudget(self.loop)
        """For costly work; the wiring gives both relays the same."""
        self.clock: Callable[[], float] = dispatcher.clock
        self.now = self.clock()
        """The time of the read under way: one look at the clock for all that it brings."""
        self.fan_out: FanOut | None = None
        """For calls that concern all backends; without one they are balanced like others. To be
        set before the first connection."""
        self.kinds = frozenset(BackendKind)
        """Those of the backends: only they are asked. To be set before the first connection."""
        self.servers: set[ServerLink] = set()
        self._dirty: list[Link] = []
        """Connections to flush at the end of this turn of the event loop."""
        self.closing: list[Link] = []
        """Connections to close after the next flush."""
        self.draining = False
        self._memory_timer: Timer | None = None
        self._parting_timer: Timer | None = None
        self.no_pipe: Pipe[Any] = Pipe(None, ledger, 0, 0)
        """Stands for the other direction of a call that is over."""
        self._set(options)
        self.models = KnownModels()
        self.pools: dict[Backend, UpstreamPool] = {}
        """Those that were asked for; see `pool`."""
        self._unsubscribe = dispatcher.pool.subscribe(self._on_snapshot)

    # Options

    def _set(self, options: Http2Options) -> None:
        """Go by `options` and the dispatcher's gate, and forget what heads meant before."""
        self.options = options
        seams = (self.dispatcher.gate.noted | options.noted, masked)
        private = options.private_fields
        claims = CLAIMS if options.x_forwarded or options.forwarded else frozenset()
        self._caches = HeadCaches(private | claims, *seams)
        self._caches_of_proxies = HeadCaches(private, *seams) if claims else self._caches
        """What trusted proxies claim of their clients is passed on."""
        self.decide = Decisions(self).decide
        self.client_allowances = client_allowances(options.concurrent_streams)
        """What each client's connection may do how often."""

    def configure(self, options: Http2Options) -> None:
        """Go by other options, and by the gate that the dispatcher has now. Calls under way go on
        as they began; who a client is, and what it was told in SETTINGS, stays what it was when
        it connected."""
        self._set(options)
        for server in self.servers:
            server.configured()

    # What connections ask for

    def caches(self, *, of_trusted_proxy: bool) -> HeadCaches:
        """Those that clients' heads are read through."""
        return self._caches_of_proxies if of_trusted_proxy else self._caches

    def new_block_reader(self, *, of_trusted_proxy: bool = False) -> BlockReader:
        """A decoder for one connection, on the shared caches."""
        caches = self.caches(of_trusted_proxy=of_trusted_proxy)
        return BlockReader(caches, self.options.head_size)

    def pool(self, backend: Backend) -> UpstreamPool:
        """The connections to a backend."""
        pool = self.pools.get(backend)
        if pool is None:
            pool = self.pools[backend] = UpstreamPool(self, backend)
        return pool

    def forwarded_fields(self, client: Client) -> bytes:
        """Fields that tell the backend who the client is; empty unless switched on. How a trusted
        proxy's clients came, it tells itself."""
        address = str(client.address or "unknown").encode()
        scheme = b"https" if client.is_encrypted else b"http"
        fields = b""
        if self.options.x_forwarded:
            fields += encode_field(b"x-forwarded-for", address)
            if not client.is_trusted_proxy:
                fields += encode_field(b"x-forwarded-proto", scheme)
        if self.options.forwarded:
            node = b'"[%b]"' % address if b":" in address else address
            fields += encode_field(b"forwarded", b"for=%b;proto=%b" % (node, scheme))
        return fields

    def flush_soon(self, link: Link) -> None:
        """Flush `link` at the end of this turn, after all reads of the turn were relayed."""
        dirty = self._dirty
        if not dirty:
            self.loop.call_soon(self.flush)
        dirty.append(link)

    def flush(self) -> None:
        """Write what the connections have collected."""
        # HOT PATH (benchmarks/load). One write per connection and turn of the loop: flushing
        # after every read instead costs 8 % more CPU per call.
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                link.flush()
                if link.waiting and not link.congested:
                    link.drain_waiting()
        if self.closing:
            closing, self.closing = self.closing, []
            for link in closing:
                if not link.streams:
                    link.part()

    # Memory

    def watch_memory(self) -> None:
        """Requests are refused for want of memory. Stalled streams could make that last for ever:
        they hold enough to shed all new work, and never reach the ceiling."""
        if self._memory_timer is None:
            shortages = self.ledger.shortages
            self._memory_timer = self.timers.after(_SHORT_S, lambda: self._relieve(shortages))

    def _relieve(self, shortages: int) -> None:
        self._memory_timer = None
        self.now = self.clock()
        if self.ledger.is_short:
            if self.ledger.shortages == shortages:
                self.ledger.relieve()
            else:
                self.watch_memory()

    # Life

    def server_protocol(self) -> ServerLink:
        """A protocol for one accepted connection."""
        return ServerLink(self)

    def _on_snapshot(self, snapshot: PoolSnapshot) -> None:
        """Close idle connections to backends that get nothing new, so that they can exit."""
        eligible = snapshot.usable(AppProtocol.GRPC)
        present = set(snapshot.backends)
        for backend, pool in tuple(self.pools.items()):
            if backend not in eligible:
                pool.retire_all()
                if pool.port.is_hung:
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

    def owing(self) -> list[ClientLink]:
        """Connections to backends over which answers are to come, or acknowledgements of what a
        call sent before it was ended; whoever waits for the first SETTINGS has a limit for it."""
        links = (link for pool in self.pools.values() for link in pool.all_links())
        return [link for link in links if link.greeted.done()]

    def hedge(self, exchange: Exchange) -> GrpcAttempt | None:
        """Send a unary request to a second backend; None where that cannot be."""
        if not isinstance(exchange, Call) or exchange.request.retained is None:
            return None
        self.now = self.clock()
        try:
            attempt = self.dispatcher.place_beside(exchange, second_attempt, self.now)
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
        if isinstance(exchange, Call):
            self.now = self.clock()
            exchange.end_hedge()

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
        # connection_lost comes in the next turns of the loop.
        for _ in range(_CLOSING_TURNS):
            if not self.servers and not self.upstream_connections:
                return
            await asyncio.sleep(0)
