"""The configuration of triton-lb for a stack."""

from __future__ import annotations

from typing import Any, Final

from lb.generate.devices import Device, GenerateError
from lb.generate.document import document
from lb.generate.stack import Server, Stack
from lb.settings.problems import SettingsError
from lb.settings.reading import read_settings

DRAIN_S: Final = 20
"""How long requests under way may take when triton-lb ends."""
STOP_S: Final = 30
"""What ends triton-lb waits so long before it kills it."""
SERVER_STOP_S: Final = 45
"""What ends a server waits so long; it is told after triton-lb has gone."""
FILE: Final = "triton-lb.yaml"


def balancer_configuration(stack: Stack) -> str:
    """The text of the file.

    Raises:
        GenerateError: triton-lb would refuse it.
    """
    text = document(
        {
            "listen": stack.options.listen.addresses,
            "backends": [_backend(server, stack) for server in stack.servers],
            "shutdown": {"drain": f"{DRAIN_S}s"},
            "reload": {"watch": True},
        },
        "triton-lb before " + told(stack) + ".",
        "Weights are compute slices, as a beginning. Every setting: docs/configuration.md.",
    )
    return checked(text)


def checked(text: str) -> str:
    """`text`, if triton-lb takes it.

    Raises:
        GenerateError: says what is wrong with it.
    """
    try:
        read_settings(text, {}, _read_nothing)
    except SettingsError as error:
        problems = "; ".join(map(str, error.problems))
        raise GenerateError(f"triton-lb would refuse its configuration: {problems}") from error
    return text


def _read_nothing(path: str) -> str:
    raise FileNotFoundError(path)


def _backend(server: Server, stack: Stack) -> dict[str, Any]:
    backend: dict[str, Any] = {
        "name": server.name,
        "http": f"127.0.0.1:{server.http}",
        "grpc": f"127.0.0.1:{server.grpc}",
    }
    if server.metrics:
        backend["metrics"] = f"127.0.0.1:{server.metrics}"
    if not stack.is_triton:
        backend["kind"] = stack.options.server.value
        backend["health"] = {"model": stack.options.model}
    if any(each.weight != 1 for each in stack.servers):
        backend["weight"] = server.weight
    return backend


def told(stack: Stack) -> str:
    """What the servers run on, in words."""
    counts: dict[str, int] = {}
    for server in stack.servers:
        kind = _kind(server.device)
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items())


def _kind(device: Device | None) -> str:
    if device is None:
        return "CPU"
    product = device.product or "GPU"
    return f"{device.profile} of {product}" if device.profile else product
