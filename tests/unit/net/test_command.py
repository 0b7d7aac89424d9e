"""Commands of the configuration: what they get, how they end, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from lb.net.command import CommandError, run_command
from tests.wire.waiting import eventually

LIMIT_S = 60.0
NOTE = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(repr(dict(os.environ)))"
CHILDREN = """
import os, pathlib, subprocess, sys
child = subprocess.Popen(["sleep", "60"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid} .")
child.wait()
"""


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *map(str, arguments))


def runs(pid: int) -> bool:
    """Whether a process has not ended. One that nobody has waited for has not."""
    return Path(f"/proc/{pid}").exists()


async def test_a_command_gets_what_it_is_given_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_TOKEN", "hunter2")
    note = tmp_path / "environment"
    await run_command(python(NOTE, note), LIMIT_S, {"TRITON_LB_BACKEND": "gpu-0"})
    text = note.read_text()
    assert "'TRITON_LB_BACKEND': 'gpu-0'" in text
    assert "'PATH'" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (python("raise SystemExit(3)"), "ended with status 3"),
        (python("import os; os.kill(os.getpid(), 15)"), "ended with signal 15"),
        (("/no/such/program",), "No such file"),
    ],
)
async def test_a_command_that_fails_says_how(command: tuple[str, ...], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        await run_command(command, LIMIT_S)


async def test_one_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    command = python(CHILDREN, note)
    with pytest.raises(CommandError, match="was killed"):
        await run_command(command, 5.0)
    if not note.exists():
        return  # the machine is so busy that it had not begun
    own, child, _ = note.read_text().split()
    assert not runs(int(own))
    await eventually(lambda: _has_ended(int(child)))


async def test_none_is_left_behind_by_a_task_that_is_cancelled(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    task = asyncio.ensure_future(run_command(python(CHILDREN, note), LIMIT_S))
    await eventually(lambda: note.exists() and note.read_text().endswith("."))
    own = int(note.read_text().split()[0])
    os.kill(own, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not runs(own)


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, waited for by its new parent or not."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
