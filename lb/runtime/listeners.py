"""Where the process accepts connections: its listening sockets, and what stands behind each.

Behind a socket are stages: a PROXY header, TLS, a look at what a client speaks, and the protocols
of its listeners. Ports for hosting platforms have HTTP connections of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.kserve.sagemaker import UNSPECIFIED, SageMakerRoutes
from lb.kserve.vertex import VertexRoutes
from lb.net.acceptor import Acceptor, AcceptShare
from lb.net.connection_limiter import ConnectionLimiter
from lb.net.proxy_protocol import ProxyAcceptor
from lb.net.tls.accept import TlsAcceptor
from lb.proxy.http1.front import Front
from lb.proxy.http1.relay import Http1Relay
from lb.proxy.http1.sagemaker import SageMakerFront
from lb.proxy.http1.server import Http1ServerConnection
from lb.proxy.http1.vertex import VertexFront
from lb.proxy.http2.server import Http2ServerConnection
from lb.proxy.sniff import Sniffer
from lb.runtime.limits import Budget, DescriptorUse
from lb.runtime.predecessor import Inherited
from lb.runtime.relay_host import RelayHost
from lb.runtime.sockets import OWN, Bound, Listeners, ListeningSocket
from lb.settings.fronts import FrontSettings, SageMakerSettings, VertexSettings

_CLOSED_AT_ONCE: Final = 32
"""Connections to backends that nobody waits for, closed at once when descriptors get short."""
_ANY: Final = ("0.0.0.0", "::")


class OwnServer(NamedTuple):
    """What stands behind the metrics port or the admin API."""

    factory: Callable[[], Any]
    """Makes the protocol of a connection."""
    make_room: Callable[[], int]
    """Says how many more connections it may take, and closes some if there is no room."""
    end_connections: Callable[[], None]
    """Has each connection end with the answer that it waits for, or at once."""


class ListenerSet:
    """All listening sockets of the process while it runs."""

    def __init__(
        self,
        balancer: RelayHost,
        listeners: Listeners,
        own: Mapping[str, OwnServer],
        *,
        is_serving: bool = True,
        share: AcceptShare | None = None,
    ) -> None:
        """
        Args:
            balancer: what stands behind those for requests.
            listeners: open sockets; this closes them.
            own: what stands behind `metrics` and `admin`.
            is_serving: whether this process accepts requests of clients at all.
            share: of this process, where others accept at the same sockets.
        """
        self._share = share
        self._is_serving = is_serving
        self._balancer = balancer
        self.listeners = listeners
        self._own = own
        self._acceptors: dict[Bound, Acceptor] = {}
        self._pipelines: dict[str, ConnectionPipeline] = {}
        """By name of the endpoint."""
        self._earlier: list[ConnectionPipeline] = []
        """Whose connections may not have reached their protocols yet."""
        self._use = DescriptorUse()
        self.budget = self._plan()
        balancer.relay.http1.free_descriptors = self._free_descriptors

    async def open_own(self) -> None:
        """Accept at the metrics port and for the admin API."""
        for name in OWN:
            if name in self.listeners.bound:
                await self._acceptor(name).open()

    async def open(self) -> None:
        """Accept requests."""
        self._use = DescriptorUse()
        self.budget = self._plan()
        for endpoint in self.listeners.endpoints:
            self._put_behind(endpoint)
            await self._acceptor(endpoint.name).open()

    def replace(self, listeners: Listeners) -> None:
        """Accept where other settings say so, which are in force. Sockets that stay go on; what
        came through one that goes is asked to leave after its next answer."""
        before, self.listeners = self.listeners, listeners
        self.budget = self._plan()
        self._earlier = [each for each in (*self._earlier, *self._pipelines.values()) if len(each)]
        self._pipelines = {}
        for endpoint in listeners.endpoints:
            self._put_behind(endpoint)
        ages = {before.bound[each.name]: each.max_connection_age_s for each in before.endpoints}
        for endpoint in listeners.endpoints:
            bound = listeners.bound[endpoint.name]
            if ages.get(bound) != endpoint.max_connection_age_s:
                self._limit_ages(bound, endpoint.max_connection_age_s)
        staying = set(listeners.bound.values())
        for bound in before.bound.values():
            if bound not in staying:
                self._shut(bound)
        for name, bound in listeners.bound.items():
            if not (self._is_serving or name in OWN):
                continue
            acceptor = self._acceptors.get(bound)
            if acceptor is None:
                self._acceptor(name).begin()
            else:
                acceptor.factory = self._factory(name)
                acceptor.limiter = self._limiter(name)

    def stop(self) -> None:
        """Accept no more requests; later connections are refused."""
        for name, bound in self.listeners.bound.items():
            if name not in OWN and bound in self._acceptors:
                self._acceptors[bound].close()
        for each in (*self._pipelines.values(), *self._earlier):
            each.close()

    def own(self, inherited: Iterable[Inherited]) -> None:
        """The process before, which these are from, gives way: files of Unix sockets are ours."""
        ours = {each.socket for each in inherited if each.is_ours}
        for bound in self.listeners.bound.values():
            bound.is_ours = bound.is_ours or bound.socket in ours

    def give_way(self) -> None:
        """Another process listens at the same sockets: accept no more at any of them. Nor do those
        of operators stay open: that process would not hear what is said over them."""
        for bound in self.listeners.bound.values():
            bound.is_ours = False
        for acceptor in self._acceptors.values():
            acceptor.close()
        for server in self._own.values():
            server.end_connections()

    def close(self) -> None:
        """Stop all, and close the sockets."""
        self.stop()
        for acceptor in self._acceptors.values():
            acceptor.close()
        self.listeners.close()

    # What stands behind a socket

    def _acceptor(self, name: str) -> Acceptor:
        bound = self.listeners.bound[name]
        room: Callable[[], int] = partial(self._room, bound)
        on_refused: Callable[[], None] | None = None
        if name in self._own:
            room = self._own[name].make_room
        else:
            on_refused = self._pipelines[name].on_crowded
        acceptor = Acceptor(
            name,
            bound.socket,
            self._factory(name),
            room,
            self._balancer.parts.tasks,
            share=self._share,
            limiter=self._limiter(name),
            on_refused=on_refused,
        )
        self._acceptors[bound] = acceptor
        return acceptor

    def _factory(self, name: str) -> Callable[[], Any]:
        return self._own[name].factory if name in self._own else self._pipelines[name].factory

    def _limiter(self, name: str) -> ConnectionLimiter | None:
        """What limits connections that have not sent anything yet."""
        return None if name in self._own else self._pipelines[name].limiter

    def _put_behind(self, endpoint: ListeningSocket) -> None:
        self._pipelines[endpoint.name] = ConnectionPipeline(self._balancer, endpoint)

    def _shut(self, bound: Bound) -> None:
        servers = self._servers(bound)
        if bound in self._acceptors:
            self._acceptors.pop(bound).close()
        bound.close()
        for server in servers:
            server.leave()

    def _limit_ages(self, bound: Bound, limit_s: float) -> None:
        """Connections that stand have another limit, from now on."""
        for server in self._servers(bound):
            server.limit_age(drawn_age(limit_s, self._balancer.parts.rng))

    def _servers(self, bound: Bound) -> list[Http1ServerConnection | Http2ServerConnection]:
        """The connections that came through a socket."""
        local = bound.socket.getsockname()
        balancer = self._balancer
        servers: tuple[Http1ServerConnection | Http2ServerConnection, ...]
        servers = (*balancer.relay.http1.servers, *balancer.relay.http2.servers)
        return [server for server in servers if _came_through(server.transport, local)]

    # Room

    def _plan(self) -> Budget:
        balancer = self._balancer
        return self._use.budget(
            backends=len(balancer.side.pool.current.backends),
            wanted=balancer.max_connections,
        )

    @property
    def clients(self) -> int:
        """Open connections of clients, those without a protocol included."""
        return self._clients + sum(map(len, self._acceptors.values()))

    @property
    def _clients(self) -> int:
        """Open connections that the acceptors have handed over."""
        pipelines = (*self._pipelines.values(), *self._earlier)
        return self._balancer.relay.connections + sum(map(len, pipelines))

    def _room(self, bound: Bound) -> int:
        """How many connections may come through a socket, beside those that its acceptor has."""
        balancer = self._balancer
        others = [each for other, each in self._acceptors.items() if other is not bound]
        clients = self._clients + sum(map(len, others))
        found = self.budget.room(clients, balancer.relay.upstream_connections)
        if found <= 0 and clients < self.budget.clients:
            # What is missing is held by connections to backends.
            balancer.relay.http1.close_unneeded(_CLOSED_AT_ONCE - found)
            found = self.budget.room(clients, balancer.relay.upstream_connections)
        return found

    def _free_descriptors(self) -> int:
        """How many connections to backends may be opened beside those that are being made."""
        relay = self._balancer.relay
        return self.budget.all - self.clients - relay.upstream_connections - relay.http1.dialling


def _came_through(transport: asyncio.BaseTransport | None, listener: Any) -> bool:
    """Whether a connection was accepted at the socket with that name (`getsockname`)."""
    name = None if transport is None else transport.get_extra_info("sockname")
    if not name or not isinstance(name, tuple) or not isinstance(listener, tuple):
        return bool(name == listener)
    return name[1] == listener[1] and (listener[0] in _ANY or name[0] == listener[0])


ProtocolFactory = Callable[[], Any]
_AGE_JITTER: Final = 0.1
"""Clients that came at once must not all come again at once."""


def drawn_age(limit_s: float, rng: Random) -> float:
    """How long one connection may last where the limit is `limit_s`; 0 is no limit."""
    return limit_s * rng.uniform(1.0 - _AGE_JITTER, 1.0 + _AGE_JITTER)


def _ageing(make: ProtocolFactory, limit_s: float, rng: Random) -> ProtocolFactory:
    def make_ageing() -> Any:
        protocol = make()
        protocol.limit_age(drawn_age(limit_s, rng))
        return protocol

    return make_ageing


class ConnectionPipeline:
    """The stages of an endpoint's connections, from the first byte to the protocol."""

    def __init__(self, balancer: RelayHost, endpoint: ListeningSocket) -> None:
        """
        A PROXY header comes first, if there is one. With TLS the client says what it speaks; where
        it does not, and without TLS, the only protocol of the endpoint or its first bytes decide.
        """
        factories: dict[AppProtocol, ProtocolFactory] = {
            AppProtocol.HTTP: balancer.relay.http1.server_protocol,
            AppProtocol.GRPC: balancer.relay.http2.server_protocol,
        }
        own = front_factory(balancer.settings.fronts, endpoint.name, balancer.relay.http1)
        if own is not None:
            factories[AppProtocol.HTTP] = own
        if endpoint.max_connection_age_s:
            for protocol, make in factories.items():
                factories[protocol] = _ageing(
                    make, endpoint.max_connection_age_s, balancer.parts.rng
                )
        timeouts, timers = balancer.settings.timeouts, balancer.parts.timers
        traffic = balancer.relay.meter.traffic[endpoint.protocols[0]]
        self.sniffer: Sniffer | None = None
        self.tls: TlsAcceptor | None = None
        self.proxied: ProxyAcceptor | None = None
        self.factory = factories[endpoint.protocols[0]]
        """Of the first stage."""
        if len(endpoint.protocols) > 1:
            self.factory = self.sniffer = Sniffer(
                factories[AppProtocol.HTTP],
                factories[AppProtocol.GRPC],
                timers,
                timeouts.head,
            )
        tls = balancer.security.servers.get(endpoint.name)
        if tls is not None:
            self.factory = self.tls = TlsAcceptor(
                tls,
                {protocol.alpn: factories[protocol] for protocol in endpoint.protocols},
                self.factory,
                timers,
                balancer.relay.http1.iteration,
                timeouts.handshake,
                lambda: traffic.connection_failed(Reason.HANDSHAKE),
            )
        if endpoint.proxy_protocol:
            self.factory = self.proxied = ProxyAcceptor(
                self.factory,
                balancer.settings.listen.proxies,
                timers,
                timeouts.handshake,
                lambda: traffic.connection_failed(Reason.PROXY_HEADER),
            )

        limiter = balancer.relay.http1.parts.connection_limiter
        self.limiter = None if endpoint.proxy_protocol else limiter
        """What limits connections whose other end is the client; None where that is a proxy."""
        self.on_crowded = partial(traffic.connection_failed, Reason.TOO_MANY_CONNECTIONS)
        for stage in (self.sniffer, self.tls):
            if stage is not None:
                stage.connection_limiter = limiter
                stage.on_crowded = self.on_crowded

    def __len__(self) -> int:
        """Connections that have not reached their protocol."""
        stages = (self.sniffer, self.tls, self.proxied)
        return sum(len(stage) for stage in stages if stage is not None)

    def close(self) -> None:
        """End the connections that would not get further than a handshake or a header."""
        for stage in (self.tls, self.proxied):
            if stage is not None:
                stage.close()


SAGEMAKER: Final = "sagemaker"
VERTEX: Final = "vertex"


def front_factory(
    fronts: FrontSettings, name: str, relay: Http1Relay
) -> Callable[[], Http1ServerConnection] | None:
    """What accepts connections at the listener `name`; None where it is no front's."""
    front: Front
    if name == SAGEMAKER:
        front = SageMakerFront(relay, _sagemaker(fronts.sagemaker))
    elif name == VERTEX:
        front = VertexFront(relay, _vertex(fronts.vertex), _model(fronts.vertex.default_model))
    else:
        return None
    return lambda: Http1ServerConnection(relay, front)


def _sagemaker(settings: SageMakerSettings) -> SageMakerRoutes:
    return SageMakerRoutes(
        model=_model(settings.default_model or UNSPECIFIED),
        inference=settings.inference.value.encode(),
        ping=settings.ping.value.encode(),
        is_multi_model=settings.multi_model,
    )


def _vertex(settings: VertexSettings) -> VertexRoutes:
    # The rules on settings say that both are given where the front is enabled.
    health, predict = settings.health_route or "", settings.predict_route or ""
    return VertexRoutes(health=health.encode(), predict=predict.encode())


def _model(name: str | None) -> bytes:
    return (name or "").encode()
