"""Real Triton Inference Servers as child processes, on a CPU, with the models of this folder."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from tests.fakes.process import ChildProcess, free_ports, wait_until
from tests.triton.target import Target, http_status

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / ".venvs" / "triton"
"""Made by tools/setup_triton.sh."""
MODELS = Path(__file__).resolve().parent / "models"
START_TIMEOUT_S = 60.0
"""A start takes 2 to 5 s on two idle cores; builds may run beside the tests."""
_OWN_FAULTS = ("boost::interprocess::lock_exception", "failed to load all models")
"""What Triton 2.51 ends with at times when models of its python backend start side by side on a
busy machine. Whoever runs Tritons starts such a one again."""


def command_of(
    name: str, models: Path, ports: Sequence[int], records: Path, *options: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command line of a Triton, and its environment.

    Args:
        name: what its models are told.
        models: its repository.
        ports: for HTTP, gRPC and metrics.
        records: the directory that its models write into.
        options: further ones of its command line.

    Raises:
        FileNotFoundError: Triton is not installed.
    """
    native = ENVIRONMENT / "native"
    if not native.is_dir():
        raise FileNotFoundError(f"{native} is missing: run tools/setup_triton.sh")
    http_port, grpc_port, metrics_port = ports
    command = (
        str(native / "tritonserver"),
        f"--model-repository={models}",
        f"--backend-directory={native / 'backends'}",
        f"--backend-config=python,shm-region-prefix-name={_shared_memory_prefix(http_port)}",
        # A thousand sequences have regions of 1 MB grow, and once in a while a Triton of 2.51 dies
        # within its python backend while one does.
        f"--backend-config=python,shm-default-byte-size={4 * 2**20}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--exit-timeout-secs=3",
        # Completing a configuration starts every model once more; ours are complete.
        "--disable-auto-complete-config",
        *options,
    )
    return command, {
        # The python backend's stub finds its standard library and numpy through PATH.
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(ENVIRONMENT),
        "LD_LIBRARY_PATH": str(native),
        "OPENBLAS_NUM_THREADS": "1",
        "TEST_SERVER_NAME": name,
        "TEST_RECORDS": str(records),
    }


def remove_shared_memory(http_port: int) -> None:
    """Remove what the python backend of a Triton that was killed has left."""
    for region in Path("/dev/shm").glob(f"{_shared_memory_prefix(http_port)}*"):
        region.unlink()


def _shared_memory_prefix(http_port: int) -> str:
    return f"lbtest{http_port}"


class RealTriton:
    """One tritonserver with its own model repository; a restart keeps the ports."""

    started: ClassVar[list[RealTriton]] = []
    """All that are not closed, whether they run or have died."""

    def __init__(
        self,
        name: str,
        workspace: Path,
        records: Path,
        *options: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        models: Path = MODELS,
    ) -> None:
        """Start it; `options` are further ones of its command line."""
        self.name = name
        self._environment = environment
        self._options = options
        self._directory = workspace / name
        self._records = records
        shutil.copytree(models, self._directory / "models")
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self._process = self._start()
        self._is_killed = False
        self._starts_left = 0
        """How often it may end by one of `_OWN_FAULTS` and be started again."""
        self.started.append(self)

    @classmethod
    @contextmanager
    def several(
        cls, count: int, workspace: Path, records: Path, *options: str
    ) -> Iterator[tuple[RealTriton, ...]]:
        """Run several that are alike."""
        running: list[RealTriton] = []
        try:
            for number in range(count):
                running.append(cls(f"triton-{number}", workspace, records, *options))  # noqa: PERF401
            for triton in running:
                triton.wait_ready()
            yield tuple(running)
        finally:
            for triton in running:
                triton.close()

    def _start(self) -> ChildProcess:
        command, env = command_of(
            self.name,
            self._directory / "models",
            (self.http_port, self.grpc_port, self.metrics_port),
            self._records,
            *self._options,
        )
        log = self._directory / "triton.log"
        return ChildProcess(command, log=log, env={**env, **self._environment})

    @property
    def target(self) -> Target:
        """Where clients reach it."""
        return Target(f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def died(self) -> bool:
        """Whether it ended although no test killed it."""
        return not self.is_running and not self._is_killed

    @property
    def last_words(self) -> str:
        """The end of its log, without what its models say when it is gone."""
        lines = self._process.last_lines(200).splitlines()
        return "\n".join([line for line in lines if "pb_stub.cc" not in line][-20:])

    def _is_ready(self) -> bool:
        if not self.is_running:
            words = self._process.last_lines(150)
            is_known = any(fault in words for fault in _OWN_FAULTS)
            if not is_known or not self._starts_left:
                raise RuntimeError(f"{self.name} ended at start:\n{words}")
            self._starts_left -= 1
            self._kill()  # what it started may run on
            self._process = self._start()
        metrics = f"127.0.0.1:{self.metrics_port}"
        return (
            http_status(self.target.http, "/v2/health/ready") == 200
            and http_status(metrics, "/metrics") == 200
        )

    def wait_ready(self) -> None:
        """Wait until HTTP says ready; Triton opens its gRPC port before the HTTP one. One that ends
        at its start by a fault of its own is started again, once."""
        self._starts_left = 1
        wait_until(self._is_ready, timeout_s=START_TIMEOUT_S, what=f"{self.name} is ready")

    def kill9(self) -> None:
        """SIGKILL: the kernel closes every socket at once."""
        self._is_killed = True
        self._process.signal(signal.SIGKILL)

    def sigterm(self) -> None:
        """Ask it to exit: it finishes what runs, sequences among it, for up to 3 s."""
        self._is_killed = True
        self._process.signal(signal.SIGTERM)

    def sigstop(self) -> None:
        """Freeze it: connections stay open and nobody answers."""
        self._process.signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        """Let it run on after `sigstop`."""
        self._process.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again on the same ports, whatever state it is in. Does not wait."""
        self._kill()
        self._process = self._start()
        self._is_killed = False

    def close(self) -> None:
        """Kill it with its model processes and remove the shared memory they leave."""
        self.started.remove(self)
        self._kill()

    def _kill(self) -> None:
        self._process.close()
        remove_shared_memory(self.http_port)
