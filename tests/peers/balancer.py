"""`triton-lb serve` as peers meet it: all limits as they are by default, plain and with TLS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.fakes.tls import World

_LISTENERS = ("http", "https", "grpc", "grpcs", "metrics")
_ACCEPTED = "triton_lb_connections_accepted_total"
_OPEN = "triton_lb_connections"


class Balancer:
    """The process, and the backend behind it."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self._ports = dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True))
        grpc_port, http_port = free_ports(2)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(self._settings(grpc_port, http_port)))
        self._backend = ChildProcess(
            (sys.executable, "-m", "tests.peers.backend", str(grpc_port), str(http_port)),
            log=folder / "backend.log",
            env=ENVIRONMENT,
        )
        self._process = ChildProcess(
            (sys.executable, "-m", "lb", "serve", "--config", str(path)),
            log=folder / "serve.log",
            env=ENVIRONMENT,
        )

    def _settings(self, grpc_port: int, http_port: int) -> dict[str, object]:
        certificate, key = self.world.server
        listen: dict[str, object] = {name: self.address(name) for name in _LISTENERS}
        for name in ("https", "grpcs"):
            tls = {"certificates": [{"certificate": certificate, "key": key}]}
            listen[name] = {"address": self.address(name), "tls": tls}
        backend = {
            "name": "only",
            "grpc": f"127.0.0.1:{grpc_port}",
            "http": f"127.0.0.1:{http_port}",
        }
        return {"listen": listen, "backends": [backend], "health": {"probe": "tcp"}}

    def port(self, listener: str) -> int:
        """Of `http`, `https`, `grpc` or `grpcs`."""
        return self._ports[listener]

    def address(self, listener: str) -> str:
        """HOST:PORT; the host is in the certificate."""
        return f"127.0.0.1:{self._ports[listener]}"

    def wait_ready(self) -> None:
        """Wait until the backend is in."""

        def is_ready() -> bool:
            assert self._process.is_running, self._process.last_lines()
            assert self._backend.is_running, self._backend.last_lines()
            try:
                return self.sum_of("triton_lb_backend_up") == 2
            except OSError:
                return False

        wait_until(is_ready, timeout_s=30, what="the backend is in")

    def metrics(self) -> str:
        """Our own."""
        url = f"http://{self.address('metrics')}/metrics/own"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def sum_of(self, name: str) -> float:
        """Of all series of a metric."""
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.metrics(), re.MULTILINE)
        return sum(map(float, found))

    @contextmanager
    def expecting(self, connections: int) -> Iterator[None]:
        """Peers that open so many connections, none of which is lost: they would open another."""
        before = self.sum_of(_ACCEPTED)
        lines = len(self.log.splitlines())
        yield
        assert self._process.is_running, self._process.last_lines()
        wait_until(lambda: not self.sum_of(_OPEN), timeout_s=30, what="all peers have gone")
        opened = self.sum_of(_ACCEPTED) - before
        assert opened == connections, f"{opened} connections\n{self._process.last_lines()}"
        new = self.log.splitlines()[lines:]
        bad = [line for line in new if re.search("flood|CALM|calm|WARN|ERROR|Traceback", line)]
        assert not bad, bad

    @property
    def log(self) -> str:
        """All that it has said."""
        return self._process.log.read_text(errors="replace")

    def close(self) -> None:
        """End both."""
        self._process.close()
        self._backend.close()


def run(*command: str, env: dict[str, str] | None = None, timeout_s: float = 120) -> str:
    """Run a client, which must end well; returns what it said."""
    finished = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout
