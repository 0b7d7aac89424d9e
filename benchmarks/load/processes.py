"""Child processes: pinned to a core, ended for certain, and what they cost.

CPU is that of the whole process tree (user + system, all threads, and children that have ended), so
a proxy cannot hide work in a helper process. It is read from the CPU clocks of the processes, which
count nanoseconds; `/proc/PID/stat` counts hundredths of a second and serves for ended children.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOP_GRACE_S = 3.0
_SCHEDULED = 2
"""Kind of the CPU clock of a process: time that the scheduler gave it (Linux, posix-timers.h)."""

REPOSITORY = Path(__file__).resolve().parents[2]
"""Working directory of the programs that are modules of this repository."""


class BenchError(Exception):
    """Something the benchmark needs is missing or did not start; the text says what."""


@dataclass(frozen=True)
class Cores:
    """Which core runs the proxy, the load generator and the backends."""

    proxy: int
    load: int
    backend: int

    @classmethod
    def parse(cls, text: str) -> Cores:
        """Read `PROXY,LOAD[,BACKEND]`; without BACKEND load and backends share a core.

        Raises:
            ValueError: not two or three numbers of usable cores.
        """
        numbers = [int(part) for part in text.split(",")]
        if len(numbers) not in {2, 3} or not set(numbers) <= os.sched_getaffinity(0):
            raise ValueError(f"{text!r} is not PROXY,LOAD[,BACKEND] of usable cores")
        return cls(numbers[0], numbers[1], numbers[-1])

    @classmethod
    def choose(cls) -> Cores:
        """Take the first two usable cores; a single core serves everything, if need be."""
        usable = sorted(os.sched_getaffinity(0))
        other = usable[1 % len(usable)]
        return cls(proxy=usable[0], load=other, backend=other)


def tool(name: str) -> str:
    """Path of an installed program; `/usr/sbin` counts, whatever PATH says.

    Raises:
        BenchError: it is not installed.
    """
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if path is None:
        raise BenchError(f"{name} is not installed; run tools/setup_bench.sh")
    return path


def pinned(argv: Sequence[str], core: int) -> list[str]:
    """Prefix a command so that it runs on one core and dies with this process."""
    prefix = [tool("taskset"), "-c", str(core)]
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        prefix += [setpriv, "--pdeathsig", "TERM"]
    return [*prefix, *argv]


class Child:
    """One process, leader of its own process group, output in a log file."""

    def __init__(
        self, name: str, argv: Sequence[str], core: int, log: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                pinned(argv, core),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
            )
        self.pid = self._popen.pid

    def check_alive(self) -> None:
        """Raise BenchError with the end of the log if the process has ended."""
        if self._popen.poll() is not None:
            tail = self.log.read_text(errors="replace")[-1500:]
            raise BenchError(f"{self.name} ended with {self._popen.returncode}:\n{tail}")

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = 15.0) -> None:
        """Poll a condition while the process lives.

        Raises:
            BenchError: it ended, or the condition did not come true in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check_alive()
            if time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-1500:]
                raise BenchError(f"{self.name} was not ready after {timeout_s:g} s:\n{tail}")
            time.sleep(0.05)

    def wait_until_listening(self, *ports: int) -> None:
        """Wait until loopback ports accept connections; raises like `wait_until`."""
        self.wait_until(lambda: all(_accepts(port) for port in ports))

    def pids(self) -> list[int]:
        """The whole tree."""
        return _tree(self.pid)

    def cpu_s(self) -> float:
        """User + system seconds of the whole tree since it started."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid))

    def rss_bytes(self) -> int:
        """Resident memory of the whole tree."""
        return sum(_rss(pid) for pid in _tree(self.pid))

    def stop(self) -> None:
        """End the process group: politely, then for certain."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            try:
                self._popen.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self._popen.wait()


class Children:
    """Owns the children of a run; leaving the `with` block ends them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.stop()

    def start(self, name: str, argv: Sequence[str], *, core: int, cwd: Path | None = None) -> Child:
        """Start a command pinned to `core`; its output goes to NAME.log."""
        child = Child(name, argv, core, self._directory / f"{name}.log", cwd)
        self._children.append(child)
        return child


def run_pinned(
    argv: Sequence[str],
    *,
    core: int,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return its standard output; `environment` is added to ours.

    Raises:
        BenchError: it failed or took longer than `timeout_s`.
    """
    process = subprocess.Popen(
        pinned(argv, core),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{Path(argv[0]).name} took longer than {timeout_s:g} s") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise BenchError(f"{' '.join(argv[:3])} failed: {errors[-800:] or output[-800:]}")
    return output


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def core_busy_s(core: int) -> float:
    """Seconds a core has been busy since boot, with everything that ran on it."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
            return (user + nice + system + irq + softirq + steal) * _TICK_S
    raise BenchError(f"no core {core} in /proc/stat")


def _accepts(port: int) -> bool:
    """Whether something listens on a loopback port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (the name may hold blanks); empty if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _cpu_s(pid: int) -> float:
    """Of one process and its ended children; 0 if it is gone."""
    fields = _stat_fields(pid)
    try:
        own = time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:
        return 0.0
    return own + sum(map(int, fields[13:15])) * _TICK_S


def _rss(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[21]) * _PAGE if fields else 0
