"""The process as users run it, in front of the backends of a test."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fakes.process import ChildProcess, free_ports
from tests.fakes.tls import World

_REPOSITORY: Final = Path(__file__).parents[2]
_START_S: Final = 30.0
_TRIES: Final = 5
_PATIENT: Final = {"timeouts": {"head": "60s"}}
"""A busy machine is slow to send long heads byte by byte; lateness has rows of its own."""
_LISTENERS: Final = ("http", "https", "grpc", "grpcs", "metrics", "admin")


@dataclass
class Serving:
    """A running balancer, and the ports that it was given."""

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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _listen(ports: Mapping[str, int], world: World | None) -> dict[str, Any]:
    listen: dict[str, Any] = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    for name in ("https", "grpcs"):
        if world is None:
            del listen[name]
        else:
            certificate, key = world.server
            pair = {"certificate": certificate, "key": key}
            listen[name] = {"address": listen[name], "tls": {"certificates": [pair]}}
    # Rows that half-close are to be answered, however fast the answer is.
    listen["half_close"] = "serve"
    return listen


async def _start(folder: Path, world: World | None, sections: Mapping[str, Any]) -> Serving | None:
    """Start it on free ports; None when somebody took one of them first.

    Port 0 would be the same address for all listeners, and they would share it.
    """
    ports = dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True))
    path, log = folder / "serve.yaml", folder / "serve.log"
    # JSON is YAML, without the aliases that a section used twice would become.
    path.write_text(json.dumps({"listen": _listen(ports, world), **sections}))
    log.unlink(missing_ok=True)
    process = ChildProcess(
        (sys.executable, "-m", "lb", "serve", "--config", str(path)),
        log=log,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
    )
    try:
        async with asyncio.timeout(_START_S):
            while " serving " not in (said := log.read_text()):
                if not process.is_running and "Address already in use" in said:
                    return None
                assert process.is_running, said
                await asyncio.sleep(0.02)
    except BaseException:
        process.close()
        raise
    return Serving(process, **ports)


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
    running = None
    for _ in range(_TRIES):
        running = await _start(folder, world, {"backends": backends, **_PATIENT, **sections})
        if running is not None:
            break
    assert running is not None, "no free ports"
    try:
        yield running
        running.check_log()
    finally:
        running.process.close()
