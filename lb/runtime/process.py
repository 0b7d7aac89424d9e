"""The life of the process: start, signals, and a shutdown that loses nothing.

Start: bind every address, probe the backends once, then accept. Shutdown: readiness down, accept
for `shutdown.pre_stop_delay`, close the listeners, ask clients to go (Connection: close, GOAWAY),
wait for what runs, cut what is left. A second signal cuts at once. A process that gives way to the
next one goes more gently: that one listens at the same sockets, so nobody has to be refused.

A signal to any process of the service stops the service: each passes the stop on to the process
before it and to its successor, and the one that got the signal waits for the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lb.admin.api import cannot, not_done
from lb.admin.models import Reload, Upgrade
from lb.domain.backend import Address, BackendState
from lb.net.file_thread import FileStalled
from lb.net.threads import NoThread, in_thread
from lb.runtime.banner import banner
from lb.runtime.collector import quiet_the_collector
from lb.runtime.configuration_file import ConfigurationWatch
from lb.runtime.draining import FLUSH_TURNS, GOODBYE_S, STEP_S, Drain, unless
from lb.runtime.handover import Peer, resume_operator_state
from lb.runtime.interpreter import SWITCH_S, loop_factory
from lb.runtime.limits import is_limited, raise_limit, share_one_heap
from lb.runtime.listeners import ListenerSet, OwnServer
from lb.runtime.logs import Logs
from lb.runtime.own_servers import OwnServers
from lb.runtime.reload import ChangeRefused, Reloader
from lb.runtime.signals import PidFileError, notify, ready, release_signals, remove_pid, write_pid
from lb.runtime.sockets import Listeners, claim
from lb.runtime.start import Start
from lb.runtime.upgrade import Succession, UpgradeFailed, Upgrader
from lb.runtime.upkeep import give_memory_back, run_ticks, watch_files
from lb.runtime.wiring import LoadBalancer, admin_app, metrics_app
from lb.settings.choices import LogLevel
from lb.settings.model import Settings
from lb.settings.reporting import LogFormat
from lb.wire.compiled import is_compiled

_log = logging.getLogger(__name__)

_REMOVE_S: Final = 1.0
"""How long the end of the process waits until the PID file is removed."""
_LINGER_S: Final = 1.0
"""How long a process that has given way stays at least: whoever knew its id a moment ago stops the
service with it, and would not notice that only an old process had ended."""
_SHUTS_DOWN: Final = "the process shuts down"
_ANSWER_S: Final = 5.0
"""How long a new process that is told to stop waits for the process before it to say who serves."""


def run(settings: Settings, start: Start | None = None) -> int:
    """Balance until told to stop. Returns the exit code, with which the process has to end at once.

    Raises:
        LoadBalancerError: an address or a log file cannot be used.
    """
    start = start or Start()
    if is_limited():
        share_one_heap()  # before the first thread
    listeners = Listeners(settings, claim(start.inherited, settings))
    try:
        logs = Logs(settings)
        try:
            raise_limit()
            sys.setswitchinterval(SWITCH_S)
            # The loop is not closed: it would wait for its threads. A name server that does not
            # answer keeps a thread for half a minute.
            runner = asyncio.Runner(loop_factory=loop_factory())
            runner.run(Process(settings, listeners, logs, start).main())
        finally:
            logs.close()
    finally:
        listeners.close()
    return 0


class Process:
    """A running load balancer."""

    _ending: Drain
    """How its requests end."""

    def __init__(self, settings: Settings, listeners: Listeners, logs: Logs, start: Start) -> None:
        self._settings = settings
        self._listeners = listeners
        self._logs = logs
        self._start = start
        self._accepting = False
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._is_told = False
        """A signal has told the process to stop: the next one forces it."""
        self._is_stopping = False
        """The service is to end, and this process with it."""
        self._awaited: set[Peer] = set()
        """Processes that were told to stop, and end before this one."""
        self._successor = 0
        """Id of the process that has taken over."""
        self._own_servers = OwnServers()
        self._listener_set: ListenerSet | None = None
        self._reloader: Reloader | None = None
        self._upgrader: Upgrader | None = None
        self._succession: Succession | None = None

    @property
    def is_ready(self) -> bool:
        """Accepting and not draining, whatever the backends do."""
        return self._accepting

    async def main(self) -> None:
        """Start, serve, shut down."""
        # Until here signals do what they do by default: certificates and tokens are read, and the
        # process must end even if one of these files hangs.
        balancer = LoadBalancer(self._settings, self._logs, self._start.digest)
        self._ending = Drain(balancer.relay, self._force)
        self._handle_signals()
        listener_set = ListenerSet(
            balancer, self._listeners, await self._start_own_servers(balancer)
        )
        self._listener_set = listener_set
        try:
            reloader = Reloader(balancer, listener_set, self._start.file, self._pass_on)
            upgrader = Upgrader(
                balancer,
                listener_set,
                reloader,
                partial(self._give_way, balancer, listener_set),
                self._stop_service,
            )
            self._reloader, self._upgrader = reloader, upgrader
            self._handle_requests(balancer, reloader, upgrader)
            balancer.parts.tasks.spawn(run_ticks(balancer), name="ticks")
            balancer.parts.tasks.spawn(give_memory_back(balancer), name="freed memory")
            watches = self._watches(balancer, reloader)
            balancer.parts.tasks.spawn(watch_files(balancer, watches), name="files")
            if self._start.predecessor is None:
                await listener_set.open_own()
            else:  # what operators added is probed with the rest
                resume_operator_state(balancer, self._start.predecessor.operator)
                self._succession = Succession(
                    self._start.predecessor,
                    balancer,
                    self._stop_service,
                    upgrader.news,
                    lambda why: self._ask_to_reload(balancer, reloader, why),
                )
            await unless(self._stop, balancer.control.start())
            await self._begin(balancer, listener_set)
            if not self._accepting:
                reloader.closed = upgrader.closed = upgrader.closed or _SHUTS_DOWN
            reloader.begun.set()  # those that wait for it are refused, at the least
            upgrader.begun.set()
            if self._accepting:
                await self._stop.wait()
                reloader.closed = upgrader.closed = upgrader.closed or _SHUTS_DOWN
                await self._shut_down(balancer, listener_set)
                if self._successor:
                    await self._vanish(listener_set)
        finally:
            await self._remove_pid_file(balancer)
            if self._upgrader is not None:
                await self._upgrader.aclose()
            if self._succession is not None:
                self._succession.close()
            listener_set.close()
            await balancer.aclose()
            await self._own_servers.close(self._ending)
        _log.info("stopped")

    # Start

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGUSR1, self._logs.reopen)

    def _on_stop_signal(self) -> None:
        force, self._is_told = self._is_told, True
        self._stop_service(None, force)

    def _stop_service(self, told_by: Peer | None, force: bool) -> None:
        """End this process and the other ones of the service.

        Args:
            told_by: the process that has passed the stop on; None: this one got the signal.
            force: whether to cut requests.
        """
        self._is_stopping = True
        self._stop.set()
        if force:
            self._force.set()
        if self._upgrader is not None:
            self._upgrader.stop(force=force)
        for peer in self._peers():
            if peer is not told_by:
                peer.say("stop", force)
                self._awaited.add(peer)
        if told_by is not None:
            self._awaited.discard(told_by)  # it may wait for us

    def _peers(self) -> list[Peer]:
        """The process before and the successor, as far as they run and are of the service."""
        before = self._succession.peer if self._succession is not None else None
        after = self._upgrader.successor if self._upgrader is not None else None
        return [peer for peer in (before, after) if peer is not None and not peer.is_gone]

    def _handle_requests(
        self, balancer: LoadBalancer, reloader: Reloader, upgrader: Upgrader
    ) -> None:
        def upgrade() -> None:
            balancer.parts.tasks.spawn(upgrader.ask("SIGUSR2"), name="upgrade")

        loop = asyncio.get_running_loop()
        reload = partial(self._ask_to_reload, balancer, reloader, "SIGHUP")
        loop.add_signal_handler(signal.SIGHUP, reload)
        loop.add_signal_handler(signal.SIGUSR2, upgrade)
        release_signals()

    def _ask_to_reload(self, balancer: LoadBalancer, reloader: Reloader, why: str) -> None:
        balancer.parts.tasks.spawn(reloader.ask(why), name="reload")

    def _pass_on(self, why: str) -> bool:
        """Ask the process that has taken over to reload. False when there is none."""
        successor = self._upgrader.successor if self._upgrader is not None else None
        if successor is None or successor.is_gone:
            return False
        successor.say("reload", why)
        _log.info("reload passed on", extra={"by": why, "to": self._successor})
        return True

    async def _reload(self) -> Reload:
        """For the admin API."""
        if self._reloader is None:
            return await cannot()
        try:
            done = await self._reloader.reload("admin API")
        except ChangeRefused as refused:
            raise not_done("configuration refused, nothing has changed", refused.reasons) from None
        return Reload(changed=list(done.changed), hash=done.digest)

    async def _upgrade(self) -> Upgrade:
        """For the admin API."""
        if self._upgrader is None:
            return await cannot()
        try:
            return Upgrade(pid=await self._upgrader.upgrade("admin API"))
        except UpgradeFailed as failure:
            goes_on = "" if self._is_stopping else ", this process goes on"
            raise not_done(f"upgrade failed{goes_on}", [str(failure)]) from None

    def _listening(self) -> Mapping[str, Address]:
        """Where the process listens now, by listener."""
        listeners = self._listeners if self._listener_set is None else self._listener_set.listeners
        return listeners.addresses

    async def _give_way(
        self, balancer: LoadBalancer, listener_set: ListenerSet, successor: int
    ) -> None:
        """Another process accepts at our sockets.

        Raises:
            PidFileError: it cannot be said that it serves; nothing has changed.
            FileStalled: likewise, since the file cannot be written now.
        """
        await unless(self._stop, self._write_pid_file(balancer, successor))
        if self._is_stopping:
            return
        self._successor = successor
        if self._reloader is not None:  # from now on, not only once the shutdown begins
            self._reloader.closed = f"process {successor} has taken over"
        listener_set.give_way()
        self._stop.set()

    async def _start_own_servers(self, balancer: LoadBalancer) -> Mapping[str, OwnServer]:
        apps = {
            "metrics": metrics_app(balancer, lambda: self.is_ready),
            "admin": admin_app(balancer, self._reload, self._upgrade, self._listening),
        }
        return await self._own_servers.start(apps)

    async def _begin(self, balancer: LoadBalancer, listener_set: ListenerSet) -> None:
        """Accept, unless told to stop; take over from the process before, if there is one.

        Raises:
            PidFileError: the file cannot be written, and there is no process before this one.
            FileStalled: likewise, since it cannot be written now.
        """
        balancer.control.directory.begin()
        succession = self._succession
        if not self._stop.is_set():
            if succession is not None:
                await unless(self._stop, succession.take_over())
            else:  # whoever waits until we are ready finds the file
                await unless(self._stop, self._write_pid_file(balancer, os.getpid()))
        if self._stop.is_set():
            if succession is not None:
                succession.decline("it was told to stop")
            return
        if succession is not None:
            await listener_set.open_own()
        await listener_set.open()
        quiet_the_collector()
        self._accepting = True
        if succession is None:
            self._announce(balancer, listener_set)
            return
        succession.accepts()
        await unless(self._stop, succession.answer())
        if self._stop.is_set():  # who serves is what decides whether the stop is for the service
            await self._unless_late(succession.answer())
        if not succession.is_done:  # the process before goes on, or ends with us
            self._stop.set()
            return
        listener_set.own(succession.predecessor.inherited)
        if self._is_stopping:  # the process before has not heard of it
            self._stop_service(None, self._force.is_set())
        try:
            await unless(self._stop, self._write_pid_file(balancer, os.getpid()))
        except (PidFileError, FileStalled) as error:
            _log.error("no PID file", extra={"why": str(error)})  # nobody else serves
        self._announce(balancer, listener_set)

    async def _unless_late(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await work
        except TimeoutError:
            return

    def _announce(self, balancer: LoadBalancer, listener_set: ListenerSet) -> None:
        """Say that this process serves."""
        addresses = listener_set.listeners.addresses
        records = balancer.control.directory.records
        others = [
            (each.backend.name, each.state.value)
            for each in records
            if each.state is not BackendState.UP
        ]
        up = len(records) - len(others)
        if _is_at_terminal(balancer.settings):
            sys.stderr.write("\n".join(banner(addresses, up, others)) + "\n")
            sys.stderr.flush()
        else:
            facts = {
                "up": up,
                "backends": len(records),
                "connections": listener_set.budget.clients,
                "compiled": is_compiled(),
            }
            _log.info("serving", extra={**{k: str(v) for k, v in addresses.items()}, **facts})
        ready(os.environ)

    async def _write_pid_file(self, balancer: LoadBalancer, pid: int) -> None:
        """Say in the file, if there is one, that it is the process with this id that serves.

        Raises:
            PidFileError: it cannot be written.
            FileStalled: it cannot be written now.
        """
        if self._start.pid_file:
            await balancer.parts.files.run("pid", partial(write_pid, self._start.pid_file, pid))

    async def _remove_pid_file(self, balancer: LoadBalancer) -> None:
        if not self._start.pid_file:
            return
        try:
            async with asyncio.timeout(_REMOVE_S):
                while True:
                    try:
                        await balancer.parts.files.run(
                            "pid", partial(remove_pid, self._start.pid_file)
                        )
                        return
                    except FileStalled:  # it may still be written: a stop does not wait for that
                        await asyncio.sleep(STEP_S)
        except TimeoutError:
            _log.warning("PID file was not removed", extra={"file": self._start.pid_file})

    def _watches(self, balancer: LoadBalancer, reloader: Reloader) -> Sequence[ConfigurationWatch]:
        """The configuration, where that is to be followed."""

        def changed() -> None:
            if balancer.settings.reload.watch:
                balancer.parts.tasks.spawn(reloader.ask("watch"), name="reload")

        file = self._start.file
        return () if file is None else (ConfigurationWatch(file, changed),)

    # Shutdown

    async def _shut_down(self, balancer: LoadBalancer, listener_set: ListenerSet) -> None:
        shutdown = balancer.settings.shutdown
        self._accepting = False
        balancer.control.standby.is_leaving = True
        if self._successor:
            await self._leave(balancer, listener_set)
        else:
            await self._drain(balancer, listener_set)
        limit_s = shutdown.pre_stop_delay + shutdown.drain + GOODBYE_S
        await self._ending.until(lambda: all(peer.is_gone for peer in self._awaited), limit_s)

    async def _drain(self, balancer: LoadBalancer, listener_set: ListenerSet) -> None:
        """Finish what we have, while nobody takes what is new."""
        shutdown = balancer.settings.shutdown
        if self._succession is None or self._succession.is_done:
            notify("STOPPING=1", os.environ)
        _log.info("stopping", extra={"requests": balancer.relay.dispatcher.open_exchanges})
        balancer.relay.dispatcher.announce_exit()
        if shutdown.pre_stop_delay:
            # Clients that send requests meanwhile lose none on a connection that is just closed.
            balancer.relay.http1.begin_drain(gently=True)
            await self._ending.until(lambda: False, shutdown.pre_stop_delay)
        listener_set.stop()
        await self._ending.finish(shutdown.drain)

    async def _leave(self, balancer: LoadBalancer, listener_set: ListenerSet) -> None:
        """Finish what we have, while the next process takes what is new. A client's connection
        closes with the answer to its next request, so that none is lost on one that has just been
        closed. Once the service is told to stop, nobody takes what is new."""
        drain_s = balancer.settings.shutdown.drain
        fields = {"to": self._successor, "requests": balancer.relay.dispatcher.open_exchanges}
        _log.info("giving way", extra=fields)
        balancer.relay.begin_drain(gently=True)

        def is_over() -> bool:
            return self._is_stopping or (balancer.relay.idle and not listener_set.clients)

        await self._ending.until(lambda: self._is_stopping, _LINGER_S)
        await self._ending.until(is_over, drain_s)
        if self._is_stopping:
            _log.info("stopping", extra={"requests": balancer.relay.dispatcher.open_exchanges})
            await self._ending.finish(drain_s)
        elif not balancer.relay.idle:
            await self._ending.cut()
        await self._ending.until(lambda: self._is_stopping or not self._relays, math.inf)

    @property
    def _relays(self) -> bool:
        """The successor hears of sequences at the process before this one, and that one of its
        sequences, through this process alone."""
        succession = self._succession
        return (
            succession is not None and succession.peer is not None and not succession.peer.is_gone
        )

    async def _vanish(self, listener_set: ListenerSet) -> None:
        """End a process that has given way, without the interpreter's own clean-up. That takes a
        tenth of a second in which no signal is heard, and a stop would end this process alone."""
        listener_set.close()
        _log.info("stopped")
        try:
            await in_thread(self._logs.close)
        except NoThread:
            self._logs.close()  # no request waits for it any more
        for _ in range(FLUSH_TURNS):  # signals that came meanwhile are passed on
            await asyncio.sleep(0)
        os._exit(0)


def _is_at_terminal(settings: Settings) -> bool:
    """Whether people read what the process writes to standard error, and want to know of its
    start."""
    wanted = settings.log.level in (LogLevel.DEBUG, LogLevel.INFO)
    return wanted and settings.log.format is LogFormat.TEXT and sys.stderr.isatty()
