"""Backends for tests of what reads them: pickers, health, views."""

from __future__ import annotations

from lb.domain.backend import Address, Backend, BackendKind, BackendSpec

HTTP_ADDRESS = Address(host="127.0.0.1", port=8000)
GRPC_ADDRESS = Address(host="127.0.0.1", port=1)
"""Tests dial it: nobody listens there, as the demo of another test does at port 8001."""


def make_spec(
    name: str = "gpu-0",
    *,
    http: Address | None = HTTP_ADDRESS,
    grpc: Address | None = GRPC_ADDRESS,
    weight: float = 1.0,
    max_in_flight: int = 0,
    kind: BackendKind = BackendKind.TRITON,
) -> BackendSpec:
    """Say something about a backend."""
    return BackendSpec(
        name=name, http=http, grpc=grpc, weight=weight, max_in_flight=max_in_flight, kind=kind
    )


def make_backend(
    name: str = "gpu-0",
    *,
    in_flight: int = 0,
    weight: float = 1.0,
    max_in_flight: int = 0,
    last_pick: int = 0,
) -> Backend:
    """Make a backend in a given state."""
    backend = Backend(make_spec(name, weight=weight, max_in_flight=max_in_flight))
    backend.in_flight = in_flight
    backend.last_pick = last_pick
    return backend


def make_backends(*in_flight: int) -> tuple[Backend, ...]:
    """Make one backend per in-flight count, named b0, b1, ..."""
    return tuple(make_backend(f"b{at}", in_flight=count) for at, count in enumerate(in_flight))
