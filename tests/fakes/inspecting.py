"""Inspections of payload, taken to their end at once."""

from __future__ import annotations

from lb.kserve.inspect import inspect
from lb.kserve.regions import GrpcRegionWatch, HttpRegionWatch


def steps_of(watch: HttpRegionWatch | GrpcRegionWatch, payload: bytes) -> tuple[str, int]:
    """Why payload is refused, and in how many steps it was looked at."""
    inspection = watch.inspect(payload)
    steps = 1
    while True:
        try:
            next(inspection)
        except StopIteration as done:
            return str(done.value), steps
        steps += 1


def refuses(watch: HttpRegionWatch | GrpcRegionWatch, payload: bytes) -> bool:
    """Whether payload is refused."""
    return steps_of(watch, payload)[0] != ""


def grpc_regions(message: bytes) -> tuple[bytes, ...]:
    """The regions that a ModelInferRequest, or the first part of one, names."""
    return inspect(message, with_regions=True).regions
