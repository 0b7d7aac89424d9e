"""Several balancers behind one address, as the replicas of a service in a cluster."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.triton.server import RealTriton
from tests.triton.target import Target, http_status

_START_S = 40.0
_CHUNK = 64 * 1024


class Replica:
    """A balancer process; a restart keeps the ports."""

    def __init__(
        self, folder: Path, name: str, tritons: Sequence[RealTriton], **sections: Any
    ) -> None:
        self.name = name
        http, grpc, metrics, admin = (f"127.0.0.1:{port}" for port in free_ports(4))
        self.target = Target(http, grpc)
        self.metrics = metrics
        self.admin = admin
        age = sections.pop("max_connection_age", "0s")
        listen = {
            "http": {"address": http, "max_connection_age": age},
            "grpc": {"address": grpc, "max_connection_age": age},
            "metrics": metrics,
            "admin": admin,
        }
        backends = [
            {"name": each.name, "http": each.target.http, "grpc": each.target.grpc}
            for each in tritons
        ]
        config = {"listen": listen, "backends": backends, **sections}
        self._file = folder / f"{name}.yaml"
        self._file.write_text(yaml.safe_dump(config))
        self._log = folder / f"{name}.log"
        self._process = self._start()

    def _start(self) -> ChildProcess:
        command = (sys.executable, "-m", "lb", "serve", "--config", str(self._file))
        return ChildProcess(command, log=self._log, env=ENVIRONMENT)

    def wait_ready(self) -> None:
        """Wait until it accepts requests."""
        wait_until(
            lambda: http_status(self.metrics, "/readyz") == 200,
            timeout_s=_START_S,
            what=f"{self.name} is ready",
        )

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.signal(signal.SIGTERM)
        assert self._process.wait(_START_S) == 0, self._process.last_lines()

    def begin(self) -> None:
        """Start it again. To be called in a thread that stays, since the process goes with it."""
        self._process = self._start()

    @property
    def log(self) -> str:
        """What it said."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Kill it."""
        self._process.close()


class Service:
    """Gives each new connection to the next of its members, and moves bytes: what a cluster's
    address for a service does."""

    def __init__(self, members: Sequence[Replica]) -> None:
        self.members = list(members)
        """May change: for connections that come later."""
        self._turn = 0
        self._servers: list[asyncio.Server] = []
        self._moving: set[asyncio.Task[None]] = set()
        self.target = Target("", "")

    async def __aenter__(self) -> Service:
        """Listen for both protocols."""
        addresses = []
        for protocol in ("http", "grpc"):
            server = await asyncio.start_server(self._taker(protocol), "127.0.0.1", 0)
            self._servers.append(server)
            addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        self.target = Target(*addresses)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all."""
        for server in self._servers:
            server.close()
        for task in tuple(self._moving):
            task.cancel()
        await asyncio.gather(*self._moving, return_exceptions=True)

    def _taker(self, protocol: str) -> Any:
        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(protocol, reader, writer))
            self._moving.add(task)
            task.add_done_callback(self._moving.discard)

        return take

    async def _serve(
        self, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._turn += 1
        member = self.members[self._turn % len(self.members)]
        host, port = getattr(member.target, protocol).split(":")
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(_move(reader, back), _move(there, writer))
        finally:
            writer.close()
            back.close()


async def _move(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()
