"""A simulation of the policies, where nothing is scheduled.

`python -m benchmarks.study.simulate_policies` prints the latencies of each policy in some scenes.
Several load balancers share the backends in some; each counts only its own requests.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from random import Random
from statistics import fmean

from benchmarks.study.simulate import Gpu, Request, World, poisson, quantile
from benchmarks.two_choices import TwoChoices
from lb.balancing.policies import make_policy
from lb.domain.backend import Address, AppProtocol, Backend, BackendSpec
from lb.domain.pool import Policy
from lb.domain.schedule import NO_DEADLINE

_TWO_CHOICES = "two choices"
POLICIES = ("least_requests", "least_latency", "round_robin", _TWO_CHOICES)
UNEQUAL = (Gpu(0.005), Gpu(0.01), Gpu(0.04))
SLOWED = (Gpu(0.01, slow=((20.0, 40.0, 5.0),)), *(Gpu(0.01),) * 3)
WARM_S = 5.0


@dataclass(frozen=True)
class Scene:
    """A load on some backends."""

    name: str
    gpus: tuple[Gpu, ...]
    load: float
    """Part of what the backends can do."""
    replicas: int = 1
    """Load balancers; each request comes over one of them at random."""
    weights: tuple[float, ...] = ()


SCENES = (
    Scene("3 equal, 80 %", (Gpu(0.01),) * 3, 0.8),
    Scene("3 equal, 95 %", (Gpu(0.01),) * 3, 0.95),
    Scene("unequal, 46 %", UNEQUAL, 0.46),
    Scene("unequal, 74 %", UNEQUAL, 0.74),
    Scene("unequal with weights 8, 4, 1, 74 %", UNEQUAL, 0.74, weights=(8.0, 4.0, 1.0)),
    Scene("one of four slows down five times, 60 %", SLOWED, 0.6),
    Scene("12 equal, 80 %", (Gpu(0.01),) * 12, 0.8),
    Scene("12 equal, 3 replicas, 80 %", (Gpu(0.01),) * 12, 0.8, replicas=3),
    Scene("12 equal, 12 replicas, 80 %", (Gpu(0.01),) * 12, 0.8, replicas=12),
    Scene("unequal, 3 replicas, 74 %", UNEQUAL, 0.74, replicas=3),
)


class Replicas:
    """Load balancers that do not know each other."""

    def __init__(self, world: World, scene: Scene, policy: str, seed: int) -> None:
        self._world = world
        self._rng = Random(seed)
        weights = scene.weights or (1.0,) * len(scene.gpus)
        self._backends = [make_backends(weights) for _ in range(scene.replicas)]
        self._pickers = [
            _make_policy(policy, Random(number)).build(backends)
            for number, backends in enumerate(self._backends)
        ]

    def arrived(self, request: Request, now: float) -> None:
        """Place a request at once, over any load balancer."""
        del now
        replica = self._rng.randrange(len(self._backends))
        backend = self._pickers[replica].pick()
        assert backend is not None
        port = backend.port(AppProtocol.HTTP)
        backend.in_flight += 1
        port.in_flight += 1
        port.attempts += 1
        request.state = backend
        self._world.send(request, self._backends[replica].index(backend))

    def ended(self, request: Request, now: float) -> None:
        """Count an answer."""
        backend = request.state
        assert isinstance(backend, Backend)
        port = backend.port(AppProtocol.HTTP)
        backend.in_flight -= 1
        port.in_flight -= 1
        port.latency.sum += now - request.at

    def wake_at(self) -> float:
        """Never: nobody waits."""
        return NO_DEADLINE

    def woken(self, now: float) -> None:
        """There is nothing to do."""


def make_backends(weights: tuple[float, ...]) -> tuple[Backend, ...]:
    """Backends of such weights."""
    return tuple(
        Backend(BackendSpec(name=f"gpu{number}", http=Address("127.0.0.1", 8000), weight=weight))
        for number, weight in enumerate(weights)
    )


def _make_policy(name: str, rng: Random) -> Policy:
    return TwoChoices(rng) if name == _TWO_CHOICES else make_policy(name, rng)


def play(scene: Scene, policy: str, seed: int, seconds: float) -> list[float]:
    """Latencies in ms."""
    world = World(scene.gpus, seed)
    load = poisson(scene.load * sum(gpu.rate() for gpu in scene.gpus), seconds, seed)
    world.run(load, Replicas(world, scene, policy, seed))
    return [1000.0 * each.latency_s for each in load if each.at > WARM_S]


def main() -> None:
    """Print p50 / p99 / mean of each policy in each scene."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    print("| scene |", " | ".join(POLICIES), "|")
    print("|---|" + "---:|" * len(POLICIES))
    for scene in SCENES:
        cells = []
        for policy in POLICIES:
            runs = [play(scene, policy, seed, args.seconds) for seed in range(1, args.seeds + 1)]
            figures = (
                fmean(quantile(run, 0.5) for run in runs),
                fmean(quantile(run, 0.99) for run in runs),
                fmean(fmean(run) for run in runs),
            )
            cells.append(" / ".join(f"{each:.0f}" for each in figures))
        print(f"| {scene.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
