"""Stacks that `triton-lb generate` wrote, on ports that are free here, and their triton-lb."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lb.cli.main import main
from tests.deploy.listings import FOLDER
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_from, free_ports, wait_until
from tests.triton.target import http_status

START_S = 30.0
_STEP = 100


@dataclass(frozen=True)
class GeneratedStack:
    """The folder of one, and where its triton-lb listens."""

    folder: Path
    http: str
    grpc: str
    metrics: str
    admin: str

    @property
    def compose(self) -> dict[str, Any]:
        """Its Compose file."""
        found: dict[str, Any] = yaml.safe_load((self.folder / "compose.yaml").read_text())
        return found

    @property
    def backends(self) -> list[dict[str, Any]]:
        """Those of the configuration of its triton-lb."""
        (path,) = self.folder.rglob("triton-lb.yaml")
        found: list[dict[str, Any]] = yaml.safe_load(path.read_text())["backends"]
        return found

    def views(self) -> list[dict[str, Any]]:
        """What the admin API says of its backends."""
        connection = http.client.HTTPConnection(self.admin, timeout=30)
        try:
            connection.request("GET", "/api/v1/backends")
            found: list[dict[str, Any]] = json.loads(connection.getresponse().read())["backends"]
        finally:
            connection.close()
        return found

    def all_up(self) -> bool:
        """Whether triton-lb serves and every backend gets requests."""
        if http_status(self.metrics, "/readyz") != 200:
            return False
        return all(view["state"] == "up" for view in self.views())


def generate(
    target: str, folder: Path, source: str | Sequence[str], *options: str
) -> GeneratedStack:
    """Have a stack written, by the command.

    Args:
        target: what for.
        folder: where to.
        source: the name of a listing, or arguments instead.
        options: further arguments.
    """
    listeners = [f"127.0.0.1:{port}" for port in free_ports(4)]
    flags = [
        f"--{name}={address}"
        for name, address in zip(("http", "grpc", "metrics", "admin"), listeners, strict=True)
    ]
    devices = ["--from", str(FOLDER / f"{source}.txt")] if isinstance(source, str) else source
    first = free_block(8)
    arguments = ["--output", str(folder), "--first-port", str(first), *devices, *flags, *options]
    assert main(["generate", target, *arguments]) == 0
    return GeneratedStack(folder, *listeners)


def free_block(servers: int) -> int:
    """A first port from which on that many servers find theirs free."""
    return free_from([number * _STEP + offset for number in range(servers) for offset in range(3)])


def serve_command(configuration: Path) -> list[str]:
    """The command line of triton-lb, from this source tree."""
    return [sys.executable, "-m", "lb.cli.main", "serve", "--config", str(configuration)]


@contextmanager
def running(stack: GeneratedStack, command: Sequence[str]) -> Iterator[ChildProcess]:
    """Run its triton-lb until every backend is up, and end it."""
    process = ChildProcess(command, log=stack.folder / "triton-lb.log", env=ENVIRONMENT)
    try:
        try:
            wait_until(stack.all_up, timeout_s=START_S, what="all backends are up")
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{process.last_lines()}") from error
        yield process
    finally:
        process.close()
