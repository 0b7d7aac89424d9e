"""What runs where: one server for each device, on ports of its own, and triton-lb before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd
from typing import Final

from lb.domain.backend import parse_address
from lb.generate.devices import Device, GenerateError

PROMETHEUS_PORT: Final = 9090
GRAFANA_PORT: Final = 3000
FIRST_PORT: Final = 18000
_STEP: Final = 100
"""From one server's HTTP port to the next one's, where there is room for it."""
_PORTS_EACH: Final = 3
LAST_PORT: Final = 32767
"""Above, Linux takes ports for outgoing connections."""
BALANCER_IMAGE: Final = "triton-lb:latest"


class Target(StrEnum):
    """What a stack is written for."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"


class ServerKind(StrEnum):
    """What runs on the devices; the values are those of a backend's `kind`."""

    TRITON = "triton"
    TFSERVING = "tfserving"


IMAGES: Final = {
    ServerKind.TRITON: "nvcr.io/nvidia/tritonserver:24.10-py3",
    ServerKind.TFSERVING: "tensorflow/serving:2.18.0-gpu",
}
"""Triton 2.51, which the tests run against."""
CPU_IMAGES: Final = {**IMAGES, ServerKind.TFSERVING: "tensorflow/serving:2.18.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where triton-lb listens."""

    http: str = "0.0.0.0:8000"
    grpc: str = "0.0.0.0:8001"
    metrics: str = "0.0.0.0:8002"
    admin: str = "127.0.0.1:8003"

    @property
    def addresses(self) -> dict[str, str]:
        """By listener."""
        return {
            "http": self.http,
            "grpc": self.grpc,
            "metrics": self.metrics,
            "admin": self.admin,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user chooses."""

    server: ServerKind = ServerKind.TRITON
    image: str = ""
    """Of the servers; empty: what `IMAGES` has."""
    balancer_image: str = BALANCER_IMAGE
    models: str = ""
    """Where the models are on the host; empty: where they usually are for that target."""
    model: str = "model"
    """Name of the one model of a TF Serving; its versions are in the folder of that name."""
    server_args: tuple[str, ...] = ()
    """Further arguments for every server."""
    listen: Listen = field(default_factory=Listen)
    first_port: int = FIRST_PORT
    last_port: int = LAST_PORT
    shared_memory: bool = False
    """Whether clients on the host share memory with the servers."""
    prometheus: bool = False
    grafana: bool = False
    command: str = ""
    """Command line that asks for the stack, for its main file; empty: the file does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One inference server."""

    name: str
    device: Device | None
    """None: it computes on the CPU."""
    http: int
    grpc: int
    metrics: int
    """0: it has no such port."""
    weight: int

    @property
    def has_gpu_metrics(self) -> bool:
        """Whether those of its GPU are its own, which they are not on a MIG device."""
        return not (self.device and self.device.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All of it."""

    options: Options
    servers: tuple[Server, ...]

    @property
    def image(self) -> str:
        """Of the servers."""
        images = IMAGES if any(server.device for server in self.servers) else CPU_IMAGES
        return self.options.image or images[self.options.server]

    @property
    def is_triton(self) -> bool:
        return self.options.server is ServerKind.TRITON


def make_stack(options: Options, devices: Sequence[Device], cpu_servers: int = 0) -> Stack:
    """Give each device a server with ports and a weight.

    Args:
        options: what the user chooses.
        devices: what to use; none for servers on the CPU.
        cpu_servers: how many of those.

    Raises:
        GenerateError: there is nothing to run on, an address or a port cannot be, or the folder of
            the models has a line end or the like in its name.
    """
    if not options.models.isprintable():
        raise GenerateError(f"--models: expected printable characters, got {options.models!r}")
    seats: list[tuple[str, Device | None, int]] = [
        (device.name, device, weight)
        for device, weight in zip(devices, weights(devices), strict=True)
    ]
    seats += [(f"cpu-{number}", None, 1) for number in range(cpu_servers)]
    if not seats:
        raise GenerateError("there is nothing to run on")
    ports = free_ports(len(seats), options.first_port, taken_ports(options), last=options.last_port)
    has_metrics = options.server is ServerKind.TRITON
    servers = tuple(
        Server(
            name=name,
            device=device,
            http=port,
            grpc=port + 1,
            metrics=port + 2 if has_metrics else 0,
            weight=weight,
        )
        for (name, device, weight), port in zip(seats, ports, strict=True)
    )
    return Stack(options=options, servers=servers)


def weights(devices: Sequence[Device]) -> list[int]:
    """The share of the load that each may get at first: its compute slices, in the lowest terms.

    Whole GPUs weigh the same, of whatever product: what they are worth shows in operation.
    """
    if not any(device.profile for device in devices):
        return [1] * len(devices)
    slices = [device.slices for device in devices]
    common = gcd(*slices)
    return [each // common for each in slices]


def taken_ports(options: Options) -> set[int]:
    """Ports of the host that belong to triton-lb and to monitoring.

    Raises:
        GenerateError: a listener's address is none, or two are the same.
    """
    taken: set[int] = set()
    for name, text in options.listen.addresses.items():
        try:
            address = parse_address(text)
        except ValueError as error:
            raise GenerateError(f"--{name}: {error}") from error
        if address.port in taken:
            raise GenerateError(f"--{name}: port {address.port} is taken by another listener")
        if address.port:
            taken.add(address.port)
    for name, port, is_wanted in (
        ("--prometheus", PROMETHEUS_PORT, options.prometheus),
        ("--grafana", GRAFANA_PORT, options.grafana),
    ):
        if is_wanted and port in taken:
            raise GenerateError(f"{name}: its port {port} is taken by a listener")
        if is_wanted:
            taken.add(port)
    return taken


def local_address(text: str) -> str:
    """`HOST:PORT` at which this machine reaches a listener.

    Raises:
        GenerateError: it is a Unix socket.
    """
    address = parse_address(text)
    if address.path:
        raise GenerateError(f"{text}: what asks for health and metrics needs HOST:PORT")
    if address.host in ("0.0.0.0", "::"):
        return f"127.0.0.1:{address.port}"
    return text


def free_ports(count: int, first: int, taken: Iterable[int], *, last: int = LAST_PORT) -> list[int]:
    """The first of three ports for each of `count` servers, none of them in `taken`.

    Raises:
        GenerateError: there are not so many from `first` to `last`.
    """
    step = _STEP if first + count * _STEP <= last else _PORTS_EACH
    found: list[int] = []
    port = first
    avoided = set(taken)
    while len(found) < count:
        if not 0 < port <= last + 1 - _PORTS_EACH:
            raise GenerateError(
                f"--first-port: no room for {count} servers from {first} to {last}; "
                "choose a lower port"
            )
        if avoided.isdisjoint(range(port, port + _PORTS_EACH)):
            found.append(port)
        port += step
    return found
