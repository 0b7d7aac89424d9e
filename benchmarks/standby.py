"""Days of bursty traffic on slices that stand by: how often they are activated, and what is late.

    python -m benchmarks.standby [--days N] [--first-seed N] [--shape NAME]

Seven slices serve traffic of one shape:

- `bursts`, that of `benchmarks.scaling`: up and down over the day, with a burst about once an hour;
- `steps` between what one and five slices can do, each for 20 to 90 minutes;
- `sine`, up and down between the same limits within two hours.

Two slices always serve, five stand by and take a minute to start. The code that decides is that of
the product: `StandbyPlanner`, with the predictions of `Scaling`. The same traffic is played on
seven slices that always serve, and on two. The exit code is 1 if a slice was activated again within
its cool-down.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from benchmarks.scaling import BUDGET_S, DAY_S, SERVICE_S, Servers, Traffic
from lb.control.scaling import TICK_S, Scaling
from lb.control.standby_plan import Load as Predicted
from lb.control.standby_plan import StandbyBackend, StandbyPlanner
from lb.domain.load import LoadSample
from lb.domain.standby import StandbyPhase
from lb.settings.standby import StandbySettings

SLICES: Final = 7
ALWAYS: Final = 2
COLD_START_S: Final = 60.0
RULES: Final = StandbySettings()
SCALE: Final = 0.6
"""The busiest hour of the day takes four slices of the seven within the budget, a burst then more
than there are."""


_LOW, _HIGH = 0.8 / SERVICE_S, 4.0 / SERVICE_S
"""Requests a second of steps and sine: 80 % of what one slice and five slices can do."""


class Load(Protocol):
    """Requests a second over the day."""

    def rate(self, at: float) -> float:
        """At one time of the day, which must go up."""


class Steps:
    """Sudden changes."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._until = 0.0
        self._rate = _LOW

    def rate(self, at: float) -> float:
        """See `Load`."""
        if at >= self._until:
            self._until = at + self._rng.uniform(1200.0, 5400.0)
            self._rate = self._rng.uniform(_LOW, _HIGH)
        return self._rate


class Sine:
    """Up and down within two hours."""

    def __init__(self, rng: Random) -> None:
        self._phase = rng.uniform(0.0, 2 * math.pi)

    def rate(self, at: float) -> float:
        """See `Load`."""
        swing = math.sin(self._phase + 2 * math.pi * at / 7200.0)
        return (_LOW + _HIGH) / 2 + (_HIGH - _LOW) / 2 * swing


SHAPES: Final[dict[str, Callable[[Random], Load]]] = {
    "bursts": lambda rng: Traffic(rng, SCALE),
    "steps": Steps,
    "sine": Sine,
}


@dataclass(slots=True)
class Outcome:
    """What a day was like."""

    late: float = 0.0
    """Share of the requests in ticks whose mean time was beyond the budget."""
    active: float = 0.0
    """Share of the time in which the slices that stand by were started or active."""
    activations: int = 0
    too_soon: int = 0
    """Activations within the cool-down after the last one of the same slice."""
    history: list[tuple[float, float, float, int]] = field(default_factory=list)
    """By tick: seconds, requests a second, mean time in seconds, slices that serve."""


class Slices:
    """The slices that stand by, with the product's decisions."""

    def __init__(self, count: int) -> None:
        self.planner = StandbyPlanner(RULES.for_, RULES.cooldown)
        self.slices = [
            StandbyBackend(
                f"slice-{rank}", rank, 1.0, StandbyPhase.STANDBY, 0.0, cold_start_s=COLD_START_S
            )
            for rank in range(1, count + 1)
        ]
        self._activated_at: dict[str, float] = {}
        self.activations = 0
        self.too_soon = 0

    def count(self, phase: StandbyPhase) -> int:
        """Slices in a phase."""
        return sum(each.phase is phase for each in self.slices)

    def decide(self, load: Predicted, now: float) -> None:
        """Start and stop slices."""
        for at, each in enumerate(self.slices):
            if each.phase is StandbyPhase.ACTIVATING and now - each.since >= COLD_START_S:
                self.slices[at] = each._replace(phase=StandbyPhase.ACTIVE, since=now)
        plan = self.planner.plan(self.slices, load, (), lambda _name, _wanted: True, now)
        for name, _ in plan.activate:
            self._enter(name, StandbyPhase.ACTIVATING, now)
            self.activations += 1
            self.too_soon += now - self._activated_at.get(name, -math.inf) < RULES.cooldown
            self._activated_at[name] = now
        if plan.release:
            self._enter(plan.release, StandbyPhase.STANDBY, now)

    def _enter(self, name: str, phase: StandbyPhase, now: float) -> None:
        at = next(at for at, each in enumerate(self.slices) if each.name == name)
        self.slices[at] = self.slices[at]._replace(phase=phase, since=now)


def day(
    seed: int,
    always: int = ALWAYS,
    standby: int = SLICES - ALWAYS,
    *,
    budget_s: float = BUDGET_S,
    shape: str = "bursts",
) -> Outcome:
    """Play a day of one of `SHAPES`."""
    rng = Random(seed)
    traffic = SHAPES[shape](rng)
    servers = Servers(1, up=always)
    slices = Slices(standby)
    scaling = Scaling(budget_s)
    outcome = Outcome()
    answered = late = total = 0
    seconds = 0.0
    for number in range(int(DAY_S / TICK_S)):
        at = number * TICK_S
        rate = traffic.rate(at)
        servers.up = always + slices.count(StandbyPhase.ACTIVE)
        came = max(0.0, rng.gauss(rate * TICK_S, math.sqrt(rate * TICK_S)))
        tick = servers.serve(at, came)
        total += tick.answered
        late += tick.answered if tick.time_s > budget_s else 0
        answered += tick.answered
        seconds += tick.answered * tick.time_s
        if standby:
            under_way = int(servers.waiting + tick.answered * tick.time_s / TICK_S)
            weight = float(servers.up)
            queued = int(servers.waiting)
            sample = LoadSample(answered, seconds, 0, under_way, weight, servers.up, queued)
            scaling.observe(sample, at)
            scaling.predict(sample, at)
            slices.decide(Predicted(scaling.latency, scaling.needed_weight, weight), at)
            used = standby - slices.count(StandbyPhase.STANDBY)
            outcome.active += used * TICK_S
        outcome.history.append((at, rate, tick.time_s, servers.up))
    outcome.late = late / total
    outcome.active /= max(1, standby) * DAY_S
    outcome.activations, outcome.too_soon = slices.activations, slices.too_soon
    return outcome


def _days(seeds: Iterable[int], always: int, standby: int, shape: str) -> list[Outcome]:
    """Play days, and forget how they went: a thousand of them would take gigabytes."""
    outcomes = []
    for seed in seeds:
        outcomes.append(day(seed, always, standby, shape=shape))
        outcomes[-1].history.clear()
    return outcomes


def main() -> int:
    """Play days and print what they were like. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--shape", choices=SHAPES, default="bursts")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.days)
    days = _days(seeds, ALWAYS, SLICES - ALWAYS, given.shape)
    all_on = _days(seeds, SLICES, 0, given.shape)
    two_on = _days(seeds, ALWAYS, 0, given.shape)
    print(f"{len(days)} days of {given.shape} on seven slices, seeds {seeds[0]} to {seeds[-1]}")
    print("| slices | beyond the budget | standby slices in use |")
    print("|---|---:|---:|")
    for name, outcomes in (
        ("two, and five that stand by", days),
        ("seven", all_on),
        ("two", two_on),
    ):
        late = sum(each.late for each in outcomes) / len(outcomes)
        active = sum(each.active for each in outcomes) / len(outcomes)
        print(f"| {name} | {100 * late:.1f} % | {100 * active:.1f} % |")
    activations = sum(each.activations for each in days)
    too_soon = sum(each.too_soon for each in days)
    print(f"activations a day: {activations / len(days):.1f}, within a cool-down: {too_soon}")
    return 1 if too_soon else 0


if __name__ == "__main__":
    sys.exit(main())
