"""The simulated Tritons of the demo: started, killed, frozen and brought back on the same ports."""

from __future__ import annotations

import signal
import sys
from asyncio.subprocess import Process
from typing import Final

from lb.cli.demo.children import Children
from lb.simulator.process import Ports

SPEEDS: Final = (0.1, 0.04, 0.2)
"""Tritons of different speed show that the fast ones get more. At speed 1 the demo's model takes
2 ms; these take 20, 50 and 10 ms, and run four requests at once: any of them can carry the load."""
MODEL_MS: Final = 2.0


class SimulatedTritons:
    """All of them, by name."""

    def __init__(self, children: Children, count: int) -> None:
        self._children = children
        self._processes: dict[str, Process] = {}
        self.ports: dict[str, Ports] = {}
        """Where each listens, once it has said so."""
        self.names = tuple(f"triton-{number}" for number in range(count))
        self.fates: dict[str, str] = {}
        """What became of those that do not run, for people."""

    def speed(self, name: str) -> float:
        """How fast one is."""
        return SPEEDS[self.names.index(name) % len(SPEEDS)]

    async def start(self) -> None:
        """Start all of them side by side.

        Raises:
            DemoError: one does not start.
        """
        for name in self.names:
            await self._start(name)
        for name in self.names:
            line = await self._children.first_line(name, self._processes[name])
            self.ports[name] = Ports.from_json(line)

    async def _start(self, name: str) -> None:
        ports = self.ports.get(name, Ports())

        def ended(how: str) -> None:
            self.fates[name] = how

        self._processes[name] = await self._children.start(
            name,
            sys.executable,
            "-m",
            "lb.simulator",
            f"--speed={self.speed(name)}",
            f"--gpu=GPU-{name}",
            f"--http-port={ports.http_port}",
            f"--grpc-port={ports.grpc_port}",
            f"--metrics-port={ports.metrics_port}",
            announces=True,
            on_end=ended,
        )

    def running(self) -> list[str]:
        """Names of Tritons that neither ended nor are frozen."""
        return [name for name in self.names if name not in self.fates]

    def kill(self, name: str) -> None:
        """Kill one, as the kernel does when memory runs out."""
        self._processes[name].kill()

    def freeze(self, name: str) -> None:
        """Stop one: its connections stay open, and nothing is answered any more."""
        self._processes[name].send_signal(signal.SIGSTOP)
        self.fates[name] = "is frozen (SIGSTOP)"

    async def restore(self) -> list[str]:
        """Start those again that have ended, and let the frozen ones go on. Returns their names.

        Raises:
            DemoError: one does not start.
        """
        restored = [name for name in self.names if name in self.fates]
        for name in restored:
            process = self._processes[name]
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
            else:
                await self._start(name)
                await self._children.first_line(name, self._processes[name])
            self.fates.pop(name, None)
        return restored
