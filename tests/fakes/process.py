"""Real child processes for tests: own log file, own process group, never outliving the test run."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from tests.fakes import preloaded

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
"""For processes of the product, wherever they run."""
_MAY_END_S = 5.0 if os.environ.get("COVERAGE_RUN") == "true" else 0.0
"""While coverage is measured, a process that ends by itself writes down what it has run."""


class ChildProcess:
    """A process in a group of its own; `close` kills the group, so that nothing is left behind."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        with log.open("ab") as output:
            self._process = _start(command, output.fileno(), dict(env), cwd, pass_fds)
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def group(self) -> list[int]:
        """Ids of the processes of its group that run: it, and those that it started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # After the name, which may hold anything: state, parent, group (proc(5)).
                state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(group) == self.pid and state not in "ZX":
                found.append(int(folder.name))
        return sorted(found)

    @property
    def start_line(self) -> str:
        """The line of its log by which a balancer says where it serves; empty until it does."""
        return next((line for line in whole_lines(self.log) if " serving " in line), "")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone, not to what it started."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit code, negative for a signal."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """Kill the whole group. Harmless when it has ended already."""
        if _MAY_END_S:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_MAY_END_S)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(30.0)

    def last_lines(self, count: int = 30) -> str:
        """The end of its log, for messages of failing tests."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def _start(
    command: Sequence[str],
    output: int,
    env: Mapping[str, str],
    cwd: Path | None,
    pass_fds: Sequence[int],
) -> preloaded.PreloadedProcess | subprocess.Popen[bytes]:
    forked = preloaded.start(command, log=output, env=env, cwd=cwd, pass_fds=pass_fds)
    if forked is not None:
        return forked
    # setpriv: the child goes even when the test run itself is killed.
    # The new session gives it a group: what it starts itself goes with it.
    return subprocess.Popen(
        ("setpriv", "--pdeathsig", "KILL", *command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        cwd=cwd,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, all different.

    They are this process's alone until it ends: no other test of this machine gets one before
    the server listens, or after it was killed. They lie below the range of outgoing connections,
    since a server that starts again on its port must not find it taken by a client's socket.
    """
    return [free_from([0]) for _ in range(count)]


def free_from(offsets: Sequence[int]) -> int:
    """The first of several such ports.

    Args:
        offsets: of each of them to the first.
    """
    while True:
        first = random.randint(20000, 32000 - max(offsets))
        ports = {first + offset for offset in offsets}
        if ports.isdisjoint(_claimed) and all(_claim(port) for port in ports):
            _claimed.update(ports)
            return first


_claimed: set[int] = set()


def _claim(port: int) -> bool:
    """Lock a port among test runs, unless another has it or somebody listens on it."""
    locks = _port_locks()
    try:
        # One byte of a file that all share stands for each port.
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@cache
def _port_locks() -> int:
    """The file of the locks, open as long as this process lives: closing it would free them all."""
    path = Path(tempfile.gettempdir()) / f"triton-lb-test-ports-{os.getuid()}"
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only its parent has not heard of it yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def whole_lines(path: Path) -> list[str]:
    """Lines of a file that a process writes, without one of which only the beginning is there yet.

    There are none while the file is not there.
    """
    whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
    return whole.splitlines()


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = 30.0, what: str, interval_s: float = 0.02
) -> float:
    """Ask until the answer is yes and return the seconds it took.

    Raises:
        TimeoutError: naming `what` did not happen.
    """
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(interval_s)
    return time.monotonic() - start
