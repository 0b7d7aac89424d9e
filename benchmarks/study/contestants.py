"""Who takes part: triton-lb without any weights, and its peers as their manuals would have them.

The configurations are those of the benchmark of speed (`benchmarks/load/peers`), changed in how
they place requests: `NAME-weighted` knows how fast each Triton is, `NAME-limits` has a queue before
as many requests as execute at once, and `haproxy-tuned` has both, with limits found by trying.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from benchmarks.load.processes import REPOSITORY, BenchError, Child, Children
from benchmarks.load.proxies import (
    ENVOY,
    HAPROXY,
    NGINX,
    RECIPES,
    TRITON_LB,
    configure,
    serve_argv,
)
from benchmarks.study.fleet import Address
from benchmarks.study.generator import DEADLINE_FIELD
from benchmarks.study.gpus import Models, limits, speeds, tuned_limits
from tests.triton.target import http_status

DIRECT = "direct"
"""The first Triton without anything before it, with its share of the load."""

Config = dict[str, Any]


@dataclass(frozen=True)
class Running:
    """A contestant that serves."""

    name: str
    http: int
    grpc: int
    child: Child | None = None


@dataclass(frozen=True)
class Ground:
    """What a contestant is started on."""

    directory: Path
    addresses: Sequence[Address]
    models: Sequence[Models]
    core: int


@dataclass(frozen=True)
class Contestant:
    """How one of them differs from the configuration in `benchmarks/load/peers`."""

    name: str
    proxy: str
    weights: float = 0.0
    """Times the speed; 0: none are set."""
    limit: Callable[[Sequence[Models]], list[int]] | None = None
    """Requests at once per backend (HAProxy's maxconn)."""
    policy: str = ""
    """Envoy's lb_policy."""
    sections: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Added to triton-lb's configuration."""
    backends: int = 0
    """How many of the Tritons it has; 0: all."""
    revision: str = ""
    """Of triton-lb: the commit to run, instead of the sources that are here."""

    def start(self, children: Children, ground: Ground) -> Running:
        """Start it and wait until it serves.

        Raises:
            BenchError: it is not installed, or did not start.
        """
        count = self.backends or len(ground.addresses)
        addresses, models = ground.addresses[:count], ground.models[:count]
        if self.proxy == DIRECT:
            return Running(self.name, addresses[0].http, addresses[0].grpc)
        directory = ground.directory / self.name.replace("/", "-")
        directory.mkdir()
        recipe = RECIPES[self.proxy]
        config, ports = configure(
            recipe,
            directory,
            http_servers=self.servers(addresses, models, is_grpc=False),
            grpc_servers=self.servers(addresses, models, is_grpc=True),
            backends=_triton_lb_backends(addresses),
        )
        _CHANGES[self.proxy](self, config)
        argv = serve_argv(config) if self.proxy == TRITON_LB else recipe.argv(config)
        name = self.name.replace("/", "-")
        tree = _sources(self.revision, directory) if self.revision else recipe.tree
        child = children.start(name, argv, core=ground.core, cwd=tree or directory)
        child.wait_until_listening(ports.http, ports.grpc)
        if self.proxy == TRITON_LB:
            child.wait_until(lambda: http_status(f"127.0.0.1:{ports.metrics}", "/readyz") == 200)
        return Running(self.name, ports.http, ports.grpc, child)

    def servers(
        self, addresses: Sequence[Address], models: Sequence[Models], *, is_grpc: bool
    ) -> str:
        """The lines that list the backends of one protocol, as the configuration wants them."""
        weights = [max(1, round(self.weights * each)) for each in speeds(models)]
        limited = self.limit(models) if self.limit else [0] * len(models)
        lines = []
        for number, address in enumerate(addresses):
            port = address.grpc if is_grpc else address.http
            if self.proxy == ENVOY:
                lines.append(_envoy_server(port, weights[number] if self.weights else 0))
            elif self.proxy == HAPROXY:
                line = f"server b{number} 127.0.0.1:{port}{' proto h2' if is_grpc else ''}"
                line += f" weight {weights[number]}" if self.weights else ""
                line += f" maxconn {limited[number]}" if limited[number] else ""
                lines.append(line)
            elif self.proxy == NGINX:
                lines.append(f"server 127.0.0.1:{port};")
        return (", " if self.proxy == ENVOY else "\n  ").join(lines)


def _sources(revision: str, directory: Path) -> Path:
    """The sources of a commit in a folder of their own.

    Raises:
        BenchError: there is no such commit.
    """
    packed = directory / "sources.tar"
    argv = ["git", "-C", str(REPOSITORY), "archive", "-o", str(packed), revision, "lb"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"cannot take the sources of {revision}: {done.stderr.strip()}")
    with tarfile.open(packed) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _envoy_server(port: int, weight: int) -> str:
    address = f"{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}"
    said = f", load_balancing_weight: {weight}" if weight else ""
    return f"{{endpoint: {{address: {address}}}{said}}}"


def _triton_lb_backends(addresses: Sequence[Address]) -> str:
    return "\n".join(
        f"  - {{name: {each.name}, kind: triton, http: '127.0.0.1:{each.http}',"
        f" grpc: '127.0.0.1:{each.grpc}', metrics: '127.0.0.1:{each.metrics}'}}"
        for each in addresses
    )


def _change_triton_lb(contestant: Contestant, path: Path) -> None:
    config = {**yaml.safe_load(path.read_text()), **contestant.sections}
    path.write_text(yaml.safe_dump(config))


def _change_envoy(contestant: Contestant, path: Path) -> None:
    """Set the policy, and have deadlines that clients of gRPC give end the call here as well."""
    config: Config = yaml.safe_load(path.read_text())
    for cluster in config["static_resources"]["clusters"]:
        if contestant.policy:
            cluster["lb_policy"] = contestant.policy
    for listener in config["static_resources"]["listeners"]:
        for each in listener["filter_chains"][0]["filters"]:
            for host in each["typed_config"]["route_config"]["virtual_hosts"]:
                for route in host["routes"]:
                    route["route"]["max_stream_duration"] = {"grpc_timeout_header_max": "0s"}
    path.write_text(yaml.safe_dump(config))


def _change_haproxy(contestant: Contestant, path: Path) -> None:
    """Let requests wait as long as elsewhere; if not told so, only as long as for connecting."""
    text = path.read_text().replace(
        "  timeout connect 1s", "  timeout connect 1s\n  timeout queue 600s"
    )
    path.write_text(text)


_CHANGES: Mapping[str, Callable[[Contestant, Path], None]] = {
    TRITON_LB: _change_triton_lb,
    ENVOY: _change_envoy,
    HAPROXY: _change_haproxy,
    NGINX: lambda _contestant, _path: None,
}


PRIORITY_FIELD, TENANT_FIELD = "x-triton-lb-priority", "x-triton-lb-tenant"


def _scheduling(**settings: Any) -> Mapping[str, Any]:
    """The fields that loads use, and what else is not the default."""
    fields = {
        "deadline_header": DEADLINE_FIELD,
        "priority_header": PRIORITY_FIELD,
        "tenant_header": TENANT_FIELD,
    }
    return {"scheduling": {**fields, **settings}}


_POLICIES = ("least_latency", "least_requests", "round_robin")


def _unqueued(policy: str) -> Contestant:
    """A policy alone, without a queue before it."""
    sections = {"balancing": {"policy": policy}, **_scheduling(max_requests_per_backend="off")}
    return Contestant(f"{TRITON_LB}:{policy}", TRITON_LB, sections=sections)


ENVOY_ROUND, ENVOY_LEAST = "envoy-round-robin", "envoy-least"
ENVOY_WEIGHTED = "envoy-least-weighted"
HAPROXY_LEAST, HAPROXY_LIMITS = "haproxy-leastconn", "haproxy-limits"
HAPROXY_TUNED, NGINX_LEAST = "haproxy-tuned", "nginx-least"
ONE_BACKEND = f"{TRITON_LB}/1"
UNQUEUED, ADAPTIVE = f"{TRITON_LB}:unqueued", f"{TRITON_LB}:adaptive"
PRIORITIES, TENANTS = f"{TRITON_LB}:priorities", f"{TRITON_LB}:tenants"

CONTESTANTS: Mapping[str, Contestant] = {
    each.name: each
    for each in (
        Contestant(TRITON_LB, TRITON_LB, sections=_scheduling()),
        Contestant(UNQUEUED, TRITON_LB, sections=_scheduling(max_requests_per_backend="off")),
        Contestant(ADAPTIVE, TRITON_LB, sections=_scheduling(max_requests_per_backend="adaptive")),
        *map(_unqueued, _POLICIES),
        Contestant(PRIORITIES, TRITON_LB, sections=_scheduling(reserved=0.25)),
        Contestant(TENANTS, TRITON_LB, sections=_scheduling(tenants="header")),
        Contestant(ONE_BACKEND, TRITON_LB, backends=1, sections=_scheduling()),
        Contestant(ENVOY_ROUND, ENVOY, policy="ROUND_ROBIN"),
        Contestant(ENVOY_LEAST, ENVOY, policy="LEAST_REQUEST"),
        Contestant(ENVOY_WEIGHTED, ENVOY, policy="LEAST_REQUEST", weights=1.0),
        Contestant(HAPROXY_LEAST, HAPROXY),
        Contestant(HAPROXY_LIMITS, HAPROXY, limit=limits),
        Contestant(HAPROXY_TUNED, HAPROXY, weights=10.0, limit=tuned_limits),
        Contestant(NGINX_LEAST, NGINX),
        Contestant(DIRECT, DIRECT, backends=1),
    )
}
"""All that may take part, by name."""


def peers() -> list[str]:
    """Names of all that are not ours."""
    return [name for name, each in CONTESTANTS.items() if each.proxy in {ENVOY, HAPROXY, NGINX}]


def contestant(name: str) -> Contestant:
    """Who is called so; `triton-lb@REVISION` is another commit of ours.

    Raises:
        BenchError: nobody is.
    """
    if name in CONTESTANTS:
        return CONTESTANTS[name]
    ours, found, revision = name.partition("@")
    if ours != TRITON_LB or not found:
        raise BenchError(f"unknown: {name}; see --list")
    return Contestant(name, TRITON_LB, revision=revision)
