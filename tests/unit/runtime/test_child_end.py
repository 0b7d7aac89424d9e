"""The end of a child process is heard of, with and without a descriptor that tells of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lb.runtime.child_end import end_of, end_within

UNTIL_TOLD = "import sys; sys.stdin.read(); sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); input()"


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        yield process
        process.kill()


@pytest.fixture(params=["descriptor", "none"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "none":

        def refuse(_pid: int, _flags: int = 0) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.usefixtures("way")
async def test_the_end_comes_with_the_exit_code() -> None:
    with child(UNTIL_TOLD) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert await end_of(process) == 3
        assert await end_of(process) == 3, "also once it is over"


@pytest.mark.usefixtures("way")
async def test_one_that_does_not_end_in_time_is_killed() -> None:
    with child(DEAF) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.terminate()
        assert await end_within(process, 0.05) == -9
