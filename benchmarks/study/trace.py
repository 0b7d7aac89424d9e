"""What is asked, and when: the same arrivals for every contestant, and for the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.study.gpus import MODEL


@dataclass(frozen=True)
class Kind:
    """One sort of request in a load; `share` is its part of all arrivals."""

    name: str = "all"
    share: float = 1.0
    model: str = MODEL
    rows: int = 1
    deadline_ms: float = 0.0
    """The client says so and gives up then; 0: it waits."""
    fields: tuple[tuple[str, str], ...] = ()
    """Further header fields."""


@dataclass(frozen=True)
class Arrival:
    """A request that is due `at` seconds into the run; `kind` is a place in the list of kinds."""

    at: float
    kind: int


def arrivals(rate: float, seconds: float, kinds: Sequence[Kind], seed: int) -> list[Arrival]:
    """A Poisson process of `rate` requests a second."""
    random = Random(seed)
    shares = [each.share for each in kinds]
    found = []
    at = random.expovariate(rate)
    while at < seconds:
        found.append(Arrival(at, random.choices(range(len(kinds)), shares)[0]))
        at += random.expovariate(rate)
    return found


def mean_rows(kinds: Sequence[Kind]) -> float:
    """Rows of a request on average."""
    return sum(each.share * each.rows for each in kinds) / sum(each.share for each in kinds)
