"""Who takes part: triton-lb with its defaults, and Envoy with and without tuning.

Both Envoys are made of the configuration that the benchmark of speed uses. `untuned` takes out what
that sets beyond a listener, a route and a cluster, so that Envoy's own defaults hold; `tuned` adds
what its documentation offers against failing hosts, for three hosts and large bodies.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import yaml

from benchmarks.faults.site import Way
from benchmarks.load.processes import BenchError, Children, Cores
from benchmarks.load.proxies import ENVOY, RECIPES, TRITON_LB, configure
from tests.triton.balancer import RunningBalancer
from tests.triton.target import Target

TUNED, UNTUNED = "envoy-tuned", "envoy-untuned"
_BUFFER_BYTES = 32 << 20
_RETRY_ON = "connect-failure,refused-stream,reset,gateway-error,unavailable"


class Contestant:
    """A running balancer."""

    name = ""
    keeps_sequences = False
    """Whether steps of a sequence go where it runs; if not, its load has none."""
    sections: Mapping[str, Any] = MappingProxyType({})
    """Of the configuration of triton-lb, where a scenario is about what is off by default."""

    target: Target

    async def start(self, ways: Sequence[Way], directory: Path) -> None:
        """Start it before some backends and wait until it serves.

        Raises:
            BenchError: it does not.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End it."""
        raise NotImplementedError

    def process(self) -> psutil.Process:
        """What runs; after an upgrade another one than before."""
        raise NotImplementedError

    def gauge(self, name: str) -> int:
        """The sum of a gauge of triton-lb; 0 where the contestant has none.

        Raises:
            OSError: it does not say.
        """
        return 0


class TritonLb(Contestant):
    """Ours, with nothing set but listeners and backends, unless a scenario says so."""

    name = TRITON_LB
    keeps_sequences = True

    def __init__(self) -> None:
        self.running: RunningBalancer | None = None
        self.ways: Sequence[Way] = ()

    async def start(self, ways: Sequence[Way], directory: Path) -> None:
        self.ways = ways
        # What tests set beyond that goes back to its default.
        sections = {"slow_start": {}, **self.sections}
        self.running = running = RunningBalancer(directory, ways, **sections)
        self.target = running.target
        try:
            await asyncio.to_thread(running.wait_ready)
        except RuntimeError as error:
            raise BenchError(str(error)) from error

    @property
    def balancer(self) -> RunningBalancer:
        """The running process.

        Raises:
            BenchError: there is none.
        """
        if self.running is None:
            raise BenchError("triton-lb does not run")
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None

    def process(self) -> psutil.Process:
        return self.balancer.process()

    def gauge(self, name: str) -> int:
        lines = self.balancer.metrics_text().splitlines()
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(int(float(line.rpartition(" ")[2])) for line in found)

    def reload(self, ways: Sequence[Way], **sections: dict[str, Any]) -> None:
        """Write another configuration and send SIGHUP."""
        self.balancer.configure(ways, **{"slow_start": {}, **self.sections, **sections})
        self.process().send_signal(signal.SIGHUP)

    def upgrade(self) -> None:
        """Let the next process take the sockets of the one that runs.

        Raises:
            TimeoutError: it did not.
        """
        self.balancer.upgrade()


class Envoy(Contestant):
    """A peer; `change` makes its configuration of the benchmark's."""

    def __init__(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        self.name = name
        self._change = change
        self._children: Children | None = None

    async def start(self, ways: Sequence[Way], directory: Path) -> None:
        await asyncio.to_thread(self._start, ways, directory)

    def _start(self, ways: Sequence[Way], directory: Path) -> None:
        recipe = RECIPES[ENVOY]
        path, ports = configure(
            recipe,
            directory,
            f"{self.name}.yaml",
            http_servers=recipe.servers([_port(way.target.http) for way in ways], False),
            grpc_servers=recipe.servers([_port(way.target.grpc) for way in ways], True),
        )
        self.target = Target(f"127.0.0.1:{ports.http}", f"127.0.0.1:{ports.grpc}")
        config = yaml.safe_load(path.read_text())
        self._change(config)
        path.write_text(yaml.safe_dump(config))
        self._children = Children(directory)
        child = self._children.start(self.name, recipe.argv(path), core=Cores.choose().proxy)
        self._process = psutil.Process(child.pid)
        child.wait_until_listening(ports.http, ports.grpc)

    def stop(self) -> None:
        if self._children is not None:
            self._children.__exit__()
            self._children = None

    def process(self) -> psutil.Process:
        return self._process


def untune(config: dict[str, Any]) -> None:
    """Leave to Envoy's defaults what the benchmark of speed sets."""
    for cluster in config["static_resources"]["clusters"]:
        for key in ("lb_policy", "circuit_breakers", "connect_timeout"):
            del cluster[key]
    for manager in _managers(config):
        del manager["stream_idle_timeout"]
        for route in _routes(manager):
            del route["timeout"]


def tune(config: dict[str, Any]) -> None:
    """Set what helps against failing hosts."""
    unlimited = dict.fromkeys(
        ("max_connections", "max_pending_requests", "max_requests", "max_retries"), 1_000_000
    )
    for listener in config["static_resources"]["listeners"]:
        listener["per_connection_buffer_limit_bytes"] = _BUFFER_BYTES
    for cluster in config["static_resources"]["clusters"]:
        check: dict[str, Any] = {"http_health_check": {"path": "/v2/health/ready"}}
        if cluster["name"] == "grpc":
            check = {"grpc_health_check": {}}
        cluster |= {
            "lb_policy": "LEAST_REQUEST",
            "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
            "circuit_breakers": {"thresholds": [unlimited]},
            "health_checks": [
                {
                    **check,
                    "interval": "1s",
                    "no_traffic_interval": "1s",
                    "timeout": "1s",
                    "unhealthy_threshold": 2,
                    "healthy_threshold": 1,
                }
            ],
            "close_connections_on_host_health_failure": True,
            "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
            "outlier_detection": {
                "consecutive_5xx": 5,
                "consecutive_gateway_failure": 5,
                "enforcing_consecutive_gateway_failure": 100,
                "interval": "1s",
                "base_ejection_time": "5s",
                "max_ejection_percent": 67,
            },
        }
    for manager in _managers(config):
        for route in _routes(manager):
            route["retry_policy"] = {
                "retry_on": _RETRY_ON,
                "num_retries": 3,
                "host_selection_retry_max_attempts": 5,
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.retry.host"
                            ".previous_hosts.v3.PreviousHostsPredicate"
                        },
                    }
                ],
            }


def _managers(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The connection managers of all listeners, each once: aliases of the file are one object."""
    found = {}
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for each in chain["filters"]:
                found[id(each)] = each["typed_config"]
    return list(found.values())


def _routes(manager: dict[str, Any]) -> list[dict[str, Any]]:
    hosts = manager["route_config"]["virtual_hosts"]
    return [route["route"] for host in hosts for route in host["routes"]]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


MAKERS: Mapping[str, Callable[[], Contestant]] = {
    TRITON_LB: TritonLb,
    TUNED: lambda: Envoy(TUNED, tune),
    UNTUNED: lambda: Envoy(UNTUNED, untune),
}
"""All that may take part, by name."""
