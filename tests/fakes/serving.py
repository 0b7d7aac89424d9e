"""`triton-lb serve` as users run it, with a configuration that may change, and its successors."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until

_START_S = 60.0


class Serving:
    """A running balancer."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *,
        name: str = "lb",
        wrapper: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        """Start it.

        Args:
            folder: for its files.
            config: to begin with.
            name: of the files; another one for each balancer in a folder.
            wrapper: a command that runs it.
            environment: variables beside the usual ones.
        """
        self.path = folder / f"{name}.yaml"
        self.pid_file = folder / f"{name}.pid"
        self.write(config)
        self.environment = {**ENVIRONMENT, **environment}
        self.process = ChildProcess(
            (
                *(*wrapper, sys.executable, "-m", "lb", "serve"),
                *("--config", str(self.path), "--pid-file", str(self.pid_file)),
            ),
            log=folder / f"{name}.log",
            env=self.environment,
        )

    def write(self, config: dict[str, Any]) -> None:
        """Write another configuration, at once for whoever reads it."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(config))
        fresh.replace(self.path)

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    @property
    def pid(self) -> int:
        """Of the process that serves; 0 while there is none."""
        try:
            return int(self.pid_file.read_text())
        except FileNotFoundError:
            return 0

    def until_serving(self) -> dict[str, str]:
        """Wait for the start-up line and return its addresses by listener."""
        wait_until(
            lambda: bool(self.process.start_line) or not self.process.is_running,
            timeout_s=_START_S,
            what="the start-up line",
        )
        line = self.process.start_line
        assert line, self.log
        return dict(re.findall(r"(http|grpc|metrics|admin)=(\S+)", line))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that serves.

        Raises:
            ProcessLookupError: no process serves.
        """
        pid = self.pid
        if pid == 0:  # to `os.kill` that is the process group of the test run
            raise ProcessLookupError("no process serves")
        os.kill(pid, number)

    def until_logged(self, text: str, count: int = 1) -> None:
        """Wait until the log has so many lines with this text."""
        wait_until(lambda: self.log.count(text) >= count, timeout_s=_START_S, what=text)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a subcommand of `triton-lb` to its end."""
        return subprocess.run(
            (sys.executable, "-m", "lb", *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )


def before_one(triton: Ports) -> dict[str, Any]:
    """A configuration with all listeners on free ports, and one backend."""
    backend = {
        "name": "only",
        "http": f"127.0.0.1:{triton.http_port}",
        "grpc": f"127.0.0.1:{triton.grpc_port}",
    }
    listen = dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0")
    return {"listen": listen, "backends": [backend]}


def get(address: str, path: str) -> tuple[int, bytes]:
    """GET on a fresh connection."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metric(address: str, series: str) -> float:
    """The value of one series of our metrics."""
    page = get(address, "/metrics/own")[1].decode()
    found = [line for line in page.splitlines() if line.startswith(f"{series} ")]
    assert len(found) == 1, (series, found)
    return float(found[0].rpartition(" ")[2])
