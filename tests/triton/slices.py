"""Real Tritons that commands start and stop, as slices of GPUs would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.fakes.process import free_ports
from tests.fakes.slices import Slices
from tests.triton.server import MODELS, command_of, remove_shared_memory

MODEL = "sleeper"
"""Runs four requests at a time."""


class RealSlices(Slices):
    """Real Tritons with one model, which takes as long as a request says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._http_ports: list[int] = []
        shutil.copytree(MODELS / MODEL, folder / "models" / MODEL)

    def backend(self, name: str, rank: int, *options: str, timeout: str = "60s") -> dict[str, Any]:
        """The settings of a backend that is a real Triton."""
        ports = free_ports(3)
        self._http_ports.append(ports[0])
        models = self.folder / "models"
        command, environment = command_of(name, models, ports, self.folder, *options)
        # Commands get four variables of the balancer's environment.
        assignments = [f"{key}={value}" for key, value in environment.items()]
        settings = self.started_by(["/usr/bin/env", *assignments, *command], name, rank, timeout)
        return settings | {"http": f"127.0.0.1:{ports[0]}", "grpc": f"127.0.0.1:{ports[1]}"}

    def kill_all(self) -> None:
        super().kill_all()
        for port in self._http_ports:
            remove_shared_memory(port)


def request(milliseconds: int) -> dict[str, Any]:
    """The body of an HTTP request that takes so long."""
    value = {"name": "MILLISECONDS", "datatype": "INT32", "shape": [1], "data": [milliseconds]}
    return {"inputs": [value]}
