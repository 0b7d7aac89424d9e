"""What the connections and calls of the gRPC relay share, and what they ask of it.

The relay makes connections, calls and attempts, so it knows their classes. They know only what
stands here, where none of their classes is named: what is one of them is `Any`, and only the relay
looks into it.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import Any

from lb.domain.backend import BackendKind
from lb.domain.client import Client
from lb.domain.operation import Operation
from lb.kserve.gate import masked
from lb.proxy.http2.options import Http2Options
from lb.proxy.http2.prefix_cache import PrefixCache
from lb.proxy.memory_relief import MemoryRelief
from lb.proxy.parts import RelayParts
from lb.proxy.request_trace import context_block
from lb.telemetry.meter import Traffic
from lb.telemetry.sampling import Draw
from lb.wire.hops import HOPS
from lb.wire.http1.forwarded import CLAIMS
from lb.wire.http2.blocks import BlockReader, HeadCaches
from lb.wire.http2.budget import client_allowances
from lb.wire.http2.fields import encode_field
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.heads import RequestHead
from lb.wire.trace_context import TRACE_FIELDS, Traces


class Http2Shared(metaclass=ABCMeta):
    """The relay as its connections and calls see it: what they share, and what it does for them.

    That it does by methods, not by attributes that are called or by a Protocol, because calls of
    these are looked up by name in compiled code.
    """

    def __init__(self, parts: RelayParts, traffic: Traffic, options: Http2Options) -> None:
        """
        Args:
            parts: of the process.
            traffic: counters of the clients' side.
            options: limits and times.
        """
        self.parts = parts
        # Those of the parts that are looked up often stand here as well.
        self.loop = parts.loop
        self.dispatcher = dispatcher = parts.dispatcher
        self.placer = dispatcher.placer
        self.accounts = dispatcher.accounts
        self.retry = dispatcher.retry
        self.timers = parts.timers
        self.memory_budget = parts.memory_budget
        self.iteration = parts.iteration
        self.pumps = parts.pumps
        self.clock: Callable[[], float] = dispatcher.clock
        self.traffic = traffic
        self.now = self.clock()
        """The time of the read under way: one look at the clock for all that it brings."""
        self.kinds = frozenset(BackendKind)
        """The kinds of the backends: only they are asked. Discovery says when there are others."""
        self.servers: set[Any] = set()
        """Clients' connections."""
        self.leaving: set[Any] = set()
        """Clients' connections that are over, with calls that are still to end."""
        self.dirty: list[Any] = []
        """Connections to flush at the end of this iteration of the event loop, which the first of
        them asks for."""
        self.closing: list[Any] = []
        """Connections to close after the next flush."""
        self.draining = False
        self.no_pipe: Pipe[Any] = Pipe(None, parts.memory_budget, 0, 0)
        """Stands for the other direction of a call that is over."""
        self.draw: Draw | None = None
        """What the call at hand is drawn for, see `lb.telemetry.sampling`; None: for nothing."""
        self.memory_relief = MemoryRelief(
            parts.memory_budget, parts.iteration, parts.timers, self._read_clock
        )
        # What calls hold has requests of HTTP/1.1 refused as well, and the other way round.
        self.placer.on_shortage = self.memory_relief.on_refusal
        self.use(options)

    # Options

    def use(self, options: Http2Options) -> None:
        """Go by `options` and the dispatcher's gate, and forget what heads meant before."""
        self.options = options
        self.split_models = options.split_models
        self.prefixes = PrefixCache(self.dispatcher.variants)
        noted = self.dispatcher.gate.noted | options.noted
        private = options.private_fields
        if options.traces is not Traces.OFF:
            # They are written anew for each attempt.
            noted |= TRACE_FIELDS
            private |= TRACE_FIELDS
        identity = self.dispatcher.identity
        seams = (noted, masked, encode_field(HOPS, identity) if identity else b"")
        credentials = CLAIMS if options.x_forwarded or options.forwarded else frozenset()
        self._caches = HeadCaches(private | credentials, *seams)
        self._caches_of_proxies = HeadCaches(private, *seams) if credentials else self._caches
        """What trusted proxies claim of their clients is passed on."""
        self.client_allowances = client_allowances(options.concurrent_streams)
        """What each client's connection may do how often."""

    def _read_clock(self) -> None:
        self.now = self.clock()

    # What connections ask for

    def caches(self, *, of_trusted_proxy: bool) -> HeadCaches:
        """Return the caches that clients' heads are read through."""
        return self._caches_of_proxies if of_trusted_proxy else self._caches

    def new_block_reader(self, *, of_trusted_proxy: bool = False) -> BlockReader:
        """A decoder for one connection, on the shared caches."""
        caches = self.caches(of_trusted_proxy=of_trusted_proxy)
        return BlockReader(caches, self.options.head_size)

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

    def begin_trace(self, call: Any, *, is_drawn: bool) -> None:
        """Trace a call, if it is to be. If it is not, backends get the context of its client only
        where contexts pass."""
        context = call.head.context
        tracer = self.dispatcher.tracer
        if (
            tracer.begin(call, context, call.server.client, is_drawn=is_drawn) is None
            and context is not None
            and self.options.traces is Traces.PASS
        ):
            call.head = call.head.with_block(call.head.block + context_block(context))

    @abstractmethod
    def flush(self) -> None:
        """Write what the connections have collected."""

    @abstractmethod
    def decide(self, head: RequestHead) -> Operation:
        """Decide once what is done with requests that look like `head`."""

    # What calls ask for

    @abstractmethod
    def place(self, call: Any) -> None:
        """Choose a backend for a call and begin an attempt there, or have the call wait for its
        turn, or refuse it."""

    @abstractmethod
    def place_whole(self, call: Any, payload: bytes, size: int) -> None:
        """As `place`, for a call whose request is complete and small: `payload`, of `size` bytes,
        which has not been given to its pipe."""

    @abstractmethod
    def place_in_turn(self, call: Any) -> None:
        """As `place`, for a call that has waited for its turn, or for a backend."""

    @abstractmethod
    def sink_of(self, call: Any) -> Any:
        """Return the `ResponseSink` of a unary call that leads to the client."""

    @abstractmethod
    def begin_variant(self, call: Any, data: bytes, end_stream: int) -> bool | None:
        """Have a call for a name that has variants served by one of them; see
        `lb.proxy.http2.variant_call.begin_variant`."""

    @abstractmethod
    def begin_split(self, call: Any, payload: Payload, *, is_all: bool) -> bool | None:
        """Have a batch run as several, if it is to be cut.

        Args:
            call: for a model whose batches may be cut; what has come of its request before is
                in its pipe.
            payload: what came just now.
            is_all: there is no more to come.

        Returns:
            Whether it is; None where more of it is needed to tell.
        """

    @abstractmethod
    def start(self, attempt: Any) -> None:
        """Give an attempt a stream at its backend, now or when a connection has room."""
