"""The closed list of policies, by the names that configuration uses."""

from __future__ import annotations

from random import Random
from typing import Final

from lb.balancing.least_latency import LeastLatency
from lb.balancing.least_loaded import LeastLoaded
from lb.balancing.round_robin import RoundRobin
from lb.domain.pool import Policy

POLICY_NAMES: Final = ("least_loaded", "least_requests", "least_latency", "round_robin")


def make_policy(name: str, rng: Random) -> Policy:
    """Make the policy called `name`.

    Raises:
        ValueError: there is no such policy.
    """
    match name:
        case "least_loaded" | "least_requests":
            # The same for single requests; scheduled ones go by least_loaded of the scheduler.
            return LeastLoaded(rng)
        case "least_latency":
            return LeastLatency()
        case "round_robin":
            return RoundRobin()
        case _:
            raise ValueError(f"no policy {name!r}; there are: {', '.join(POLICY_NAMES)}")
