"""A worker: serves clients by the snapshots of the control process."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any, Final

from lb.proxy.neighbours import Neighbours
from lb.runtime.draining import Drain, unless
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.relay_host import RelayHost
from lb.runtime.reload import ChangeRefused, Reloader
from lb.runtime.sockets import Listeners
from lb.runtime.upkeep import give_memory_back, run_ticks, watch_files
from lb.runtime.workers.seat import Seat, SupervisorChannel, for_worker
from lb.runtime.workers.worker_side import WorkerSide
from lb.settings.model import Settings
from lb.sharing.memory import attach, usage_part
from lb.sharing.usage import UsageTable

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
"""Between two tries to follow settings that cannot be applied yet."""


class WorkerProcess:
    """One worker."""

    def __init__(self, seat: Seat, settings: Settings, listeners: Listeners, logs: Logs) -> None:
        """
        Args:
            seat: from the supervisor.
            settings: see `for_worker`.
            listeners: where clients connect.
            logs: where to tell of it.
        """
        self._seat = seat
        self._settings = settings
        self._listeners = listeners
        self._logs = logs
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._in_force = settings, seat.digest
        self._applying = asyncio.Lock()
        self._is_orphan = False
        """The supervisor has ended: nobody waits for us, and somebody may want our sockets."""
        self._is_replaced = False
        """Workers of the next service accept at our sockets."""

    async def main(self) -> None:
        """Start, serve, shut down."""
        seat = self._seat
        side = WorkerSide(seat, self._on_settings)
        memory = attach(seat.board, seat.count)
        usage = UsageTable(usage_part(memory, seat.count), seat.index, seat.count)
        neighbours = Neighbours(memory, seat.index, seat.count, usage)
        host = RelayHost(
            self._settings,
            self._logs,
            side.make,
            seat.digest,
            identity=seat.identity,
            workers=seat.count,
            scheduler=neighbours.scheduler,
            usage=usage,
        )
        traffic = host.relay.meter.traffic
        neighbours.start(host.parts.loop, seat.hub, time.monotonic)

        def tick() -> None:
            neighbours.tick(time.monotonic(), sum([each.connections for each in traffic]))

        tick()
        side.attach(host)
        side.use_policy(self._settings.balancing.policy.value)
        host.configure(self._settings)
        listener_set = ListenerSet(host, self._listeners, {}, share=neighbours)
        self._side, self._reloader = side, Reloader(host, listener_set, None)
        self._host, self._channel = host, SupervisorChannel(seat)
        tasks = host.parts.tasks
        tasks.spawn(self._channel.run(self._on_order, self._on_orphaned), name="supervisor")
        tasks.spawn(side.run(), name="control process")
        tasks.spawn(run_ticks(host, tick, side.tick), name="ticks")
        tasks.spawn(give_memory_back(host), name="freed memory")
        tasks.spawn(watch_files(host), name="files")
        try:
            await unless(self._stop, side.ready.wait())
            if not self._stop.is_set():
                await listener_set.open()
                self._channel.say("ready", os.getpid())
                await self._stop.wait()
                await self._shut_down(host, listener_set)
        finally:
            side.tell_counts()  # the last ones
            await asyncio.sleep(0)
            listener_set.close()
            neighbours.close()
            await host.aclose()

    async def _shut_down(self, host: RelayHost, listener_set: ListenerSet) -> None:
        shutdown = host.settings.shutdown
        ending = Drain(host.relay, self._force)
        if self._is_replaced:
            await self._leave(host, listener_set, ending)
            return
        host.relay.dispatcher.announce_exit()
        if shutdown.pre_stop_delay and not self._is_orphan:
            host.relay.http1.begin_drain(gently=True)
            await ending.until(lambda: self._is_orphan, shutdown.pre_stop_delay)
        listener_set.stop()
        await ending.finish(shutdown.drain)

    async def _leave(self, host: RelayHost, listener_set: ListenerSet, ending: Drain) -> None:
        """Finish what we have, while others take what is new. A connection closes with the answer
        to its next request, so that none is lost on one that has just been closed."""
        relay = host.relay
        listener_set.give_way()
        relay.begin_drain(gently=True)
        await ending.until(
            lambda: relay.idle and not listener_set.clients, host.settings.shutdown.drain
        )
        if not relay.idle:
            await ending.cut()

    def _on_order(self, event: str, value: Any) -> None:
        match event:
            case "stop":
                self._stop.set()
                if value:
                    self._force.set()
            case "give_way":
                self._is_replaced = True
            case "reopen":
                self._logs.reopen()

    def _on_orphaned(self) -> None:
        if not self._stop.is_set():
            _log.error("the supervisor has ended, this worker ends with it")
        self._is_orphan = True
        self._stop.set()

    def _on_settings(self, settings: Settings, digest: str) -> None:
        """Other settings are in force, or the same."""
        self._in_force = for_worker(settings), digest
        self._host.parts.tasks.spawn(self._follow(), name="reload")

    async def _follow(self) -> None:
        """Go by the settings that are in force, and until that is possible by those from before: a
        file may be missing for a moment, and then it is for all workers."""
        async with self._applying:
            settings, digest = in_force = self._in_force
            told = ""
            while settings != self._host.settings and in_force is self._in_force:
                try:
                    await self._reloader.apply(settings)
                except ChangeRefused as refused:
                    if told != str(refused):
                        told = str(refused)
                        _log.error("worker cannot follow the configuration", extra={"why": told})
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._side.use_policy(settings.balancing.policy.value)
            if in_force is self._in_force:
                self._side.say_applied(digest)
