"""What autoscalers read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]


class ScalingStatus(NamedTuple):
    """What the load asks for."""

    desired: int
    """Backends."""
    demand: float
    """Inferences a second."""
    rate: float | None
    """Inferences a second of one backend within the latency budget; None: not learnt yet."""


def scaling_rows(read: Callable[[], ScalingStatus]) -> dict[str, Rows]:
    """The series, by name."""

    def rate() -> Iterable[tuple[tuple[str, ...], float]]:
        found = read().rate
        return [] if found is None else [((), found)]

    return {
        "triton_lb_desired_backends": lambda: [((), read().desired)],
        "triton_lb_demand_rate": lambda: [((), read().demand)],
        "triton_lb_backend_capacity_rate": rate,
    }
