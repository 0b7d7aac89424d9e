"""The process as users run it, in front of the backends of a test."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fakes.process import ChildProcess
from tests.fakes.tls import World

_REPOSITORY: Final = Path(__file__).parents[2]
_START_S: Final = 30.0


@dataclass
class Serving:
    """A running balancer, and its ports; 0 where it does not listen."""

    process: ChildProcess
    http: int
    https: int
    grpc: int
    grpcs: int
    metrics: int
    admin: int

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of a metric that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in await self.series()
            if line.startswith((name + "{", name + " ")) and all(part in line for part in wanted)
        )

    async def series(self) -> list[str]:
        """All metrics, a line each."""
        text = await asyncio.to_thread(_read, self.metrics, "/metrics/own")
        return [line for line in text.splitlines() if not line.startswith("#")]

    def check_log(self) -> None:
        """Nothing unforeseen may have happened."""
        assert self.process.is_running, self.process.last_lines()
        assert "Traceback" not in self.process.log.read_text()


def _read(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@asynccontextmanager
async def serving(
    folder: Path, backends: list[dict[str, Any]], world: World | None = None, **sections: Any
) -> AsyncIterator[Serving]:
    """Run `triton-lb serve` until the context ends.

    Args:
        folder: for the configuration and the log.
        backends: as in the configuration.
        world: whose certificate the listeners with TLS show; without it there are none.
        sections: more of the configuration.
    """
    names = ("http", "https", "grpc", "grpcs", "metrics", "admin")
    listen: dict[str, Any] = dict.fromkeys(names, "127.0.0.1:0")
    for name in ("https", "grpcs"):
        if world is None:
            del listen[name]
        else:
            certificate, key = world.server
            pair = {"certificate": certificate, "key": key}
            listen[name] = {"address": listen[name], "tls": {"certificates": [pair]}}
    path = folder / "serve.yaml"
    # JSON is YAML, without the aliases that a section used twice would become.
    path.write_text(json.dumps({"listen": listen, "backends": backends, **sections}))
    process = ChildProcess(
        (sys.executable, "-m", "lb", "serve", "--config", str(path)),
        log=folder / "serve.log",
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
    )
    try:
        async with asyncio.timeout(_START_S):
            while not re.search(r" serving .*\n", process.log.read_text()):
                assert process.is_running, process.log.read_text()
                await asyncio.sleep(0.02)
        line = next(line for line in process.log.read_text().splitlines() if " serving " in line)
        ports = dict(re.findall(r" (\w+)=127\.0\.0\.1:(\d+)", line))
        running = Serving(process, *(int(ports.get(name, 0)) for name in names))
        yield running
        running.check_log()
    finally:
        process.close()
