"""The supervisor of a service with workers: it binds the listeners, and starts the processes.

    supervisor --- control process: probes, admin API, metrics; publishes snapshots
          +------- worker 0 ... worker N-1: accept at the same sockets, relay

Signals are for the supervisor; the other processes hear of them from it alone. A process that dies
is started again, with a pause that grows while it does not live. When the supervisor itself has
died, the workers answer what they have, as after SIGTERM, and end: nobody would start them again,
and the next supervisor needs their addresses.

Nothing of the data plane is imported here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from lb.domain.errors import LoadBalancerError
from lb.net.tasks import TaskOwner
from lb.net.threads import in_thread
from lb.runtime.child_end import end_of
from lb.runtime.next_process import READY_S
from lb.runtime.predecessor import MOST_UNSENT, Predecessor, line, unsent
from lb.runtime.signals import notify, ready, release_signals, reloading, remove_pid, write_pid
from lb.runtime.sockets import OWN, Bound, Listeners, claim
from lb.runtime.start import Start
from lb.runtime.workers.next_service import NextService, NotReplaced
from lb.runtime.workers.parent import VARIABLE
from lb.runtime.workers.seat import (
    BEFORE,
    CONTROL,
    LINE_BYTES,
    NEXT,
    SEQUENCE_MESSAGES,
    WORKER,
)
from lb.settings.model import Settings
from lb.settings.plain import plain
from lb.sharing.board import last_tick
from lb.sharing.memory import attach, clear, create, last_beat
from lb.telemetry.logs import ApplicationLog
from lb.wire.hops import new_identity

_log = logging.getLogger(__name__)

_LIVED_S: Final = 10.0
"""A process that has lived for so long is started again at once."""
_PAUSE_S: Final = 0.1
"""Before the second start in a row; doubled for each further one."""
_MOST_PAUSE_S: Final = 10.0
LOOK_S: Final = 1.0
"""Between two looks at whether the processes run."""
HUNG_S: Final = 10.0
"""A process that has stood still for so long is killed: clients of a worker do better with another
one, and only the next control process answers at the metrics port. No iteration of an event loop
takes as long, on a machine without free cores either."""
_MARGIN_S: Final = 5.0
"""How much longer than requests may take a process may take to end, before it is killed."""


class Child:
    """One process that the supervisor keeps running."""

    def __init__(self, role: str, index: int) -> None:
        self.role = role
        self.index = index
        self.starts = 0
        self.failures = 0
        """Starts in a row that came to an early end."""
        self.process: subprocess.Popen[bytes] | None = None
        self.is_alive = False
        """It runs, or is being started."""
        self.is_ready = False
        self.hang = HangDetector(0.0)
        self.writer: asyncio.StreamWriter | None = None

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self.role if self.role == CONTROL else f"{self.role}-{self.index}"

    def say(self, event: str, value: Any = True) -> None:
        """Tell it something, if it runs."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(line(event, value))

    def cancel_start(self) -> None:
        """End it if it still imports and cannot hear us; if it can, it ignores this signal."""
        if self.process is not None and not self.is_ready:
            self.process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()


class HangDetector:
    """Finds out that a process stands still: its ticks in the shared memory do not go on, or have
    not begun in time.

    What counts are looks of the supervisor. If all processes were frozen together, as by `docker
    pause`, the ticks go on before the supervisor has looked often enough.
    """

    def __init__(self, tick: float) -> None:
        """`tick`: what the memory says before the process has ticked."""
        self._tick = tick
        self._limit_s = READY_S
        self._looks = 0

    def check(self, tick: float) -> bool:
        """Look at the last tick of a process, once in `LOOK_S`. Whether it hangs."""
        if tick != self._tick:
            self._tick = tick
            self._limit_s = HUNG_S
            self._looks = 0
        else:
            self._looks += 1
        return self._looks * LOOK_S >= self._limit_s


class Supervisor:
    """Runs a service with workers."""

    def __init__(
        self,
        settings: Settings,
        digest: str,
        listeners: Listeners,
        count: int,
        pid_file: str = "",
        command: Sequence[str] = (),
        predecessor: Predecessor | None = None,
    ) -> None:
        """
        Args:
            settings: to begin with.
            digest: of their text.
            listeners: bound; the caller closes them.
            count: workers.
            pid_file: holds the id of this process; empty: there is none.
            command: that starts each process; the one that started this process if left out.
            predecessor: the service before this one, which gives way to it.

        Raises:
            OSError: there is no memory that workers could share.
        """
        self._settings = settings
        self._plain: Any = plain(settings)
        self._digest = digest
        self._listeners = listeners
        self._count = count
        self._pid_file = pid_file
        self._command = tuple(command) or (sys.executable, *sys.orig_argv[1:])
        self._identity = new_identity(os.urandom)
        self._token = secrets.token_hex(16)
        self._predecessor = predecessor
        self._operator: Any = {} if predecessor is None else predecessor.operator
        self._counts: Any = []
        """What workers have counted that have ended, as a control process has told it."""
        self._hub = socket.socket(socket.AF_UNIX)
        self._hub.bind("")  # an abstract name that the kernel chooses
        self._hub.listen(count + 1)
        self._board = create(count)
        self._memory = attach(self._board, count)
        self.control = Child(CONTROL, -1)
        self._has_control = asyncio.Event()
        """The control process was started: it can be told something."""
        self.workers = [Child(WORKER, index) for index in range(count)]
        self._tasks = TaskOwner()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._is_serving = False
        self._reload_asked = ""
        """Who asked for a reload that no control process has heard of yet."""
        self._has_failed = False
        """The service could not start."""
        self._replacing = asyncio.Lock()
        """Held while the next service is being started."""
        self._reloads_held = asyncio.Event()
        """The control process reloads nothing until it is clear who serves."""
        self._next: NextService | None = None
        """The next service, from its start on."""
        self._is_replaced = False
        """It serves."""
        self._before: asyncio.StreamWriter | None = None
        """Leads to the service before this one, until that has ended."""

    async def main(self) -> int:
        """Start, keep all processes running, and end them when told to. Returns the exit code."""
        self._handle_signals()
        try:
            for child in (self.control, *self.workers):
                self._keep(child)
            self._tasks.spawn(self._watch(), name="hung processes")
            if self._predecessor is not None:
                self._tasks.spawn(self._follow(self._predecessor), name="service before")
            await self._stop.wait()
            await self._end()
        finally:
            for child in (self.control, *self.workers):
                child.kill()
            if self._pid_file and self._is_serving:
                remove_pid(self._pid_file)
            await self._tasks.aclose()
            if self._next is not None:
                self._next.close()
            self._hub.close()
            os.close(self._board)
        _log.info("stopped")
        return int(self._has_failed)

    # Signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload, "SIGHUP")
        loop.add_signal_handler(signal.SIGUSR1, self._on_reopen)
        loop.add_signal_handler(signal.SIGUSR2, self._on_upgrade)
        release_signals()

    def _on_stop(self) -> None:
        if self._stop.is_set():
            self._force.set()
            for worker in self.workers:
                worker.say("stop", True)
        self._stop.set()

    def _on_reload(self, why: str) -> None:
        if self._is_replaced and self._next is not None:
            self._next.say_reload(why)
            return
        reloading(os.environ)
        if self.control.is_ready:
            self.control.say("reload", why)
        else:
            self._reload_asked = why
            ready(os.environ)

    def _on_reopen(self) -> None:
        for child in (self.control, *self.workers):
            child.say("reopen")

    def _on_upgrade(self) -> None:
        self._tasks.spawn(self._upgrade_for_signal(), name="upgrade")

    async def _upgrade_for_signal(self) -> None:
        await self._upgrade("SIGUSR2")  # how it ends is in the log

    async def _upgrade(self, by: str) -> tuple[int, str]:
        """Start the next service and give way to it. Returns the id of its supervisor, or why this
        service goes on."""
        if not self._is_serving or self._replacing.locked() or self._stop.is_set():
            return self._go_on(by, "another upgrade is under way, or the service does not serve")
        async with self._replacing:
            reloading(os.environ)
            self._next = NextService(
                self._command,
                self._listeners,
                self._operator,
                self._stop,
                lambda event, value: self.control.say(event, [NEXT, value]),
            )
            await self._hold_reloads()
            try:
                pid = await self._next.start()
            except NotReplaced as error:
                self._next = None
                self.control.say("not_replaced")
                if not self._stop.is_set():
                    ready(os.environ)
                return self._go_on(by, str(error))
        _log.info("handed over to the next service", extra={"by": by, "pid": pid})
        self._is_replaced = True
        for bound in self._listeners.bound.values():
            bound.is_ours = False
        ready(os.environ, main_pid=pid)
        self.control.say("give_way")
        if self._reload_asked:
            self._next.say_reload(self._reload_asked)
        self._tasks.spawn(self._next.follow(), name="next service")
        self._stop.set()
        return pid, ""

    async def _hold_reloads(self) -> None:
        """Have a reload that is under way end, and no other one begin. A control process that is
        away reloads nothing, and hears of it when it is back."""
        self._reloads_held.clear()
        self.control.say("upgrading")
        while self.control.is_ready and not self._reloads_held.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._reloads_held.wait()
            except TimeoutError:
                continue

    def _go_on(self, by: str, why: str) -> tuple[int, str]:
        is_over = self._stop.is_set()
        message = "upgrade failed" if is_over else "upgrade failed, this service goes on"
        _log.error(message, extra={"by": by, "why": why})
        return 0, why

    async def _upgrade_for_admin(self) -> None:
        """Upgrade, and tell the control process how that ended."""
        pid, why = await self._upgrade("admin API")
        self.control.say("upgraded", [pid, why])

    # Processes

    def _keep(self, child: Child) -> None:
        self._tasks.spawn(self._run(child), name=child.name)

    async def _run(self, child: Child) -> None:
        """Start a process, and start it again whenever it has ended."""
        loop = asyncio.get_running_loop()
        while self._is_wanted(child):
            began = loop.time()
            child.is_alive = True
            try:
                code = await self._live(child)
            except OSError as error:
                code = str(error)
            finally:
                child.is_alive = False
            if not self._is_wanted(child):
                return
            if not self._is_serving:
                self._fail(f"{child.name} could not start: its lines above say why")
                return
            lived_s = loop.time() - began
            child.failures = 0 if lived_s >= _LIVED_S else child.failures + 1
            pause_s = 0.0
            if child.failures > 1:
                pause_s = min(_PAUSE_S * 2 ** (child.failures - 2), _MOST_PAUSE_S)
            fields = {"role": child.name, "code": code, "lived_s": round(lived_s, 1)}
            _log.error("process has ended and is started again", extra={**fields, "in_s": pause_s})
            if self._stop.is_set():
                await asyncio.sleep(pause_s)
                continue
            try:
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            except TimeoutError:
                continue

    def _is_wanted(self, child: Child) -> bool:
        """Whether a process that has ended is started again. After a hand-over the next service
        hears of the workers' sequences through the control process."""
        if not self._stop.is_set():
            return True
        has_workers = any(worker.is_alive for worker in self.workers)
        return child is self.control and self._is_replaced and has_workers

    async def _watch(self) -> None:
        """Kill processes that stand still. They are started again as after any other death."""
        while not self._stop.is_set():
            await asyncio.sleep(LOOK_S)
            for child in (self.control, *self.workers):
                if child.process is not None and child.hang.check(self._last_tick(child)):
                    child.hang = HangDetector(self._last_tick(child))
                    _log.error("process stands still and is killed", extra={"role": child.name})
                    child.kill()

    def _last_tick(self, child: Child) -> float:
        if child is self.control:
            return last_beat(self._memory)
        return last_tick(self._memory, child.index)

    def _fail(self, why: str) -> None:
        """Give up the start."""
        _log.error("service does not start", extra={"why": why})
        self._has_failed = True
        self._stop.set()

    async def _live(self, child: Child) -> str:
        """One life of a process. Returns how it ended."""
        child.starts += 1
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._greet(child, ours)
                environment = {**os.environ, VARIABLE: str(theirs.fileno())}
                environment.pop("NOTIFY_SOCKET", None)  # we talk to the service manager
                # To the kernel the thread is the parent: the process hears of its end
                # (`end_with_supervisor`). Threads of the loop live until the loop is closed.
                process = await in_thread(
                    subprocess.Popen,
                    self._command,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        child.hang = HangDetector(self._last_tick(child))
        child.process = process
        _log.info("process started", extra={"role": child.name, "pid": process.pid})
        reader, child.writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES)
        child.writer.write(json.dumps(self._seat_of(child)).encode() + b"\n")
        if child is self.control:
            self._has_control.set()
        if not self._is_wanted(child):  # told while it was being started
            self._say_stop(child)
        try:
            while (text := await reader.readline()).endswith(b"\n"):
                for event, value in json.loads(text).items():
                    self._hear(child, event, value)
        except OSError:
            pass  # it has gone
        child.is_ready = False
        child.writer.close()
        child.writer = None
        code = await end_of(process)
        child.process = None
        if child.role == WORKER:
            clear(self._memory, child.index, self._count)  # what it had in flight
        return str(code)

    def _greet(self, child: Child, ours: socket.socket) -> None:
        """Send the sockets."""
        bound = self._sockets_of(child)
        greeting = {
            "listeners": [{"name": each.name, "wanted": str(each.wanted)} for each in bound],
            "hub": child.role == CONTROL,
        }
        fds = [each.socket.fileno() for each in bound]
        if child.role == CONTROL:
            fds.append(self._hub.fileno())
        fds.append(self._board)
        socket.send_fds(ours, [json.dumps(greeting).encode() + b"\n"], fds)

    def _sockets_of(self, child: Child) -> list[Bound]:
        """The control process keeps all, so that a reload finds them bound."""
        bound = self._listeners.bound.values()
        return [each for each in bound if child.role == CONTROL or each.name not in OWN]

    def _seat_of(self, child: Child) -> dict[str, Any]:
        return {
            "role": child.role,
            "index": child.index,
            "count": self._count,
            "start": child.starts,
            "settings": self._plain,
            "digest": self._digest,
            "identity": self._identity.decode(),
            "hub": self._hub.getsockname()[1:].decode(),
            "token": self._token,
            "operator": self._operator,
            "is_next": self._predecessor is not None and not self._is_serving,
            "gave_way": self._is_replaced,
            "counts": self._counts if child.role == CONTROL else [],
        }

    def _hear(self, child: Child, event: str, value: Any) -> None:
        match event:
            case "ready":
                child.is_ready = True
                self._on_ready(child)
            case "settings":
                self._plain, self._digest = value["settings"], value["digest"]
                self._settings = Settings.model_validate(self._plain)
            case "operator":
                self._operator = value
                if self._next is not None:
                    self._next.say_operator(value)
            case news if news in SEQUENCE_MESSAGES:
                whom, told = value
                if whom == NEXT:
                    if self._next is not None:
                        self._next.say_news(news, told)
                elif self._before is not None and unsent(self._before) < MOST_UNSENT:
                    self._before.write(line(news, told))
            case "reloads_held":
                self._reloads_held.set()
            case "pass_on":
                if self._is_replaced:
                    self._on_reload(value)
            case "counts":
                self._counts = value
            case "reloaded":
                ready(os.environ)
            case "upgrade":
                self._tasks.spawn(self._upgrade_for_admin(), name="upgrade")

    def _on_ready(self, child: Child) -> None:
        if self._is_serving:
            if not self._is_replaced:
                ready(os.environ)  # a reload may have ended with the process before
            _log.info("process serves again", extra={"role": child.name})
            if child is self.control:
                child.say("serving")
        if child is self.control:
            if self._next is not None and not self._is_replaced:
                child.say("upgrading")
            if self._before is not None:
                child.say("follow_before")
            if self._reload_asked:
                child.say("reload", self._reload_asked)
                self._reload_asked = ""
        if self._is_serving or not all(c.is_ready for c in (self.control, *self.workers)):
            return
        self._is_serving = True
        if self._pid_file:
            try:
                write_pid(self._pid_file, os.getpid())
            except LoadBalancerError as error:
                self._fail(str(error))
                return
        self.control.say("serving")
        addresses = {name: str(each) for name, each in self._listeners.addresses.items()}
        _log.info("serving", extra={**addresses, "workers": self._count})
        if self._predecessor is not None:
            self._take_over(self._predecessor)
        ready(os.environ)

    async def _follow(self, predecessor: Predecessor) -> None:
        """Hear what operators and workers say to the service before this one, until it has
        ended."""
        await self._has_control.wait()
        predecessor.channel.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(
            sock=predecessor.channel, limit=LINE_BYTES
        )
        self._before = writer
        self.control.say("follow_before")
        try:
            while (text := await reader.readline()).endswith(b"\n"):
                for event, value in json.loads(text).items():
                    if event == "operator":
                        self._operator = value
                        self.control.say("operator", value)
                    elif event in SEQUENCE_MESSAGES:
                        self.control.say(event, [BEFORE, value])
                    elif event == "reload":
                        self._on_reload(value)
        except OSError:
            pass  # it has gone
        except ValueError as error:
            _log.warning("service before is not understood", extra={"why": str(error)})
        finally:
            self._before = None
            self.control.say("forget_before")
            writer.close()

    def _take_over(self, predecessor: Predecessor) -> None:
        """Have the service before this one give way."""
        if self._before is not None:
            self._before.write(line("ready"))
        for each in predecessor.inherited:
            for bound in self._listeners.bound.values():
                if bound.socket is each.socket:
                    bound.is_ours = each.is_ours

    # The end

    async def _end(self) -> None:
        """End the workers, then the control process, which shows until then what goes on."""
        if not self._is_replaced:
            notify("STOPPING=1", os.environ)
        _log.info("stopping")
        self.control.say("draining")
        for worker in self.workers:
            self._say_stop(worker)
        shutdown = self._settings.shutdown
        limit_s = shutdown.pre_stop_delay + shutdown.drain + _MARGIN_S
        await self._gone(self.workers, limit_s)
        self.control.say("stop")
        self.control.cancel_start()
        await self._gone([self.control], _MARGIN_S)
        async with self._replacing:
            pass  # the next service has ended, if it was still being started

    def _say_stop(self, child: Child) -> None:
        if self._is_replaced:
            child.say("give_way")
        child.say("stop", self._force.is_set())
        child.cancel_start()

    async def _gone(self, children: Sequence[Child], limit_s: float) -> None:
        """Wait until processes have ended; those that take too long are killed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while any(child.is_alive for child in children):
            now = loop.time()
            if self._force.is_set():
                deadline = min(deadline, now + _MARGIN_S)
            if now > deadline:
                for child in children:
                    if child.process is not None:
                        _log.warning(
                            "process does not end and is killed", extra={"role": child.name}
                        )
                        child.kill()
                deadline = now + _MARGIN_S
            await asyncio.sleep(0.02)


def run_supervisor(settings: Settings, start: Start, count: int) -> int:
    """Serve with workers until told to stop. Returns the exit code.

    Raises:
        LoadBalancerError: an address cannot be used.
    """
    listeners = Listeners(settings, claim(start.inherited, settings))
    log = ApplicationLog(settings.log.level, settings.log.format)
    try:
        supervisor = Supervisor(
            settings,
            start.digest,
            listeners,
            count,
            start.pid_file,
            predecessor=start.predecessor,
        )
        return asyncio.run(supervisor.main())
    finally:
        log.close()
        listeners.close()
