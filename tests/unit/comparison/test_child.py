"""The process that compares, as whoever feeds it sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from lb.comparison.child import MAX_BYTES, ComparisonProcess
from lb.comparison.pairs import ComparedAnswer, Pair, Rules
from lb.comparison.tally import Tally
from lb.comparison.worker import NO_NUMPY
from lb.net.tasks import TaskOwner
from lb.runtime.interpreter import loop_factory
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.process import has_ended
from tests.wire.waiting import eventually

WAIT_S = 30.0


class World:
    """A process that compares, and what it found."""

    def __init__(self, command: tuple[str, ...] | None = None) -> None:
        self.tasks = TaskOwner()
        self.memory_budget = MemoryBudget(2**30)
        self.found: dict[tuple[int, str], Tally] = {}
        more = {} if command is None else {"command": command}
        self.process = ComparisonProcess(
            self.memory_budget, self.tasks, self._found, time.monotonic, **more
        )

    def _found(self, shadow: int, kind: str, tally: Tally) -> None:
        self.found.setdefault((shadow, kind), Tally()).add(tally)

    def offer(self, number: int, *, padding: int = 0, examples: str = "") -> bool:
        def reply(value: float) -> ComparedAnswer:
            output = {"name": "O", "datatype": "FP32", "shape": [1], "data": [value]}
            text = json.dumps({"outputs": [output]}) + " " * padding
            return ComparedAnswer(status=200, body=text.encode())

        return self.process.offer(
            Pair(
                shadow=7,
                name="n",
                is_noise=False,
                id=f"r{number}",
                is_grpc=False,
                rules=Rules(atol=0.5, rtol=0.0, top_k=1, examples=examples),
                first=reply(0),
                second=reply(number),
                request=b"the request" if examples else b"",
            )
        )

    @property
    def compared(self) -> int:
        return sum(each.compared for each in self.found.values())


def examples_in(folder: Path) -> list[str]:
    return sorted(json.loads(path.read_text())["id"] for path in folder.iterdir())


@asynccontextmanager
async def world(command: tuple[str, ...] | None = None) -> AsyncIterator[World]:
    made = World(command)
    try:
        yield made
    finally:
        await made.tasks.aclose()


async def test_pairs_are_compared_in_another_process_that_ends_with_us(tmp_path: Path) -> None:
    async with world() as it:
        assert it.process.starts == 0
        assert all(it.offer(number, examples=str(tmp_path)) for number in range(3))
        await eventually(lambda: it.compared == 3)
        assert it.found[7, "shadow"].same == 1
        await eventually(lambda: it.memory_budget.held == 0)  # once all was found
        pid = it.process.pid
        assert pid not in {None, os.getpid()}
    assert pid is not None
    await eventually(lambda: has_ended(pid))
    assert examples_in(tmp_path) == ["r1", "r2"]


async def test_it_leaves_the_processor_to_others_after_each_pair() -> None:
    async with world() as it:
        for number in range(200):
            it.offer(number)
        await eventually(lambda: it.compared == 200)
        process = psutil.Process(it.process.pid)
        assert process.num_ctx_switches().voluntary >= 200


async def die_and_come_back() -> None:
    async with world() as it:
        it.offer(1)
        await eventually(lambda: it.compared == 1 and not it.process.held)
        pid = it.process.pid or 0
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: has_ended(pid))
        assert it.offer(2)
        await eventually(lambda: it.process.why)
        assert not it.offer(3)
        assert it.process.dropped == 2
        await eventually(lambda: not it.process.why)
        assert it.offer(4)
        await eventually(lambda: it.compared == 2)
        assert it.process.starts == 2


@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "uvloop"]
)
def test_it_is_started_again_when_it_dies(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(die_and_come_back())
    assert [each.levelname for each in caplog.records] == ["WARNING"]


async def test_beyond_the_bound_pairs_are_dropped_and_memory_is_given_back() -> None:
    async with world() as it:
        taken = 0
        while it.offer(taken, padding=2**21):
            taken += 1
        assert 1 <= taken <= MAX_BYTES // 2**22
        assert it.process.dropped == 1
        assert it.memory_budget.held == it.process.held <= MAX_BYTES
        it.process.evict()
        assert it.memory_budget.held == 0
        assert it.process.dropped == 1 + taken


async def test_without_numpy_it_says_what_to_install() -> None:
    command = (sys.executable, "-c", f"raise SystemExit({NO_NUMPY})")
    async with world(command) as it:
        it.offer(1)
        await eventually(lambda: it.process.why)
        assert "triton-lb[compare]" in it.process.why
        assert it.memory_budget.held == 0


async def test_it_leaves_when_whoever_started_it_is_killed() -> None:
    code = """
import asyncio, sys, time
from tests.unit.comparison.test_child import World
from tests.wire.waiting import eventually
async def main():
    it = World()
    it.offer(1)
    await eventually(lambda: it.compared == 1)
    print(it.process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), WAIT_S))
    assert psutil.pid_exists(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: has_ended(pid))
