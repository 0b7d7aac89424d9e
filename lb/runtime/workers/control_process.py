"""The control process of a service with workers: it watches the backends, and has what people see.

It accepts at the metrics port and for the admin API, and serves no client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lb.admin.api import not_done
from lb.admin.models import Reload, Upgrade
from lb.domain.backend import Address
from lb.net.file_thread import FileStalled
from lb.runtime.configuration_file import ConfigurationFile, ConfigurationWatch
from lb.runtime.draining import Drain, unless
from lb.runtime.handover import operator_state, resume_operator_state
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.own_servers import OwnServers
from lb.runtime.reload import ChangeRefused, Reloader
from lb.runtime.sockets import Listeners, wanted_sockets
from lb.runtime.upkeep import watch_files
from lb.runtime.wiring import LoadBalancer, admin_app, metrics_app
from lb.runtime.workers.hub import Hub
from lb.runtime.workers.seat import BEFORE, NEXT, SEQUENCE_MESSAGES, Seat, SupervisorChannel
from lb.settings.model import Settings
from lb.settings.plain import plain
from lb.settings.reading import Loaded
from lb.sharing.memory import attach, beat

_log = logging.getLogger(__name__)

_TELL_S: Final = 0.2
"""How often the supervisor is told what operators have said, if that has changed."""
_BEAT_S: Final = 1.0
"""How often this process says that it runs. The supervisor looks as often."""
_APPLY_S: Final = 5.0
"""How long a reload waits for the workers to follow."""


class ControlProcess:
    """The control process."""

    def __init__(
        self, seat: Seat, listeners: Listeners, logs: Logs, file: ConfigurationFile | None
    ) -> None:
        """
        Args:
            seat: from the supervisor.
            listeners: all of the service.
            logs: where to tell of it.
            file: of the configuration; None where flags say it all.
        """
        self._seat = seat
        self._listeners = listeners
        self._logs = logs
        self._file = file
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._is_serving = False
        """The supervisor has said so: the PID file is there."""
        self._is_draining = False
        self._told = ""
        """What the supervisor knows of operators."""
        self._memory = attach(seat.board, seat.count)
        self._own_servers = OwnServers()
        self._upgraded: asyncio.Future[tuple[int, str]] | None = None
        """How an upgrade ends that somebody has asked for at the admin port."""
        self._operator = seat.operator
        """What operators have said to control processes before this one."""
        self._is_prepared = False
        """That is in force here."""
        self._gave_way = seat.gave_way
        """The next service serves."""
        self._is_decided = asyncio.Event()
        """It is clear who serves after the last upgrade."""
        self._is_decided.set()
        self._early_news: list[tuple[str, str, Any]] | None = []
        """What other services told of sequences before backends are known here: which one, and its
        message. None from then on."""

    @property
    def is_ready(self) -> bool:
        """Some worker serves, and the service does not shut down."""
        return self._is_serving and bool(self._hub.connected) and not self._is_draining

    async def main(self) -> None:
        """Start, watch, and end when the supervisor says so, or has ended."""
        seat = self._seat
        self._balancer = balancer = LoadBalancer(
            seat.settings, self._logs, seat.digest, identity=seat.identity
        )
        ending = Drain(balancer.relay, self._force)
        self._channel = channel = SupervisorChannel(seat)
        self._hub = hub = Hub(seat, balancer, self._keep_counts)
        apps = {
            "metrics": metrics_app(balancer, lambda: self.is_ready, hub.counts_told),
            "admin": admin_app(balancer, self._reload, self._upgrade, self._listening),
        }
        servers = await self._own_servers.start(apps)
        self._listener_set = listener_set = ListenerSet(
            balancer, self._listeners, servers, is_serving=False
        )
        self._reloader = reloader = Reloader(balancer, listener_set, self._file, self._pass_on)
        reloader.judge, reloader.applied = self._judge, self._applied
        balancer.control_process_starts = seat.start
        tasks = balancer.parts.tasks
        self._balancer.parts.timers.every(_BEAT_S, self._beat)
        try:
            tasks.spawn(channel.run(self._on_order, self._stop.set), name="supervisor")
            tasks.spawn(watch_files(balancer, self._watches()), name="files")
            if not (self._gave_way or seat.is_next):
                await listener_set.open_own()
            self._is_prepared = True
            resume_operator_state(balancer, self._operator)
            await unless(self._stop, balancer.control.start())
            if not self._stop.is_set():
                balancer.control.directory.begin()
                early, self._early_news = self._early_news or (), None
                for whom, event, value in early:
                    hub.hear_service(whom, event, value)
                if self._gave_way:
                    self._give_way()
                    hub.tell_service(NEXT, partial(self._tell_service, NEXT))
                await hub.start()
                reloader.begun.set()
                channel.say("ready", os.getpid())
                balancer.side.pool.subscribe(lambda _: self._tell_operator())
                tasks.spawn(self._watch_operator(), name="operator")
            await self._stop.wait()
        finally:
            reloader.closed = "the process shuts down"
            reloader.begun.set()
            hub.close()
            listener_set.close()
            await balancer.aclose()
            await self._own_servers.close(ending)

    def _beat(self) -> None:
        """Say that the event loop runs."""
        beat(self._memory, time.monotonic())

    def _on_order(self, event: str, value: Any) -> None:
        match event:
            case "serving":
                self._is_serving = True
                if self._seat.is_next:
                    # What operators said before was for the service that serves: it tells us all.
                    work = self._listener_set.open_own()
                    self._balancer.parts.tasks.spawn(work, name="own listeners")
            case "draining":
                self._is_draining = True
                self._reloader.closed = "the service shuts down"
            case "stop":
                self._stop.set()
            case "reload":
                self._balancer.parts.tasks.spawn(self._reload_for(value), name="reload")
            case "reopen":
                self._logs.reopen()
            case "operator":
                self._operator = value
                if self._is_prepared:
                    resume_operator_state(self._balancer, value)
            case "upgrading":
                if self._is_decided.is_set():  # one that has just started may be told twice
                    self._is_decided = decided = asyncio.Event()
                    self._balancer.parts.tasks.spawn(self._until(decided), name="upgrade")
            case "not_replaced":
                self._hub.forget_service(NEXT)
                self._is_decided.set()
            case "follow_before":
                self._hub.tell_service(BEFORE, partial(self._tell_service, BEFORE))
            case news if news in SEQUENCE_MESSAGES:
                whom, told = value
                if self._early_news is None:
                    self._hub.hear_service(whom, news, told)
                else:
                    self._early_news.append((whom, news, told))
            case "forget_before":
                self._hub.forget_service(BEFORE)
            case "give_way":
                self._give_way()
            case "upgraded":
                if self._upgraded is not None and not self._upgraded.done():
                    self._upgraded.set_result((value[0], value[1]))

    async def _reload_for(self, why: str) -> None:
        """The supervisor was told to reload."""
        await self._reloader.ask(why)
        self._channel.say("reloaded")

    async def _until(self, decided: asyncio.Event) -> None:
        """The next service starts: reload nothing until it is clear who serves, and tell it of
        sequences."""
        async with self._reloader.upgrading():
            self._channel.say("reloads_held")
            self._hub.tell_service(NEXT, partial(self._tell_service, NEXT))
            for rows in self._hub.open_sequences():
                self._tell_service(NEXT, "sequences", rows)
                await self._channel.flush()
                await asyncio.sleep(0)
            await decided.wait()

    def _tell_service(self, whom: str, event: str, value: Any) -> None:
        self._channel.say(event, [whom, value])

    def _give_way(self) -> None:
        """The next service serves, and knows from now on what operators say."""
        self._tell_operator()
        self._gave_way = True
        self._listener_set.give_way()
        self._reloader.closed = "the next service serves"
        self._is_decided.set()

    def _pass_on(self, why: str) -> bool:
        """Have the next service reload, if it serves."""
        if self._gave_way:
            self._channel.say("pass_on", why)
        return self._gave_way

    def _tell_operator(self) -> None:
        """Have the supervisor know what operators have said, for the next control process and the
        next service."""
        if self._gave_way:
            return
        state = operator_state(self._balancer)
        text = json.dumps(state, sort_keys=True)
        if text != self._told:
            self._told = text
            self._channel.say("operator", state)

    def _keep_counts(self) -> None:
        """Have the supervisor keep the counts of workers that have gone, likewise."""
        if not self._is_draining:  # there is no next one
            self._channel.say("counts", self._hub.absent_counts())

    async def _watch_operator(self) -> None:
        """Shares of variants change without a new snapshot."""
        while True:
            self._tell_operator()
            await asyncio.sleep(_TELL_S)

    # The configuration

    def _watches(self) -> tuple[ConfigurationWatch, ...]:
        def changed() -> None:
            if self._balancer.settings.reload.watch:
                work = self._reloader.ask("watch")
                self._balancer.parts.tasks.spawn(work, name="reload")

        return () if self._file is None else (ConfigurationWatch(self._file, changed),)

    def _judge(self, settings: Settings) -> list[str]:
        if wanted_sockets(settings) == wanted_sockets(self._balancer.settings):
            return []
        return ["listen: with workers, other addresses need a restart"]

    async def _applied(self, loaded: Loaded) -> None:
        """Other settings are in force here: have the supervisor and the workers go by them."""
        settings = {"settings": plain(loaded.settings), "digest": loaded.digest}
        self._channel.say("settings", settings)
        late = await self._hub.apply(loaded.settings, loaded.digest, _APPLY_S)
        if late:
            workers = ", ".join(map(str, late))
            _log.warning(
                "workers have not followed the configuration yet", extra={"workers": workers}
            )

    async def _reload(self) -> Reload:
        """For the admin API."""
        try:
            done = await self._reloader.reload("admin API")
        except (ChangeRefused, FileStalled) as refused:
            reasons = refused.reasons if isinstance(refused, ChangeRefused) else [str(refused)]
            raise not_done("configuration refused, nothing has changed", reasons) from None
        return Reload(changed=list(done.changed), hash=done.digest)

    async def _upgrade(self) -> Upgrade:
        """For the admin API."""
        if self._upgraded is None or self._upgraded.done():
            self._upgraded = asyncio.get_running_loop().create_future()
            self._channel.say("upgrade")
        pid, why = await asyncio.shield(self._upgraded)
        if why:
            raise not_done("upgrade failed, this service goes on", [why])
        return Upgrade(pid=pid)

    def _listening(self) -> Mapping[str, Address]:
        """Where the service listens, by listener."""
        return self._listener_set.listeners.addresses
