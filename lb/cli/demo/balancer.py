"""The load balancer of the demo: its configuration, its command line, and how it is asked."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from lb.admin.models import Backend, Backends
from lb.admin.operations import BACKENDS
from lb.simulator.process import Ports

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the load balancer listens, as HOST:PORT."""

    http: str
    grpc: str
    metrics: str
    admin: str


def free_listeners() -> Listeners:
    """Return addresses that were free just now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in sockets:
            each.bind((HOST, 0))
        return Listeners(*(f"{HOST}:{each.getsockname()[1]}" for each in sockets))


def configuration(listen: Listeners, backends: Mapping[str, Ports]) -> str:
    """Return the text of the configuration file that puts `backends` behind `listen`."""
    return yaml.safe_dump(
        {
            "listen": {
                "http": listen.http,
                "grpc": listen.grpc,
                "metrics": listen.metrics,
                "admin": listen.admin,
            },
            "backends": [
                {
                    "name": name,
                    "http": ports.address(ports.http_port),
                    "grpc": ports.address(ports.grpc_port),
                    "metrics": ports.address(ports.metrics_port),
                }
                for name, ports in backends.items()
            ],
        },
        sort_keys=False,
    )


def serve_command(config: Path) -> Sequence[str]:
    """Return the command line of the load balancer."""
    return (sys.executable, "-m", "lb.cli.main", "serve", "--config", str(config))


async def is_accepting(session: aiohttp.ClientSession, listen: Listeners) -> bool:
    """Whether the load balancer says that it takes requests."""
    try:
        async with session.get(f"http://{listen.metrics}/readyz") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def read_backends(session: aiohttp.ClientSession, listen: Listeners) -> list[Backend]:
    """Return the state of every backend.

    Raises:
        aiohttp.ClientError, TimeoutError: the admin API does not answer.
    """
    async with session.get(f"http://{listen.admin}{BACKENDS}") as response:
        response.raise_for_status()
        return Backends.model_validate_json(await response.read()).backends
