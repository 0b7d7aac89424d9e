"""Where the process accepts connections: its listening sockets, and what stands behind each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from lb.net.acceptor import Acceptor
from lb.proxy.http1.server import ServerConnection
from lb.proxy.http2.server import ServerLink
from lb.runtime.descriptors import Budget, DescriptorUse
from lb.runtime.endpoints import OWN, Bound, Endpoint, Listeners
from lb.runtime.front import Front, drawn_age
from lb.runtime.predecessor import Inherited
from lb.runtime.wiring import LoadBalancer

_OWN_CONNECTIONS: Final = 16
"""Of the metrics port and of the admin API each, so that they do not use up the descriptors."""
_IDLE_CLOSED: Final = 32
"""Idle connections to backends that are closed at once when descriptors get short."""
_ANY: Final = ("0.0.0.0", "::")


class Doors:
    """All listening sockets of the process while it runs."""

    def __init__(
        self, balancer: LoadBalancer, listeners: Listeners, own: Mapping[str, web.Server]
    ) -> None:
        """
        Args:
            balancer: what stands behind those for requests.
            listeners: open sockets; this closes them.
            own: what stands behind `metrics` and `admin`.
        """
        self._balancer = balancer
        self.listeners = listeners
        self._own = own
        self._acceptors: dict[Bound, Acceptor] = {}
        self._fronts: dict[str, Front] = {}
        """By name of the endpoint."""
        self._earlier: list[Front] = []
        """Whose connections may not have reached their protocols yet."""
        self._use = DescriptorUse()
        self.budget = self._plan()

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
        self._earlier = [front for front in (*self._earlier, *self._fronts.values()) if len(front)]
        self._fronts = {}
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
            acceptor = self._acceptors.get(bound)
            if acceptor is None:
                self._acceptor(name).begin()
            else:
                acceptor.factory = self._factory(name)

    def stop(self) -> None:
        """Accept no more requests; later connections are refused."""
        for name, bound in self.listeners.bound.items():
            if name not in OWN and bound in self._acceptors:
                self._acceptors[bound].close()
        for front in (*self._fronts.values(), *self._earlier):
            front.close()

    def own(self, inherited: Iterable[Inherited]) -> None:
        """The process before, which these are from, gives way: files of Unix sockets are ours."""
        ours = {each.socket for each in inherited if each.is_ours}
        for bound in self.listeners.bound.values():
            bound.is_ours = bound.is_ours or bound.socket in ours

    def give_way(self) -> None:
        """Another process listens at the same sockets: accept no more at any of them."""
        for bound in self.listeners.bound.values():
            bound.is_ours = False
        for acceptor in self._acceptors.values():
            acceptor.close()

    def close(self) -> None:
        """Stop all, and close the sockets."""
        self.stop()
        for acceptor in self._acceptors.values():
            acceptor.close()
        self.listeners.close()

    # What stands behind a socket

    def _acceptor(self, name: str) -> Acceptor:
        bound = self.listeners.bound[name]
        room = self._room
        if name in self._own:
            server = self._own[name]
            room = lambda: _make_room(server)  # noqa: E731  # it is one of two
        acceptor = Acceptor(
            name, bound.socket, self._factory(name), room, self._balancer.parts.tasks
        )
        self._acceptors[bound] = acceptor
        return acceptor

    def _factory(self, name: str) -> Callable[[], Any]:
        return self._own[name] if name in self._own else self._fronts[name].factory

    def _put_behind(self, endpoint: Endpoint) -> None:
        self._fronts[endpoint.name] = Front(self._balancer, endpoint)

    def _shut(self, bound: Bound) -> None:
        servers = self._servers(bound)
        self._acceptors.pop(bound).close()
        bound.close()
        for server in servers:
            server.leave()

    def _limit_ages(self, bound: Bound, limit_s: float) -> None:
        """Connections that stand have another limit, from now on."""
        for server in self._servers(bound):
            server.limit_age(drawn_age(limit_s, self._balancer.parts.rng))

    def _servers(self, bound: Bound) -> list[ServerConnection | ServerLink]:
        """The connections that came through a socket."""
        local = bound.socket.getsockname()
        balancer = self._balancer
        servers: tuple[ServerConnection | ServerLink, ...]
        servers = (*balancer.relay.http1.servers, *balancer.relay.http2.servers)
        return [server for server in servers if _came_through(server.transport, local)]

    # Room

    def _plan(self) -> Budget:
        balancer = self._balancer
        return self._use.budget(
            backends=len(balancer.control.directory.records),
            wanted=balancer.settings.limits.max_connections,
        )

    @property
    def clients(self) -> int:
        """Open connections of clients, those that are still shaking hands included."""
        fronts = (*self._fronts.values(), *self._earlier)
        return self._balancer.relay.connections + sum(map(len, fronts))

    def _room(self) -> int:
        balancer = self._balancer
        clients = self.clients
        found = self.budget.room(clients, balancer.relay.upstream_connections)
        if found <= 0 and clients < self.budget.clients:
            # What is missing is held by connections to backends.
            balancer.relay.http1.upstreams.close_idle(_IDLE_CLOSED)
        return found


def _came_through(transport: asyncio.BaseTransport | None, listener: Any) -> bool:
    """Whether a connection was accepted at the socket with that name (`getsockname`)."""
    name = None if transport is None else transport.get_extra_info("sockname")
    if not name or not isinstance(name, tuple) or not isinstance(listener, tuple):
        return bool(name == listener)
    return name[1] == listener[1] and (listener[0] in _ANY or name[0] == listener[0])


def _make_room(server: web.Server) -> int:
    """How many more connections the metrics port or the admin API may take. With none, the older
    half is closed, so that silent ones keep nobody from asking for our health."""
    connections = server.connections
    room = _OWN_CONNECTIONS - len(connections)
    for connection in connections[: _OWN_CONNECTIONS // 2] if room <= 0 else ():
        connection.force_close()
    return room
