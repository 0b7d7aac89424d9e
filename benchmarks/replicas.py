"""Many load balancers before many backends, with the code of the policies that they run.

    python -m benchmarks.replicas

Each replica counts only what it has sent itself, as processes do that do not know each other. A
backend does one request at a time, each about as long (uniform, half to one and a half times the
mean); requests come at random to a random replica and are 80 % of what all backends can do.
Printed is the time that requests wait, in service times: at the median, at the 99th percentile,
and how many times its share the most used backend got. Then how evenly sequences lie that
replicas place by bounded rendezvous hashing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from benchmarks.two_choices import TwoChoices
from lb.balancing.policies import make_policy
from lb.balancing.sequences import Affinity, SequenceTable
from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.pool import Placement, Policy
from lb.domain.sequence import SequenceKey, SequenceStep

LOAD: Final = 0.8
_TWO_CHOICES: Final = "two_choices"
"""Envoy's LEAST_REQUEST, to compare with."""
POLICIES: Final = ("least_loaded", _TWO_CHOICES, "round_robin")
_WARM_UP: Final = 0.2
_IDLE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Waits:
    """What requests waited, in service times."""

    median: float
    late: float
    """The 99th percentile."""
    most: float
    """Requests of the most used backend, as a multiple of its share."""


def make_backends(count: int) -> tuple[Backend, ...]:
    """The record of each, as one replica has it."""
    return tuple(
        Backend(BackendSpec(name=f"gpu-{number}", http=Address("127.0.0.1", 1 + number)))
        for number in range(count)
    )


def play(
    policy: str, *, replicas: int, backends: int, requests: int = 20_000, seed: int = 1
) -> Waits:
    """One combination."""
    rng = Random(seed)
    views = [make_backends(backends) for _ in range(replicas)]
    index = [{backend: number for number, backend in enumerate(view)} for view in views]
    pickers = [_make_policy(policy, Random(rng.random())).build(view) for view in views]
    free_at = [0.0] * backends
    running: list[tuple[float, int, int]] = []
    waits: list[float] = []
    used = Counter[int]()
    now = 0.0
    for number in range(requests):
        now += rng.expovariate(LOAD * backends)
        while running and running[0][0] <= now:
            _, replica, at = heappop(running)
            views[replica][at].in_flight -= 1
        replica = rng.randrange(replicas)
        backend = pickers[replica].pick()
        assert backend is not None
        at = index[replica][backend]
        begins = max(now, free_at[at])
        free_at[at] = begins + rng.uniform(0.5, 1.5)
        backend.in_flight += 1
        heappush(running, (free_at[at], replica, at))
        if number >= _WARM_UP * requests:
            waits.append(begins - now)
            used[at] += 1
    waits.sort()
    return Waits(
        median=waits[len(waits) // 2],
        late=waits[int(0.99 * len(waits))],
        most=max(used.values()) * backends / used.total(),
    )


def _make_policy(name: str, rng: Random) -> Policy:
    return TwoChoices(rng) if name == _TWO_CHOICES else make_policy(name, rng)


def spread(*, replicas: int, backends: int, sequences: int, bound: float = 1.25) -> float:
    """Open sequences of the fullest backend, as a multiple of its share."""
    views = [make_backends(backends) for _ in range(replicas)]
    policy = make_policy("least_loaded", Random(1))
    placements = [Placement(view, policy.build(view), policy) for view in views]
    tables = [
        SequenceTable(limit=sequences, affinity=Affinity.RENDEZVOUS, bound=bound) for _ in views
    ]
    rng = Random(2)
    opened = Counter[str]()
    for number in range(sequences):
        replica = rng.randrange(replicas)
        step = SequenceStep(SequenceKey(b"m", number), is_start=True)
        backend, pin = tables[replica].place(step, placements[replica], _IDLE_S, 0.0)
        assert backend is not None
        assert pin is not None
        tables[replica].ended(step, pin, pin.starts, 0.0)
        opened[backend.name] += 1
    return max(opened.values()) * backends / sequences


def _print_waits(replicas: Sequence[int], backends: Sequence[int]) -> None:
    print("| backends | replicas |", " | ".join(POLICIES), "|")
    print("|---:|---:|" + "---:|" * len(POLICIES))
    for count in backends:
        for several in replicas:
            cells = []
            for policy in POLICIES:
                requests = max(20_000, 100 * count)
                found = play(policy, replicas=several, backends=count, requests=requests)
                cells.append(f"{found.median:.2f} / {found.late:.1f} / {found.most:.2f}")
            print(f"| {count} | {several} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    _print_waits((1, 3, 12, 36), (4, 16, 64, 256))
    print("\n| backends | replicas | sequences | fullest backend |\n|---:|---:|---:|---:|")
    for count, several, sequences in (
        (4, 3, 240),
        (16, 12, 1600),
        (64, 12, 6400),
        (256, 36, 25_600),
    ):
        most = spread(replicas=several, backends=count, sequences=sequences)
        print(f"| {count} | {several} | {sequences} | {most:.2f} |", flush=True)


if __name__ == "__main__":
    main()
