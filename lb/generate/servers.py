"""The command lines of the inference servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lb.generate.stack import Options, ServerKind
from lb.kserve.gate import RESERVED

_HOST: Final = "127.0.0.1"
"""Only triton-lb, on the same machine, talks to them."""
EXIT_S: Final = 30
"""How long a Triton lets requests run after it was told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server runs: what differs from one to the next."""

    name: str
    models: str
    """Folder with the models, as the server sees it."""
    http: str
    """Port, or the name of a variable that holds it; likewise the others."""
    grpc: str
    metrics: str
    shares_memory: bool = False
    """Whether others see the same /dev/shm; then they must not take each other's regions."""
    gpu_metrics: str = "true"
    """Whether a Triton reads those of its GPU: it cannot tell one MIG device from another."""


def server_command(options: Options, place: Place) -> tuple[str, ...]:
    """Name of the program, and its arguments."""
    if options.server is ServerKind.TRITON:
        return ("tritonserver", *_triton_arguments(options, place), *options.server_args)
    return (
        "tensorflow_model_server",
        f"--rest_api_port={place.http}",
        f"--port={place.grpc}",
        f"--model_name={options.model}",
        f"--model_base_path={place.models}/{options.model}",
        *options.server_args,
    )


def _triton_arguments(options: Options, place: Place) -> list[str]:
    arguments = [
        f"--model-repository={place.models}",
        f"--http-address={_HOST}",
        f"--http-port={place.http}",
        f"--grpc-address={_HOST}",
        f"--grpc-port={place.grpc}",
        f"--metrics-address={_HOST}",
        f"--metrics-port={place.metrics}",
        f"--exit-timeout-secs={EXIT_S}",
    ]
    if place.gpu_metrics != "true":
        arguments.append(f"--allow-gpu-metrics={place.gpu_metrics}")
    if place.shares_memory:
        # Reserved, so that clients neither see nor register what the Triton keeps there.
        prefix = f"{RESERVED.decode()}{place.name}_"
        arguments.append(f"--backend-config=python,shm-region-prefix-name={prefix}")
    return arguments
