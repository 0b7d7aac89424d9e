"""The life of a simulated Triton: open the three ports, say which, serve, close."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lb.simulator.gpu import SimulatedGpu
from lb.simulator.grpc_service import make_grpc_server
from lb.simulator.http_service import make_http_application
from lb.simulator.server import SimulatedTriton
from lb.simulator.statistics import metrics_text

GRACE_S: Final = 1.0
"""How long requests in flight may take to end after a signal."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a simulated Triton listens; before it listens, 0 stands for any free port."""

    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0

    def address(self, port: int) -> str:
        """HOST:PORT of one of them; an IPv6 address is in brackets."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def to_json(self) -> str:
        """Return the line that the process prints when it is ready."""
        return json.dumps(
            {
                "host": self.host,
                "http_port": self.http_port,
                "grpc_port": self.grpc_port,
                "metrics_port": self.metrics_port,
            }
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> Ports:
        """Read that line."""
        return cls(**json.loads(line))


class Simulator:
    """The listeners of one simulated Triton; an asynchronous context manager."""

    def __init__(self, triton: SimulatedTriton, ports: Ports) -> None:
        self.triton = triton
        self.ports = ports
        """As asked for; the actual ones once it listens."""
        self._grpc = make_grpc_server(triton)
        self._runners: list[web.AppRunner] = []

    async def __aenter__(self) -> Simulator:
        """Listen.

        Raises:
            OSError: an HTTP or metrics port is taken.
            RuntimeError: the gRPC port is.
        """
        asked = self.ports
        try:
            grpc_port = self._grpc.add_insecure_port(asked.address(asked.grpc_port))
            await self._grpc.start()
            http = make_http_application(self.triton)
            http_port = await self._listen(http, asked.http_port)
            metrics_port = await self._listen(self._metrics_application(), asked.metrics_port)
        except BaseException:
            await self.__aexit__()
            raise
        self.ports = Ports(asked.host, http_port, grpc_port, metrics_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, give requests in flight their grace, end."""
        for runner in self._runners:
            await runner.cleanup()
        await self._grpc.stop(GRACE_S)

    async def _listen(self, application: web.Application, port: int) -> int:
        runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=GRACE_S, auto_decompress=False
        )
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, self.ports.host, port).start()
        return int(runner.addresses[0][1])

    def _metrics_application(self) -> web.Application:
        async def metrics(request: web.Request) -> web.Response:
            return web.Response(
                text=metrics_text(self.triton.counters.values(), self.triton.gpu),
                content_type="text/plain",
            )

        application = web.Application()
        application.router.add_get("/metrics", metrics)
        return application


async def serve(
    ports: Ports,
    models: tuple[str, ...],
    speed: float,
    say: Callable[[str], None],
    gpu: SimulatedGpu | None = None,
    *,
    is_explicit: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; `say` gets one line when all ports are open.

    Raises:
        OSError, RuntimeError: a port is taken.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    triton = SimulatedTriton(models, speed, gpu, is_explicit=is_explicit)
    async with Simulator(triton, ports) as simulator:
        say(simulator.ports.to_json())
        await ended.wait()
