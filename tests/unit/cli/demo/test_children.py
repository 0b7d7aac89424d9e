from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lb.cli.demo.children import Children, DemoError

SAY_AND_WAIT = (
    "import sys; print('ready', flush=True); sys.stdin = None\nimport time; time.sleep(60)"
)
SILENT = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


class Deaths(asyncio.Queue[str]):
    def __call__(self, problem: str) -> None:
        self.put_nowait(problem)


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


async def test_children_end_with_their_owner(tmp_path: Path) -> None:
    deaths = Deaths()
    async with Children(tmp_path / "log", deaths) as children:
        processes = [
            await children.start(name, *python(SAY_AND_WAIT), announces=True) for name in "ab"
        ]
        for process in processes:
            assert await children.first_line("a child", process) == b"ready\n"
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2
    assert deaths.empty()


async def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with Children(tmp_path / "log", Deaths(), end_s=0.05) as children:
        process = await children.start("a", *python(STUBBORN), announces=True)
        await children.first_line("a", process)
    assert process.returncode == -signal.SIGKILL


async def test_death_is_reported_with_what_the_child_wrote(tmp_path: Path) -> None:
    deaths = Deaths()
    async with Children(tmp_path / "log", deaths) as children:
        await children.start("triton-0", *python("import sys; sys.exit('no memory')"))
        assert await deaths.get() == "triton-0 ended with 1\n  | no memory"


async def test_killed_child_is_reported_with_the_signal(tmp_path: Path) -> None:
    deaths = Deaths()
    async with Children(tmp_path / "log", deaths) as children:
        process = await children.start("a", *python(SAY_AND_WAIT), announces=True)
        await children.first_line("a", process)
        process.kill()
        assert await deaths.get() == "a was killed by SIGKILL"


async def test_child_that_may_end_is_reported_to_whom_it_concerns(tmp_path: Path) -> None:
    deaths, ends = Deaths(), Deaths()
    async with Children(tmp_path / "log", deaths) as children:
        process = await children.start("a", *python(SAY_AND_WAIT), announces=True, on_end=ends)
        await children.first_line("a", process)
        process.kill()
        assert await ends.get() == "was killed by SIGKILL"
    assert deaths.empty()


async def test_frozen_child_ends_like_others(tmp_path: Path) -> None:
    async with Children(tmp_path / "log", Deaths()) as children:
        process = await children.start("a", *python(SAY_AND_WAIT), announces=True)
        await children.first_line("a", process)
        process.send_signal(signal.SIGSTOP)
    assert process.returncode == -signal.SIGTERM


async def test_child_that_ends_silently_did_not_start(tmp_path: Path) -> None:
    async with Children(tmp_path / "log", Deaths()) as children:
        process = await children.start("a", *python(""), announces=True)
        with pytest.raises(DemoError, match="a did not start"):
            await children.first_line("a", process)


async def test_child_that_stays_silent_did_not_start(tmp_path: Path) -> None:
    async with Children(tmp_path / "log", Deaths(), ready_s=0.05) as children:
        process = await children.start("a", *python(SILENT), announces=True)
        with pytest.raises(DemoError, match="a did not start"):
            await children.first_line("a", process)


async def test_children_are_not_in_the_foreground_session(tmp_path: Path) -> None:
    async with Children(tmp_path / "log", Deaths()) as children:
        process = await children.start("a", *python(SAY_AND_WAIT), announces=True)
        await children.first_line("a", process)
        assert os.getsid(process.pid) == process.pid


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import asyncio, pathlib, sys
from lb.cli.demo.children import Children
async def main():
    async with Children(pathlib.Path({str(tmp_path / "log")!r}), print) as children:
        process = await children.start("a", sys.executable, "-c", {SAY_AND_WAIT!r}, announces=True)
        await children.first_line("a", process)
        print(process.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(python(parent_code), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, alive = psutil.wait_procs([child], timeout=30)
    assert (gone, alive) == ([child], [])
