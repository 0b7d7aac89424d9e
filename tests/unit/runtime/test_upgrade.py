"""Giving way to the next process, against programs that stand for one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lb.runtime.handover import Peer
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import Logs
from lb.runtime.predecessor import VARIABLE
from lb.runtime.reload import Reloader
from lb.runtime.signals import PidFileError
from lb.runtime.sockets import Listeners
from lb.runtime.upgrade import UpgradeFailed, Upgrader
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.gated import until

CONFIG: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}
HELLO = f"""
import json, os, socket, sys, time
channel = socket.socket(fileno=int(os.environ["{VARIABLE}"]))
data, fds, _, _ = socket.recv_fds(channel, 65536, 64)
listeners = json.loads(data)["listeners"]
def tell(**event): channel.sendall(json.dumps(event).encode() + b"\\n")
def hear(what):
    text = b""
    while what not in text:
        text += channel.recv(65536) or sys.exit(0)
"""


class Old:
    """The process that runs."""

    def __init__(self) -> None:
        settings = Settings.model_validate(CONFIG)
        self.logs = Logs(settings)
        self.product: LoadBalancer = LoadBalancer(settings, self.logs)
        self.listener_set = ListenerSet(self.product, Listeners(settings), {})
        self.reloader = Reloader(self.product, self.listener_set, None)
        self.gave_way_to: list[int] = []
        self.stops: list[bool] = []
        self.upgraders: list[Upgrader] = []

    def _stopped(self, _peer: Peer, force: bool) -> None:
        self.stops.append(force)

    async def _give_way(self, pid: int) -> None:
        self.gave_way_to.append(pid)

    def upgrader(self, program: str, ready_timeout_s: float = 10.0) -> Upgrader:
        command = (sys.executable, "-c", HELLO + program)
        made = Upgrader(
            self.product,
            self.listener_set,
            self.reloader,
            self._give_way,
            self._stopped,
            command,
            ready_timeout_s,
        )
        made.begun.set()
        self.upgraders.append(made)
        return made


@pytest.fixture
async def old() -> AsyncIterator[Old]:
    made = Old()
    yield made
    for upgrader in made.upgraders:
        await upgrader.aclose()
    made.listener_set.close()
    await made.product.aclose()
    made.logs.close()


async def failure(upgrader: Upgrader) -> str:
    with pytest.raises(UpgradeFailed) as raised:
        await upgrader.upgrade("test")
    return str(raised.value)


async def test_it_gives_way_once_the_next_process_is_ready(old: Old) -> None:
    program = """
assert [each["name"] for each in listeners] == ["http"]
assert socket.socket(fileno=fds[0]).getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
tell(prepared=True); hear(b"begin"); tell(ready=os.getpid()); hear(b"handed_over")
"""
    upgrader = old.upgrader(program)
    pid = await upgrader.upgrade("test")
    assert old.gave_way_to == [pid]
    assert "has taken over" in await failure(upgrader)
    await asyncio.to_thread(os.waitpid, pid, 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("tell(failed='no settings')", "the new process says: no settings"),
        ("sys.exit(3)", "ended before it was ready"),
        ("tell(prepared=True); hear(b'begin'); sys.exit(3)", "ended before it was ready"),
        ("channel.sendall(b'nonsense\\n'); time.sleep(60)", "has gone"),
    ],
)
async def test_one_that_fails_leaves_everything_as_it_was(
    old: Old, program: str, reason: str
) -> None:
    upgrader = old.upgrader(program)
    assert reason in await failure(upgrader)
    assert old.gave_way_to == []
    assert old.product.relay.dispatcher.steps.table.on_change is None
    assert all(bound.socket.fileno() >= 0 for bound in old.listener_set.listeners.bound.values())
    assert reason in await failure(upgrader)


async def test_one_that_is_not_ready_in_time_is_stopped(old: Old) -> None:
    upgrader = old.upgrader("time.sleep(60)", ready_timeout_s=0.5)
    assert "not ready within 0.5s (it ended with -15)" in await failure(upgrader)
    assert old.gave_way_to == []
    assert not upgrader.closed
    assert all(bound.socket.fileno() >= 0 for bound in old.listener_set.listeners.bound.values())


async def test_a_program_that_is_not_there_is_told(old: Old) -> None:
    upgrader = old.upgrader("")
    upgrader._command = ("/nowhere/lb",)
    assert "cannot start /nowhere/lb" in await failure(upgrader)


async def test_two_at_once_are_one_too_many(old: Old) -> None:
    upgrader = old.upgrader("tell(failed='no')")
    first, second = await asyncio.gather(
        upgrader.upgrade("one"), upgrader.upgrade("two"), return_exceptions=True
    )
    assert "another upgrade is under way" in f"{first} {second}"


async def test_the_first_process_of_a_container_cannot(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert "first of its container" in await failure(old.upgrader(""))


STARTS = "tell(prepared=True); hear(b'begin'); "


@pytest.mark.parametrize(
    "program",
    [
        "import signal; tell(hello=1); signal.pause()",
        "tell(prepared=True); hear(b'stop')",
        STARTS + "hear(b'stop')",
    ],
)
async def test_a_stop_ends_the_next_process_before_it_serves(old: Old, program: str) -> None:
    upgrader = old.upgrader(program)
    upgrade = asyncio.create_task(failure(upgrader))
    await until(lambda: upgrader._deadline is not None)
    upgrader.stop(force=False)
    assert "the process shuts down (it ended with" in await upgrade
    await upgrader.aclose()
    assert old.gave_way_to == []
    assert "the process shuts down" in await failure(upgrader)


async def test_a_second_stop_kills_a_next_process_that_does_not_end(old: Old) -> None:
    upgrader = old.upgrader(
        "import signal; signal.signal(15, signal.SIG_IGN); tell(prepared=True); signal.pause()"
    )
    upgrade = asyncio.create_task(failure(upgrader))
    await until(
        lambda: old.product.relay.dispatcher.steps.table.on_change is not None, "it is prepared"
    )
    upgrader.stop(force=False)
    upgrader.stop(force=True)
    assert "(it ended with -9)" in await upgrade


async def test_a_file_that_cannot_be_written_fails_the_upgrade(old: Old) -> None:
    async def refuse(_pid: int) -> None:
        raise PidFileError("cannot write the PID file")

    upgrader = old.upgrader(STARTS + "tell(ready=1); hear(b'stop')")
    upgrader._give_way = refuse
    assert "cannot write the PID file (it ended with" in await failure(upgrader)
    assert upgrader.successor is None


async def test_who_has_taken_over_is_told_and_heard(old: Old) -> None:
    program = STARTS + (
        "tell(ready=os.getpid()); hear(b'handed_over'); tell(stop=False); hear(b'stop')"
    )
    upgrader = old.upgrader(program)
    pid = await upgrader.upgrade("test")
    assert upgrader.successor is not None
    await until(lambda: bool(old.stops))
    assert old.stops == [False]
    successor = upgrader.successor
    successor.say("stop", True)
    await until(lambda: successor.is_gone)
    await asyncio.to_thread(os.waitpid, pid, 0)
