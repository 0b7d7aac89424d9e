"""Simulated Tritons as processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lb.simulator.process import Ports
from lb.testing.processes import Child


class Triton:
    """A simulated Triton that runs; docs/testing.md lists the models that it serves."""

    def __init__(
        self, name: str, *, speed: float = 1.0, first_port: int = 0, models: Sequence[str] = ()
    ) -> None:
        """Start it; `wait` returns once it serves.

        Args:
            name: of the backend.
            speed: how many times as fast as usual it executes.
            first_port: of HTTP; gRPC and metrics get the next two. 0: any free ports.
            models: that it serves; all simulated ones if none is named.
        """
        self.name = name
        self._first_port = first_port
        self._speed = speed
        self._models = models
        self._ports: Ports | None = None
        self._child = self._start()

    def _start(self) -> Child:
        ports = self._ports
        if ports is None:
            first = self._first_port
            offsets = (1, 2) if first else (0, 0)
            ports = Ports("127.0.0.1", first, first + offsets[0], first + offsets[1])
        command = [
            *(sys.executable, "-m", "lb.simulator", "--speed", str(self._speed)),
            *("--http-port", str(ports.http_port), "--grpc-port", str(ports.grpc_port)),
            *("--metrics-port", str(ports.metrics_port)),
        ]
        if self._models:
            command += ["--models", *self._models]
        return Child(self.name, command)

    def wait(self) -> None:
        """Wait until it serves.

        Raises:
            StartError: it does not, because a port is taken for instance.
        """
        self._child.wait_until(lambda: _announced(self._child.output) is not None)
        self._ports = _announced(self._child.output)

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._child.is_running

    @property
    def http(self) -> str:
        """HOST:PORT of its HTTP endpoint."""
        return self._address.address(self._address.http_port)

    @property
    def grpc(self) -> str:
        """HOST:PORT of its gRPC endpoint."""
        return self._address.address(self._address.grpc_port)

    @property
    def metrics(self) -> str:
        """HOST:PORT of its metrics."""
        return self._address.address(self._address.metrics_port)

    @property
    def _address(self) -> Ports:
        assert self._ports is not None, "`wait` was not called"
        return self._ports

    def kill(self) -> None:
        """Kill it as `kill -9` does: connections are reset, requests are lost."""
        self._child.signal(signal.SIGKILL)
        self._child.close()

    def freeze(self) -> None:
        """Stop it as `kill -STOP` does: it accepts connections and never answers."""
        self._child.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self._child.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again, on the same ports, after `kill`.

        Raises:
            StartError: it does not serve.
        """
        self._child = self._start()
        self.wait()

    def terminate(self) -> None:
        """Ask it to end; `close` waits for that."""
        self._child.terminate()

    def close(self) -> None:
        """End it."""
        self._child.close()


def _announced(output: str) -> Ports | None:
    """The ports in the line that a simulated Triton prints when it serves; None before."""
    first, end, _ = output.partition("\n")
    return Ports.from_json(first) if end and first.startswith("{") else None


@contextmanager
def simulated(
    count: int = 1, *, speeds: Sequence[float] = (), first_port: int = 0, models: Sequence[str] = ()
) -> Iterator[tuple[Triton, ...]]:
    """Run simulated Tritons.

    Args:
        count: how many; they are named `triton-0`, `triton-1` and so on.
        speeds: how many times as fast as usual each executes, in turns; 1.0 if none is given.
        first_port: HTTP port of the first one; each further one is 100 above. 0: any free ports.
        models: that each serves; all simulated ones if none is named.

    Raises:
        StartError: one did not start.
    """
    with ExitStack() as stack:
        tritons = []
        for number in range(count):
            triton = Triton(
                f"triton-{number}",
                speed=speeds[number % len(speeds)] if speeds else 1.0,
                first_port=first_port + 100 * number if first_port else 0,
                models=models,
            )
            stack.callback(triton.close)
            tritons.append(triton)
        for triton in tritons:
            triton.wait()
        try:
            yield tuple(tritons)
        finally:
            for triton in tritons:
                triton.terminate()  # all at once: each takes a second if requests still run
