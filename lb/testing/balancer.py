"""The load balancer as a process before Tritons of a test."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import yaml

from lb.testing.addresses import free_addresses
from lb.testing.processes import Child, StartError
from lb.testing.tritons import Triton

_LISTENERS: Final = ("http", "grpc", "metrics", "admin")
_TRIES: Final = 3
"""Somebody else may take a port between the choice of it and the start."""
_ASK_S: Final = 5.0


class Balancer:
    """A triton-lb that runs, and where it listens."""

    def __init__(self, child: Child, addresses: Mapping[str, str]) -> None:
        self._child = child
        self.http = addresses["http"]
        """HOST:PORT of HTTP, for `tritonclient.http`."""
        self.grpc = addresses["grpc"]
        """HOST:PORT of gRPC, for `tritonclient.grpc`."""
        self.metrics = addresses["metrics"]
        """HOST:PORT of /metrics, /livez and /readyz."""
        self.admin = addresses["admin"]
        """HOST:PORT of the admin API."""

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._child.pid

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._child.output

    def backends(self) -> dict[str, str]:
        """State of each backend by name, such as `up`, as the admin API tells it."""
        answer = _get(self.admin, "/api/v1/backends")
        return {each["name"]: each["state"] for each in json.loads(answer)["backends"]}

    def is_ready(self) -> bool:
        """Whether it accepts requests and every backend serves."""
        try:
            return set(self.backends().values()) == {"up"}
        except (OSError, HTTPException):
            return False

    def wait_ready(self) -> None:
        """Wait until every backend serves.

        Raises:
            StartError: that takes too long, or the process ended.
        """
        self._child.wait_until(self.is_ready)

    def close(self) -> None:
        """End it: requests that run are finished first."""
        self._child.close()


@contextmanager
def running(
    tritons: Sequence[Triton], settings: Mapping[str, Any] | None = None
) -> Iterator[Balancer]:
    """Run triton-lb before Tritons, ready at once.

    Args:
        tritons: the backends.
        settings: further settings, as in a configuration file (docs/configuration.md).

    Raises:
        StartError: it did not start, because a setting is wrong for instance.
    """
    backends = [
        {"name": each.name, "http": each.http, "grpc": each.grpc, "metrics": each.metrics}
        for each in tritons
    ]
    with tempfile.TemporaryDirectory(prefix="triton-lb-") as folder:
        balancer = _start(
            Path(folder, "triton-lb.yaml"), {"backends": backends, **(settings or {})}
        )
        try:
            yield balancer
        finally:
            balancer.close()


def _start(config: Path, settings: Mapping[str, Any]) -> Balancer:
    """Start the process on free ports and wait until it is ready.

    Raises:
        StartError: it did not start.
    """
    for left in reversed(range(_TRIES)):
        addresses = dict(zip(_LISTENERS, free_addresses([0] * len(_LISTENERS)), strict=True))
        config.write_text(yaml.safe_dump({"listen": addresses, **settings}, sort_keys=False))
        command = (sys.executable, "-m", "lb", "serve", "--config", str(config))
        balancer = Balancer(Child("triton-lb", command), addresses)
        try:
            balancer.wait_ready()
        except BaseException as error:
            is_taken = isinstance(error, StartError) and "in use" in balancer.log
            balancer.close()
            if not (is_taken and left):
                raise
        else:
            return balancer
    raise AssertionError("the last try returns or raises")


def _get(address: str, path: str) -> bytes:
    """Body of a GET request.

    Raises:
        OSError, HTTPException: there is no answer, or it is an error.
    """
    connection = HTTPConnection(address, timeout=_ASK_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise HTTPException(f"{path} was answered with {response.status}")
    return body
