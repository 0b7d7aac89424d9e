"""What workers have counted before the control process was started again."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lb.domain.backend import Backend
from lb.runtime.logs import Logs
from lb.runtime.predecessor import line
from lb.runtime.wiring import LoadBalancer
from lb.runtime.workers import hub as hub_module
from lb.runtime.workers.hub import Hub
from lb.runtime.workers.seat import CONTROL, Seat
from lb.settings.model import Settings
from tests.wire.waiting import eventually

_SETTINGS = Settings.model_validate(
    {"listen": {"http": "127.0.0.1:0"}, "backends": [{"name": "a", "http": "127.0.0.1:1"}]}
)
_RERUNS = ["reruns", "count"]


class Control:
    """A control process that is started again."""

    def __init__(self, counts: list[list[Any]]) -> None:
        self.logs = Logs(_SETTINGS)
        self.balancer = LoadBalancer(_SETTINGS, self.logs)
        self.listening, self.channel = (socket.socket(socket.AF_UNIX) for _ in range(2))
        self.listening.bind("")
        self.listening.listen()
        self.address = self.listening.getsockname().decode()
        self.seat = Seat(
            role=CONTROL, index=-1, count=2, start=2, settings=_SETTINGS, digest="", identity=b"a",
            hub="", token="token", operator={}, counts=counts, listeners=(), board=-1,
            hub_socket=self.listening, channel=self.channel,
        )  # fmt: skip
        self.kept: list[list[Any]] = []
        """What the supervisor keeps for the next one."""
        self.hub = Hub(self.seat, self.balancer, self._keep)

    @property
    def backend(self) -> Backend:
        """Its record of the only backend."""
        return self.balancer.control.directory.find("a").backend

    def _keep(self) -> None:
        self.kept = json.loads(json.dumps(self.hub.absent_counts()))

    @property
    def reruns(self) -> int:
        """One of the counters that it shows."""
        return self.balancer.relay.dispatcher.reruns.count

    async def meet(self, index: int, start: int = 1) -> Worker:
        """A worker connects, and is told what there is."""
        reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 20)
        hello = {"token": "token", "index": index, "start": start, "pid": os.getpid()}
        writer.write(line("hello", hello))
        while "pool" not in json.loads(await reader.readline()):
            pass
        return Worker(writer)

    async def aclose(self) -> None:
        self.hub.close()
        await self.balancer.aclose()
        self.logs.close()
        self.channel.close()
        self.listening.close()


class Worker:
    """The worker's end of a connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def tell(self, rows: list[list[Any]]) -> None:
        """Tell counts, and that the first snapshot is followed."""
        self._writer.write(line("counts", rows) + line("follows", 1))

    def leave(self) -> None:
        self._writer.close()


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    made = Control([])
    yield made
    await made.aclose()


async def test_counts_are_complete_when_all_workers_have_told_theirs(control: Control) -> None:
    await control.hub.start()
    asked = asyncio.create_task(control.hub.counts_told())
    workers = [await control.meet(0), await control.meet(1)]
    workers[0].tell([[_RERUNS, 3]])
    await eventually(lambda: control.reruns == 3)
    assert not asked.done()
    workers[1].tell([[_RERUNS, 4]])
    assert await asked
    assert control.reruns == 7
    for worker in workers:
        worker.leave()


async def test_workers_that_never_come_are_not_waited_for(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_TOLD_S", 0.01)
    assert not await control.hub.counts_told()  # none is let in yet
    await control.hub.start()
    async with asyncio.timeout(30):
        while not await control.hub.counts_told():
            pass


async def test_the_first_control_process_waits_for_no_counts(control: Control) -> None:
    seat = replace(control.seat, start=1)
    assert await Hub(seat, control.balancer, lambda: None).counts_told()


async def test_counts_of_workers_that_have_ended_outlive_the_control_process(
    control: Control,
) -> None:
    await control.hub.start()
    for start in (1, 2, 3):  # the last one dies too, and its next process is met only later
        worker = await control.meet(0, start)
        worker.tell([[_RERUNS, start], [["backend", 0, "lost_requests"], 2], [["held"], 5]])
        await eventually(lambda: control.balancer.relay.memory_budget.held == 5)
        worker.leave()
        await eventually(lambda: control.balancer.relay.memory_budget.held == 0)
    following = Control(control.kept)
    try:
        await following.hub.start()
        assert following.reruns == 6
        assert following.backend.lost_requests == 6
        assert following.balancer.relay.memory_budget.held == 0
        (await following.meet(0, 3)).leave()  # it lives after all
        worker = await following.meet(0, 4)
        worker.tell([[_RERUNS, 1]])
        await eventually(lambda: following.reruns == 7)
        worker.leave()
    finally:
        await following.aclose()
