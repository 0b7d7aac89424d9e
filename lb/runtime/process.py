"""The life of the process: start, signals, and a shutdown that loses nothing.

Start: bind every address, probe the backends once, then accept. Shutdown: readiness down, accept
for the settle time, close the listeners, ask clients to go (Connection: close, GOAWAY), wait for
what runs, cut what is left. A second signal cuts at once.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aiohttp import web

from lb.net.acceptor import Acceptor
from lb.runtime.allocator import keep_freed_memory
from lb.runtime.descriptors import budget_of_process, raise_limit
from lb.runtime.endpoints import Listeners
from lb.runtime.front import Front
from lb.runtime.logs import Logs
from lb.runtime.notify import notify
from lb.runtime.wiring import Product, admin_app, build, metrics_app
from lb.settings.model import Settings
from lb.wire.native import is_compiled

_log = logging.getLogger(__name__)

_LAG_TICK_S: Final = 0.1
_SWITCH_S: Final = 0.0005
"""How long a thread that merges answers may keep the interpreter: by default 5 ms, and the loop
waits for it at every single callback."""
_OWN_CONNECTIONS: Final = 16
"""Of the metrics port and of the admin API each, so that they do not use up the descriptors."""
_COLLECT_AFTER: Final = (10_000, 2, 100)
"""New objects that start a collection, collections until the middle generation is looked at as
well, and those until all is: pauses of 1 ms and 4 ms, and for all one that may never come
(docs/decisions/0022-garbage-collection.md)."""
_IDLE_CLOSED: Final = 32
"""Idle connections to backends that are closed at once when descriptors get short."""
_STEP_S: Final = 0.02
"""How often the shutdown looks whether everything has ended."""
_TABLES_S: Final = 2.0
"""How long the start waits for the backends to say which models they have."""
_GOODBYE_S: Final = 1.0
"""How long clients without requests may take to close after they were told to."""


def run(settings: Settings) -> int:
    """Balance until told to stop. Returns the exit code.

    Raises:
        LoadBalancerError: an address or a log file cannot be used.
    """
    listeners = Listeners(settings)
    try:
        logs = Logs(settings)
        try:
            raise_limit()
            sys.setswitchinterval(_SWITCH_S)
            keep_freed_memory()
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(Process(settings, listeners, logs).main())
        finally:
            logs.close()
    finally:
        listeners.close()
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop  # optional: not on every platform

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def quiet_the_collector() -> None:
    """Keep the cyclic collector from walking the whole program between requests.

    Neither requests nor connections leave cycles behind, so there is little to collect; with the
    defaults each few hundred requests in flight start a walk over what was ever imported: 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


class Process:
    """A running load balancer."""

    def __init__(self, settings: Settings, listeners: Listeners, logs: Logs) -> None:
        self._settings = settings
        self._listeners = listeners
        self._logs = logs
        self._accepting = False
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._acceptors: list[Acceptor] = []
        self._fronts: list[Front] = []
        self._own_acceptors: list[Acceptor] = []
        """Of the metrics port and the admin API, which answer until the end."""
        self._runners: list[web.AppRunner] = []

    @property
    def is_ready(self) -> bool:
        """Accepting and not draining, whatever the backends do."""
        return self._accepting

    async def main(self) -> None:
        """Start, serve, shut down."""
        self._handle_signals()
        product = build(self._settings, self._logs)
        try:
            product.tasks.spawn(self._watch_lag(product), name="event-loop-lag")
            if product.security.is_used:
                product.tasks.spawn(product.security.watch.run(), name="certificates")
            if product.access.tokens.files:
                product.tasks.spawn(product.access.tokens.run(), name="tokens")
            metrics = metrics_app(product, lambda: self.is_ready)
            await self._serve_app(product, "metrics", metrics)
            await self._serve_app(product, "admin", admin_app(product))
            product.probes.start()
            product.models.start()
            await self._unless_stopped(product.probes.first_round())
            await self._unless_stopped(product.models.first_round(_TABLES_S))
            if not self._stop.is_set():
                await self._open(product)
                await self._stop.wait()
                await self._shut_down(product)
        finally:
            self._stop_accepting()
            for acceptor in self._own_acceptors:
                acceptor.close()
            await product.aclose()
            for runner in self._runners:
                await runner.cleanup()
        _log.info("stopped")

    # Start

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGUSR1, self._logs.reopen)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def _on_stop_signal(self) -> None:
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    def _on_hangup(self) -> None:
        _log.warning("SIGHUP ignored: restart the process to apply a changed configuration")

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`, but not longer than until the process is told to stop."""
        async with asyncio.TaskGroup() as group:
            done = group.create_task(work)
            stopped = group.create_task(_wait(self._stop))
            await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            stopped.cancel()

    async def _serve_app(self, product: Product, name: str, app: web.Application) -> None:
        bound = self._listeners.sockets.get(name)
        if bound is None:
            return
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._runners.append(runner)
        server = runner.server
        if server is None:
            return
        acceptor = Acceptor(name, bound, server, lambda: _make_room(server), product.tasks)
        self._own_acceptors.append(acceptor)
        await acceptor.open()

    async def _open(self, product: Product) -> None:
        """Start to accept requests and say so."""
        settings = self._settings
        budget = budget_of_process(
            backends=len(settings.backends), wanted=settings.limits.connections
        )

        def room() -> int:
            clients = product.connections + sum(map(len, self._fronts))
            found = budget.room(clients, product.upstream_connections)
            if found <= 0 and clients < budget.clients:
                # What is missing is held by connections to backends.
                product.http1.upstreams.close_idle(_IDLE_CLOSED)
            return found

        for endpoint in self._listeners.endpoints:
            door = Front(product, endpoint)
            self._fronts.append(door)
            bound = self._listeners.sockets[endpoint.name]
            acceptor = Acceptor(endpoint.name, bound, door.factory, room, product.tasks)
            self._acceptors.append(acceptor)
            await acceptor.open()
        quiet_the_collector()
        self._accepting = True
        addresses = {name: str(address) for name, address in self._listeners.addresses.items()}
        facts = {
            "backends": len(settings.backends),
            "connections": budget.clients,
            "compiled": is_compiled(),
        }
        _log.info("serving", extra={**addresses, **facts})
        notify("READY=1", os.environ)

    async def _watch_lag(self, product: Product) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_TICK_S
            await asyncio.sleep(_LAG_TICK_S)
            product.loop_lag.observe(loop.time() - due)

    # Shutdown

    async def _shut_down(self, product: Product) -> None:
        shutdown = self._settings.shutdown
        self._accepting = False
        notify("STOPPING=1", os.environ)
        _log.info("stopping", extra={"requests": product.dispatcher.open_exchanges})
        product.dispatcher.announce_exit()
        if shutdown.settle:
            await self._until(lambda: False, shutdown.settle)
        self._stop_accepting()
        product.http1.begin_drain()
        product.http2.begin_drain()
        await self._until(lambda: product.idle, shutdown.drain)
        if not product.idle:
            cut = product.dispatcher.open_exchanges
            _log.warning("requests were cut", extra={"requests": cut})
        else:
            await self._until(lambda: not product.connections, _GOODBYE_S)

    def _stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        for door in self._fronts:
            door.close()

    async def _until(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Wait until `is_over`, a second signal, or the limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not is_over() and not self._force.is_set() and loop.time() < deadline:
            try:
                async with asyncio.timeout(min(_STEP_S, limit_s)):
                    await self._force.wait()
            except TimeoutError:
                continue


def _make_room(server: web.Server) -> int:
    """How many more connections the metrics port or the admin API may take. With none, the older
    half is closed, so that silent ones keep nobody from asking for our health."""
    connections = server.connections
    room = _OWN_CONNECTIONS - len(connections)
    for connection in connections[: _OWN_CONNECTIONS // 2] if room <= 0 else ():
        connection.force_close()
    return room


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
