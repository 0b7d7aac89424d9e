"""Processes at idle priority get the usual one again, with all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.waiting import wait_until

TOOL = Path(__file__).parents[3] / "tools" / "usual_priority.py"


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _usual() -> int:
    """The policy that a process at idle priority may get: not all users may raise it."""
    policies = os.SCHED_IDLE, os.SCHED_OTHER
    code = (
        "import os, sys\n"
        "for each in sys.argv[1:]: os.sched_setscheduler(0, int(each), os.sched_param(0))"
    )
    there_and_back = [sys.executable, "-c", code, *map(str, policies)]
    return policies[subprocess.run(there_and_back, check=False).returncode == 0]


def test_a_process_and_what_it_has_started_are_as_usual_again() -> None:
    command = ["chrt", "--idle", "0", "sh", "-c", "sleep 60 & read line; kill $!"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
        wait_until(lambda: bool(_children(started.pid)))
        pids = [started.pid, *_children(started.pid)]
        assert {os.sched_getscheduler(pid) for pid in pids} == {os.SCHED_IDLE}
        subprocess.run([sys.executable, str(TOOL), str(started.pid)], check=True)
        assert {os.sched_getscheduler(pid) for pid in pids} == {_usual()}
        started.communicate(b"\n")
