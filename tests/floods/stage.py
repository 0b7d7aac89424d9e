"""The processes of a flood: backend, balancer, good client, attacker."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.fakes.certificates import Authority
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.floods.good import Sample
from tests.floods.line import Target
from tests.floods.observation import Observation, Observer
from tests.floods.play import Played, Size
from tests.floods.slow_floods import CLIENT_LIMIT

_START_S = 30.0
TIMEOUTS = ("head", "body_progress", "handshake", "stream_stalled")
GAUGES = ("open_requests", "backend_in_flight", "held_bytes", "connections")
"""What must be 0 when everybody has gone."""


def _python(*arguments: str, log: Path) -> ChildProcess:
    return ChildProcess((sys.executable, "-m", *arguments), log=log, env=ENVIRONMENT)


class Stage:
    """A backend that observes and a balancer before it, with plain and with TLS listeners."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self.access_log = folder / "access.log"
        self._backend = _python("tests.floods.backend", log=folder / "backend.log")
        self._good: ChildProcess | None = None
        self._attacks = 0
        try:
            self.ca = self._write_certificates()
            http, grpc, control = self._backend_ports()
            self.observer = Observer(control)
            path = folder / "config.yaml"
            path.write_text(yaml.safe_dump(self._config(http, grpc)))
            self.balancer = _python("lb", "serve", "--config", str(path), log=folder / "serve.log")
            self._addresses = self._until_serving()
        except BaseException:
            self.close()
            raise
        self.process = psutil.Process(self.balancer.pid)

    def _write_certificates(self) -> str:
        authority = Authority()
        self._pair = authority.issue("localhost", "127.0.0.1").write(self._folder, "server")
        return authority.write(self._folder)

    def _backend_ports(self) -> list[int]:
        log = self._backend.log
        wait_until(
            lambda: log.read_text().endswith("\n") or not self._backend.is_running,
            timeout_s=_START_S, what="the backend",
        )  # fmt: skip
        return list(map(int, json.loads(log.read_text().splitlines()[0])))

    def _config(self, http: int, grpc: int) -> dict[str, Any]:
        certificate, key = self._pair
        names = ("http", "grpc", "https", "grpcs", "metrics")
        listen: dict[str, dict[str, Any]] = {
            name: {"address": f"127.0.0.1:{port}"}
            for name, port in zip(names, free_ports(len(names)), strict=True)
        }
        for name in ("https", "grpcs"):
            listen[name]["tls"] = {"certificates": [{"certificate": certificate, "key": key}]}
        return {
            "listen": listen,
            "backends": [
                {"name": "only", "http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}
            ],
            "timeouts": dict.fromkeys(TIMEOUTS, f"{self._timeout_s}s"),
            "limits": {"max_connections_per_client": CLIENT_LIMIT},
            "access_log": {"path": str(self.access_log)},
        }

    def _until_serving(self) -> dict[str, int]:
        wait_until(
            lambda: bool(self.balancer.start_line) or not self.balancer.is_running,
            timeout_s=_START_S, what="the start-up line",
        )  # fmt: skip
        line = self.balancer.start_line
        assert line, self.log
        addresses = {name: int(port) for name, port in re.findall(r"(\w+)=\S+?:(\d+)", line)}
        self._metrics_port = addresses["metrics"]
        wait_until(
            lambda: self.metrics()["pool_eligible_backends"] == 2,
            timeout_s=_START_S, what="a healthy backend",
        )  # fmt: skip
        return addresses

    # What is there

    @property
    def log(self) -> str:
        """The balancer's application log."""
        return self.balancer.log.read_text()

    def target(self, *, tls: bool) -> Target:
        """For an attacker."""
        ports = self._addresses
        if tls:
            return Target(ports["https"], ports["grpcs"], self.ca)
        return Target(ports["http"], ports["grpc"])

    def rss(self) -> int:
        """Resident bytes of the balancer."""
        return int(self.process.memory_info().rss)

    def cpu_s(self) -> float:
        """Processor time of the balancer so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def log_lines(self) -> tuple[int, int]:
        """Lines of the application log and of the access log."""
        access = self.access_log.read_bytes().count(b"\n") if self.access_log.exists() else 0
        return self.balancer.log.read_bytes().count(b"\n"), access

    def metrics(self) -> dict[str, float]:
        """Our own metrics, summed over labels, by name without prefix."""
        sums: dict[str, float] = {}
        found = re.findall(r"(?m)^triton_lb_(\w+)(?:\{.*\})? (\S+)", self._scrape())
        for name, value in found:
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def _scrape(self) -> str:
        url = f"http://127.0.0.1:{self._metrics_port}/metrics/own"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bytes(answer.read()).decode()

    def lag(self) -> list[tuple[float, int]]:
        """How late the event loop was: upper bounds in seconds, and ticks up to each."""
        pattern = r'event_loop_lag_seconds_bucket\{le="(\S+)"\} (\S+)'
        return [(float(le), int(float(n))) for le, n in re.findall(pattern, self._scrape())]

    def until_quiet(self, timeout_s: float) -> dict[str, float]:
        """Wait until nothing is open any more; gauges that are not 0 by then."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.metrics()
            left = {name: found[name] for name in GAUGES if found[name]}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    def until_flood_is_over(self, timeout_s: float) -> Observation:
        """Wait until the backend works for the good client only."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.observer.look()
            if not seen.in_flight or time.monotonic() > deadline:
                return seen
            time.sleep(0.02)

    # Who comes

    def start_good(self, *, tls: bool) -> Callable[[], list[Sample]]:
        """Start the good client; what is returned ends it and gives its samples."""
        target = self.target(tls=tls)
        out = self._folder / "good.json"
        out.unlink(missing_ok=True)
        process = _python(
            "tests.floods.good", str(target.http_port), str(target.grpc_port), str(out), target.ca,
            log=self._folder / "good.log",
        )  # fmt: skip
        self._good = process

        def stop() -> list[Sample]:
            process.signal(signal.SIGTERM)
            code = process.wait(30.0)
            assert code == 0, process.last_lines()
            return [Sample(*each) for each in json.loads(out.read_text())]

        return stop

    def start_attack(
        self, name: str, at: float, size: Size, *, tls: bool
    ) -> tuple[ChildProcess, Callable[[], Played]]:
        """Have a flood played from the monotonic time `at` on; the callable reads what it saw."""
        self._attacks += 1
        out = self._folder / f"attack-{self._attacks}.json"
        target = json.dumps(self.target(tls=tls))
        process = _python(
            "tests.floods.attack", name, str(at), target, json.dumps(size), str(out),
            log=self._folder / "attack.log",
        )  # fmt: skip

        def read() -> Played:
            assert out.exists(), process.last_lines()
            return Played(**json.loads(out.read_text()))

        return process, read

    def close(self) -> None:
        """End all of it."""
        for name in ("balancer", "_good", "_backend"):
            process = getattr(self, name, None)
            if process is not None:
                process.close()
        if hasattr(self, "observer"):
            self.observer.close()
