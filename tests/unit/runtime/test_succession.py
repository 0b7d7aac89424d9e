"""Taking over from a process, against one that is played."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lb.domain.backend import AdminState
from lb.domain.sequence import SequenceKey
from lb.runtime.handover import Peer
from lb.runtime.logs import Logs
from lb.runtime.predecessor import Predecessor, line
from lb.runtime.upgrade import Succession
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.gated import until

CONFIG: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}


class Stage:
    """A product, and the other end of its conversation."""

    def __init__(self) -> None:
        settings = Settings.model_validate(CONFIG)
        self.logs = Logs(settings)
        self.product: LoadBalancer = LoadBalancer(settings, self.logs)
        self.old, theirs = socket.socketpair()
        self.old.sendall(line("listeners", []))
        self.stops: list[bool] = []
        self.reloads: list[str] = []
        self.succession = Succession(
            Predecessor(theirs), self.product, self._stopped, reload=self.reloads.append
        )

    def _stopped(self, _peer: Peer, force: bool) -> None:
        self.stops.append(force)

    def home(self, sequence_id: int) -> str | None:
        found = self.product.relay.dispatcher.steps.table.backend_of(SequenceKey(b"m", sequence_id))
        return None if found is None else found.name

    async def hear(self) -> dict[str, Any]:
        text = await asyncio.to_thread(self.old.recv, 1000)
        return dict(json.loads(text))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.old.close()
    made.succession.close()
    for _ in range(10):
        await asyncio.sleep(0)
    await made.product.aclose()
    made.logs.close()


async def test_it_accepts_once_everything_is_told(stage: Stage) -> None:
    taking_over = asyncio.create_task(stage.succession.take_over())
    assert await stage.hear() == {"prepared": True}
    assert not taking_over.done()
    stage.old.sendall(line("operator", {"states": {"a": "draining"}}))
    stage.old.sendall(line("sequences", [["m", 1, "a", 60.0]]))
    stage.old.sendall(line("begin"))
    await taking_over
    assert stage.product.control.directory.find("a").admin is AdminState.DRAINING
    assert stage.home(1) == "a"
    stage.succession.accepts()
    assert await stage.hear() == {"ready": os.getpid()}


async def test_news_are_heard_until_the_process_before_has_ended(stage: Stage) -> None:
    stage.old.sendall(line("begin"))
    await stage.succession.take_over()
    stage.succession.accepts()
    stage.old.sendall(line("handed_over"))
    await stage.succession.answer()
    stage.old.sendall(line("sequences", [["m", 1, "a", 60.0], ["m", 2, "a", 60.0]]))
    stage.old.sendall(line("sequences", [["m", 1, "", 0.0]]))
    for _ in range(100):
        await asyncio.sleep(0)
    assert (stage.home(1), stage.home(2)) == (None, "a")
    assert len(stage.product.relay.dispatcher.steps.table) == 1


async def test_without_the_process_before_it_goes_on_alone(stage: Stage) -> None:
    stage.old.close()
    await stage.succession.take_over()
    assert stage.home(1) is None


async def test_a_stop_before_it_serves_is_the_answer(stage: Stage) -> None:
    stage.old.sendall(line("begin"))
    await stage.succession.take_over()
    stage.succession.accepts()
    stage.old.sendall(line("stop", False))
    await stage.succession.answer()
    assert (stage.succession.is_done, stage.stops) == (False, [False])
    assert stage.succession.peer is None


async def test_a_stop_while_it_prepares_ends_the_take_over(stage: Stage) -> None:
    stage.old.sendall(line("stop", True))
    await stage.succession.take_over()
    assert stage.stops == [True]


async def test_a_crash_before_the_answer_makes_it_the_service(stage: Stage) -> None:
    stage.old.sendall(line("begin"))
    await stage.succession.take_over()
    stage.succession.accepts()
    stage.old.sendall(b'{"sto')  # cut off
    stage.old.close()
    await stage.succession.answer()
    assert (stage.succession.is_done, stage.stops) == (True, [])


async def test_an_answer_is_heard_after_a_wait_for_it_was_cancelled(stage: Stage) -> None:
    stage.old.sendall(line("begin"))
    await stage.succession.take_over()
    stage.succession.accepts()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stage.succession.answer()
    stage.old.sendall(line("handed_over"))
    await stage.succession.answer()
    assert stage.succession.is_done


async def test_who_does_not_want_to_serve_says_why(stage: Stage) -> None:
    stage.succession.decline("no settings")
    assert await stage.hear() == {"failed": "no settings"}


async def test_reloads_of_the_process_before_are_for_us(stage: Stage) -> None:
    stage.old.sendall(line("begin"))
    await stage.succession.take_over()
    stage.succession.accepts()
    stage.old.sendall(line("handed_over"))
    await stage.succession.answer()
    stage.old.sendall(line("reload", "SIGHUP"))
    await until(lambda: stage.reloads == ["SIGHUP"])
