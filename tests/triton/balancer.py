"""The balancer as users run it: `triton-lb serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil
import yaml

from tests.fakes.process import ChildProcess, free_ports, has_ended, wait_until
from tests.triton.server import REPOSITORY
from tests.triton.target import Target, http_status

START_TIMEOUT_S = 45.0
"""A start takes a second of CPU, on machines that may be busy with anything."""


class Reachable(Protocol):
    """A Triton, or what stands before one."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> Target: ...

    @property
    def metrics_port(self) -> int: ...


@dataclass(frozen=True)
class BackendView:
    """What the admin API says about one backend."""

    name: str
    in_flight: int
    open_sequences: int
    empty: bool
    port_states: tuple[str, ...]
    is_leaving: bool
    """Removed; it finishes what it has."""

    @property
    def is_in(self) -> bool:
        """Whether requests of both protocols go to it."""
        return all(state == "up" for state in self.port_states)

    @property
    def is_out(self) -> bool:
        """Whether requests of neither protocol go to it."""
        return all(state != "up" for state in self.port_states)


class RunningBalancer:
    """One balancer before some Tritons, all four listeners on."""

    started: ClassVar[list[RunningBalancer]] = []
    """All that are not closed."""

    def __init__(
        self, workspace: Path, tritons: Sequence[Reachable], **sections: dict[str, Any]
    ) -> None:
        """Start it; `sections` are added to its configuration."""
        http_port, grpc_port, metrics_port, admin_port = free_ports(4)
        self.target = Target(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
        self.metrics = f"127.0.0.1:{metrics_port}"
        self.admin = f"127.0.0.1:{admin_port}"
        self._config = workspace / "balancer.yaml"
        self._pid_file = workspace / "balancer.pid"
        self.configure(tritons, **sections)
        self._first_configuration = self._config.read_text()
        self._process = self._start()
        self.started.append(self)

    def _start(self) -> ChildProcess:
        return ChildProcess(
            (
                *(sys.executable, "-m", "lb.cli.main", "serve", "--config", str(self._config)),
                *("--pid-file", str(self._pid_file)),
            ),
            log=self._config.with_name("balancer.log"),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def restart(self) -> None:
        """Kill it and start it again with its first configuration. Does not wait."""
        self._process.close()
        self._config.write_text(self._first_configuration)
        self._process = self._start()

    def configure(self, tritons: Sequence[Reachable], **sections: dict[str, Any]) -> None:
        """Write its configuration file anew; it notices when it is told to."""
        draft = self._config.with_suffix(".new")
        draft.write_text(yaml.safe_dump({**self._settings(tritons), **sections}))
        draft.replace(self._config)

    def upgrade(self) -> None:
        """Have the next process take the sockets of this one, and wait until this one has ended.

        Raises:
            TimeoutError: it did not.
        """
        old = self.process()
        old.send_signal(signal.SIGUSR2)
        wait_until(lambda: self._pid() != old.pid, timeout_s=START_TIMEOUT_S, what="it took over")
        wait_until(
            lambda: has_ended(old.pid),
            timeout_s=START_TIMEOUT_S,
            what="the old process has ended",
        )

    def _pid(self) -> int:
        return int(self._pid_file.read_text())

    def _settings(self, tritons: Sequence[Reachable]) -> dict[str, Any]:
        return {
            # Tests that restart a Triton count on its whole share at once.
            "slow_start": {"window": "0s"},
            "listen": {
                "http": self.target.http,
                "grpc": self.target.grpc,
                "metrics": self.metrics,
                "admin": self.admin,
            },
            "backends": [
                {
                    "name": triton.name,
                    "http": triton.target.http,
                    "grpc": triton.target.grpc,
                    "metrics": f"127.0.0.1:{triton.metrics_port}",
                }
                for triton in tritons
            ],
        }

    def wait_ready(self) -> None:
        """Wait until it accepts requests and has every backend in rotation."""

        def is_ready() -> bool:
            if not self._process.is_running:
                raise RuntimeError(f"the balancer ended:\n{self._process.last_lines()}")
            return http_status(self.metrics, "/readyz") == 200 and self.all_in_rotation()

        try:
            wait_until(is_ready, timeout_s=START_TIMEOUT_S, what="the balancer is ready")
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self._process.last_lines()}") from error

    @classmethod
    def run(
        cls, workspace: Path, tritons: Sequence[Reachable], **sections: dict[str, Any]
    ) -> Iterator[RunningBalancer]:
        """The life of one in a fixture: started, ready, killed at the end."""
        running = cls(workspace, tritons, **sections)
        try:
            running.wait_ready()
            yield running
        finally:
            running.close()

    def backends(self) -> dict[str, BackendView]:
        """Ask the admin API; backends by name."""
        return {
            view["name"]: BackendView(
                name=view["name"],
                in_flight=view["in_flight"],
                open_sequences=view["open_sequences"],
                empty=view["empty"],
                port_states=tuple(port["state"] for port in view["ports"].values()),
                is_leaving=view["state"] == "leaving",
            )
            for view in self._admin("GET", "/api/v1/backends")["backends"]
        }

    def all_in_rotation(self) -> bool:
        return all(view.is_in for view in self.backends().values())

    def in_flight(self) -> int:
        """Attempts under way on all backends."""
        return sum(view.in_flight for view in self.backends().values())

    def command(self, backend: str, verb: str) -> None:
        """Drain, enable or disable a backend."""
        self._admin("POST", f"/api/v1/backends/{backend}/{verb}")

    def _admin(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection(self.admin, timeout=30)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {body!r}")
        return json.loads(body)

    def metrics_text(self) -> str:
        """What Prometheus would scrape."""
        connection = http.client.HTTPConnection(self.metrics, timeout=30)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def process(self) -> psutil.Process:
        """What runs: after an upgrade another one."""
        return psutil.Process(self._pid())

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._process.log.read_text()

    def open_files(self) -> int:
        """File descriptors that its process holds."""
        return self.process().num_fds()

    def resident_bytes(self) -> int:
        """Memory that its process holds."""
        size: int = self.process().memory_info().rss
        return size

    def close(self) -> None:
        """Kill it; its way of stopping is tested elsewhere."""
        self.started.remove(self)
        self._process.close()
