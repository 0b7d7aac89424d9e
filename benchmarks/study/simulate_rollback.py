"""A simulation of rollbacks: how often variants that are alike are rolled back, and how soon bad
ones are.

    python -m benchmarks.study.simulate_rollback [--hours 125] [--seed 0] [--no-faults] [SCENE...]

The judge of the product gets what two variants would have answered in each second. Every scene has
traffic of its own; `alike` plays it with two variants that are the same, and `bad` with one that is
not, from the end of the first minute on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import exp, pi, sin
from random import Random
from statistics import median
from typing import Final, TypeAlias

from lb.health.rollback import Baseline, Counts, VariantJudge

HOUR: Final = 3600
BEGIN_S: Final = 60
"""The second from which a bad variant is bad."""
_DRAWN: Final = 100_000
"""Latencies drawn beforehand for a scene; each second takes a run of them that begins anywhere."""
_STALL_EVERY_S: Final = 600
_TYPICAL_S: Final = 0.02

Second: TypeAlias = tuple[Counts, Counts]
"""What the first variant and the other one answered in a second."""
Draw: TypeAlias = Callable[[Random], float]
"""Draws the seconds that an answer takes."""


def lognormal(rng: Random) -> float:
    """The 99th percentile is about three times the median."""
    return _TYPICAL_S * rng.lognormvariate(0.0, 0.5)


def heavy_tailed(rng: Random) -> float:
    """A Pareto distribution without a variance."""
    return _TYPICAL_S * rng.paretovariate(1.2)


def bimodal(rng: Random) -> float:
    """Slightly more than one answer in a hundred takes 25 times as long as the others: the 99th
    percentile lies at the gap."""
    return lognormal(rng) * (25.0 if rng.random() < 0.012 else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Traffic for two variants."""

    draw: Draw = lognormal
    first: float = 190.0
    """Requests a second for the first variant."""
    other: float = 10.0
    errors: float = 0.001
    """Share of the requests of either variant."""
    drifts: bool = False
    """Latencies follow the hour and a load that changes within seconds, for both variants."""
    stalls: bool = False
    """Either variant stands still for a second every ten minutes, at times of its own."""


SCENES: Final = {
    "lognormal": Scene(),
    "heavy-tailed": Scene(draw=heavy_tailed),
    "bimodal": Scene(draw=bimodal),
    "low rate": Scene(first=4.0, other=0.2, errors=0.01),
    "drifting": Scene(drifts=True),
    "stalls": Scene(stalls=True),
    "even shares": Scene(first=100.0, other=100.0),
    "many errors": Scene(errors=0.05),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with the other variant."""

    errors: float = 0.0
    """Share of its requests that fail besides."""
    slower: float = 1.0
    """Times as long that its answers take."""


FAULTS: Final = {
    "half errors": Fault(errors=0.5),
    "twice as slow": Fault(slower=2.0),
    "4 times as slow": Fault(slower=4.0),
}


class Traffic:
    """Makes the seconds of a scene."""

    def __init__(self, scene: Scene, seed: int, fault: Fault | None = None) -> None:
        self._scene = scene
        self._rng = rng = Random(seed)
        self._fault = fault or Fault()
        self._drawn = [scene.draw(rng) for _ in range(_DRAWN)]
        self._load = 0.0
        """A random walk that returns to 0."""

    def __iter__(self) -> Iterator[Second]:
        at = 0
        while True:
            fault = self._fault if at >= BEGIN_S else Fault()
            factor = self._drift(at) if self._scene.drifts else 1.0
            yield (
                self._counts(self._scene.first, Fault(), factor),
                self._counts(self._scene.other, fault, factor),
            )
            at += 1

    def _drift(self, at: int) -> float:
        self._load = 0.9 * self._load + self._rng.gauss(0.0, 0.15)
        return exp(self._load + 0.5 * sin(2 * pi * at / HOUR))

    def _counts(self, rate: float, fault: Fault, factor: float) -> Counts:
        rng, scene = self._rng, self._scene
        counts = Counts()
        counts.requests = requests = _poisson(rng, rate)
        counts.errors = _binomial(rng, requests, scene.errors + fault.errors)
        begin = rng.randrange(_DRAWN - requests)
        latencies = self._drawn[begin : begin + requests - counts.errors]
        longer_s = 0.0
        if scene.stalls and rng.random() * _STALL_EVERY_S < 1.0:
            longer_s = 1.0
        factor *= fault.slower
        if factor != 1.0 or longer_s:
            latencies = [longer_s + factor * each for each in latencies]
        counts.latencies = latencies
        return counts


def _poisson(rng: Random, mean: float) -> int:
    """Draw a number of events."""
    if mean > 30.0:
        return max(0, round(rng.gauss(mean, mean**0.5)))
    count, at = 0, rng.expovariate(1.0)
    while at < mean:
        count += 1
        at += rng.expovariate(1.0)
    return count


def _binomial(rng: Random, times: int, share: float) -> int:
    """Draw how many of some events are of a kind."""
    if times < 30:
        return sum(rng.random() < share for _ in range(times))
    return min(times, _poisson(rng, times * share))


def rolled_back_at(seconds: Iterator[Second], judge: VariantJudge) -> tuple[int, str] | None:
    """Play until the other variant is rolled back.

    Returns:
        The second, counted from 1, and why; None where it stays.
    """
    baseline = Baseline()
    for at, (first, other) in enumerate(seconds, 1):
        baseline.add(first)
        why = judge.verdict(other, first, baseline)
        if why:
            return at, why
    return None


def false_rollbacks(scene: Scene, seconds: int, seed: int) -> list[tuple[int, str]]:
    """Play two variants that are alike; each rollback begins anew.

    Returns:
        The second and the reason of each rollback.
    """
    found = []
    traffic = iter(Traffic(scene, seed))
    left = seconds
    while left > 0:
        end = rolled_back_at(islice(traffic, left), VariantJudge(2.0, 1.5))
        if end is None:
            break
        left -= end[0]
        found.append((seconds - left, end[1]))
    return found


def reaction_s(scene: Scene, fault: Fault, seed: int, limit_s: int) -> int | None:
    """Play a bad variant.

    Returns:
        The seconds from its first bad answer to the rollback; None where it takes longer than
        `limit_s`, and 0 where it came too early.
    """
    seconds = islice(Traffic(scene, seed, fault), BEGIN_S + limit_s)
    found = rolled_back_at(seconds, VariantJudge(2.0, 1.5))
    return None if found is None else max(0, found[0] - BEGIN_S)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=125.0, help="of each scene")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-faults", action="store_true", help="play only variants that are alike"
    )
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], metavar="SCENE")
    given = parser.parse_args()
    total = 0
    print(f"{'SCENE':14} {'FALSE':>5} {'HOURS':>6}  SECONDS TO FIND (MEDIAN, LONGEST OF 20)")
    for name in given.scenes or SCENES:
        scene = SCENES[name]
        found = false_rollbacks(scene, int(given.hours * HOUR), given.seed)
        total += len(found)
        texts = []
        faults = {} if given.no_faults else FAULTS
        for fault_name, fault in faults.items():
            times = [reaction_s(scene, fault, seed, 600) or 600 for seed in range(20)]
            texts.append(f"{fault_name}: {median(times):.0f}, {max(times)}")
        print(f"{name:14} {len(found):5} {given.hours:6g}  {'; '.join(texts)}", flush=True)
        for at, why in found:
            print(f"  after {at / HOUR:.2f} hours: {why}", flush=True)
    print(f"{total} false rollbacks")


if __name__ == "__main__":
    main()
