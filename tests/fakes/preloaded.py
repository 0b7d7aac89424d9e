"""Starts processes of the product that need not load its modules first.

Loading takes a second of CPU, and the tests start many hundred processes. So one process loads
everything once and forks itself for each start. A fork then does what `python -m lb ...` does, with
a session, a working directory, an environment, arguments and descriptors of its own.

`start` asks for a fork. The process that forks is `python -m tests.fakes.preloaded FD`: it waits
for requests at the socket FD, and ends with the test run. What it forks ends with it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

_MODULES: Final = ("lb", "lb.cli.main", "lb.simulator")
"""What may be started so."""
_LOADED: Final = (
    "lb.cli.serve",
    "lb.runtime.process",
    "lb.runtime.workers.run",
    "lb.simulator.process",
    "uvloop",
)
_REPOSITORY: Final = Path(__file__).parents[2]
_MAX_REQUEST: Final = 1 << 17
"""Bytes; the environment is most of it."""
_MAX_FDS: Final = 64
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PARKED: Final = 512
"""Descriptors that came with a request are moved here first, out of the way of where they go."""


class PreloadedProcess:
    """What of `subprocess.Popen` is needed, for a process that is no child of this one."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        """
        Args:
            pid: of the process.
            end: brings its wait status (wait(2)) when it has ended.
        """
        self.pid = pid
        self._end = end
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._until_ended(0.0)

    def wait(self, timeout: float) -> int:
        """Wait for its end, so many seconds, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        code = self._until_ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _until_ended(self, limit_s: float) -> int | None:
        if self._code is None:
            self._end.settimeout(limit_s)
            try:
                status = self._end.recv(16)
            except (BlockingIOError, TimeoutError):
                return None
            self._end.close()
            self._code = os.waitstatus_to_exitcode(int(status))
        return self._code


def start(
    command: Sequence[str],
    *,
    log: int,
    env: Mapping[str, str],
    cwd: Path | None,
    pass_fds: Sequence[int],
) -> PreloadedProcess | None:
    """Start a command of the product. None: it has to be started as usual.

    Args:
        command: such as `python -m lb serve`.
        log: descriptor of what it prints.
        env: its environment.
        cwd: where it works; None is here.
        pass_fds: descriptors that it inherits, under the same numbers.
    """
    is_ours = tuple(command[:2]) == (sys.executable, "-m") and command[2] in _MODULES
    if not (is_ours and _is_alike(env)):
        return None
    request = {
        "command": [*map(str, command)],
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "fds": [*pass_fds],
    }
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        text = json.dumps(request).encode()
        socket.send_fds(_forks(), [text], [theirs.fileno(), log, *pass_fds])
    return PreloadedProcess(int(mine.recv(16)), mine)


def _is_alike(env: Mapping[str, str]) -> bool:
    """Whether the interpreter, and what is loaded, would be the same with this environment."""
    if os.environ.get("COVERAGE_RUN") == "true":  # a process writes down what it has run at its end
        return False
    ours = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    names = {name for name in (*env, *ours) if name.startswith("PYTHON")}
    return all(env.get(name) == ours.get(name) for name in names)


@cache
def _forks() -> socket.socket:
    """Where to ask the process that forks."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            (sys.executable, "-m", __name__, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


# In the process that forks


class _Forks:
    """Forks, and tells of the end of each fork."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """Of each fork, by its descriptor (pidfd_open(2)): its id, and where its end is told."""
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)

    def serve(self) -> list[str]:
        """Fork for each request, until nobody asks any more. In a fork this returns the command
        that it is to run, and otherwise nothing."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._running:
                    self._tell_end(fd)
                    continue
                text, fds, _, _ = socket.recv_fds(self._requests, _MAX_REQUEST, _MAX_FDS)
                if not text:
                    return []
                if (pid := os.fork()) == 0:
                    self._close()
                    return _become(json.loads(text), fds)
                self._watch(pid, fds)

    def _watch(self, pid: int, fds: Sequence[int]) -> None:
        end = socket.socket(fileno=fds[0])
        for fd in fds[1:]:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, end
        self._poll.register(pidfd, select.POLLIN)
        end.send(b"%d" % pid)

    def _tell_end(self, pidfd: int) -> None:
        pid, end = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with end, suppress(OSError):  # perhaps nobody waits for it
            end.send(b"%d" % status)

    def _close(self) -> None:
        """Close what is none of a fork's business."""
        self._requests.close()
        for pidfd, (_, end) in self._running.items():
            os.close(pidfd)
            end.close()


def _become(request: Mapping[str, Any], received: Sequence[int]) -> list[str]:
    """Be as a new process, and return its command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    end, log, *others = received
    os.close(end)
    os.dup2(log, 1)
    os.dup2(log, 2)
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PARKED) for fd in others]
    for fd in (log, *others):
        os.close(fd)
    for fd, wanted in zip(parked, request["fds"], strict=True):
        os.dup2(fd, wanted)
        os.close(fd)
    command: list[str] = request["command"]
    return command


def _main() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all of it
    command = _Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    if command:
        sys.orig_argv = command
        sys.argv = ["", *command[3:]]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
