"""The load balancer of the demo: its configuration, its command line, and how it is asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import yaml

from lb.admin.models import Backend, Backends
from lb.admin.operations import BACKENDS
from lb.simulator.process import Ports
from lb.testing.addresses import free_addresses

USUAL_PORTS: Final = (8000, 8001, 8002, 8003)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the load balancer listens, as HOST:PORT."""

    http: str
    grpc: str
    metrics: str
    admin: str


def usual_listeners() -> Listeners:
    """Return the addresses that triton-lb has by default, or others where one of them is taken."""
    try:
        return Listeners(*free_addresses(USUAL_PORTS))
    except OSError:
        return free_listeners()


def free_listeners() -> Listeners:
    """Return addresses that were free just now, all different."""
    return Listeners(*free_addresses((0, 0, 0, 0)))


def configuration(
    listen: Listeners, backends: Mapping[str, Ports], policy: str = "least_loaded"
) -> str:
    """Return the text of the configuration file that puts `backends` behind `listen`."""
    return yaml.safe_dump(
        {
            "balancing": {"policy": policy},
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


async def change_backend(
    session: aiohttp.ClientSession, listen: Listeners, name: str, action: str
) -> None:
    """Drain or enable a backend.

    Raises:
        aiohttp.ClientError, TimeoutError: the admin API does not do it.
    """
    url = f"http://{listen.admin}{BACKENDS}/{name}/{action}"
    async with session.post(url) as response:
        response.raise_for_status()
