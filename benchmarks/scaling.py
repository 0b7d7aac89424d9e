"""A day of bursty traffic for an autoscaler: our signal against NVIDIA's rule for queue times.

    python -m benchmarks.scaling

A pool of servers with one or several instances, which take a minute to start, is scaled by a
HorizontalPodAutoscaler with its defaults (every 15 s, at most doubled or four more, fewer only
after five minutes) that follows either `triton_lb_desired_backends`, with the code that computes
it, or the rule of NVIDIA's article "Deploying NVIDIA Triton at Scale with MIG and Kubernetes":
the mean time in the queue over 30 s against a target, 50 us there. Load goes up and down over the
day between 30 and 300 requests a second for each instance's worth, with bursts of 1.5 to 3 times
that for one to five minutes about once an hour. Waiting is that of a queue for all servers: what
does not fit waits, and what would fit waits as in M/D/c (Sakasegawa's approximation).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from lb.control.scaling import TICK_S, Scaling
from lb.domain.load import LoadSample

DAY_S: Final = 86_400
SERVICE_S: Final = 0.020
BUDGET_S: Final = 0.060
"""Mean time that is wanted."""
_START_S: Final = 60.0
_SYNC_TICKS: Final = 3
"""The autoscaler looks every 15 s."""
_STABLE_S: Final = 300.0
_TOLERANCE: Final = 0.1
_MOST: Final = 60


@dataclass(slots=True)
class Tick:
    """What happened in one tick."""

    answered: int
    time_s: float
    """Of an answered request, on average."""
    queue_s: float
    """Part of it that was spent waiting."""


class Traffic:
    """Requests a second over the day."""

    def __init__(self, rng: Random, scale: float) -> None:
        self._rng = rng
        self._scale = scale
        self._until = 0.0
        self._factor = 1.0

    def rate(self, at: float) -> float:
        """At one time of the day, which must go up."""
        rng = self._rng
        if at >= self._until:
            self._factor = 1.0
            if rng.random() < TICK_S / 3600:
                self._until = at + rng.uniform(60.0, 300.0)
                self._factor = rng.uniform(1.5, 3.0)
        daily = 165.0 - 135.0 * math.cos(2 * math.pi * at / DAY_S)
        return daily * self._scale * self._factor


@dataclass(slots=True)
class Servers:
    """A pool that can be scaled."""

    instances: int
    up: int
    coming: list[float] = field(default_factory=list)
    waiting: float = 0.0
    wanted: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def count(self) -> int:
        """Those that run and those that start."""
        return self.up + len(self.coming)

    def serve(self, at: float, came: float) -> Tick:
        """One tick."""
        while self.coming and self.coming[0] <= at:
            self.coming.pop(0)
            self.up += 1
        slots = self.up * self.instances
        if not slots:
            self.waiting += came
            return Tick(0, 0.0, 0.0)
        capacity = slots / SERVICE_S * TICK_S
        before = self.waiting
        answered = min(before + came, capacity)
        self.waiting = before + came - answered
        busy = min(0.98, came / capacity)
        random_s = SERVICE_S / 2 * busy ** (math.sqrt(2 * (slots + 1)) - 1) / (slots * (1 - busy))
        queue_s = random_s + (before + self.waiting) / 2 * SERVICE_S / slots
        return Tick(int(answered), SERVICE_S + queue_s, queue_s)

    def scale(self, at: float, wanted: int) -> None:
        """As the autoscaler does."""
        wanted = max(1, min(wanted, max(2 * self.count, self.count + 4), _MOST))
        self.wanted.append((at, wanted))
        while at - self.wanted[0][0] > _STABLE_S:
            self.wanted.popleft()
        wanted = max(wanted, min(self.count, max(each for _, each in self.wanted)))
        self.coming += [at + _START_S] * (wanted - self.count)
        fewer = max(0, self.count - wanted)
        kept = max(0, len(self.coming) - fewer)
        fewer -= len(self.coming) - kept
        del self.coming[kept:]
        self.up -= fewer


Rule = Callable[[Servers, Tick, float], int]


def desired_rule(budget_s: float) -> Rule:
    """Follow our signal."""
    scaling = Scaling(budget_s)
    total, seconds = 0, 0.0

    def rule(servers: Servers, tick: Tick, at: float) -> int:
        nonlocal total, seconds
        total += tick.answered
        seconds += tick.answered * tick.time_s
        under_way = servers.waiting + tick.answered * tick.time_s / TICK_S
        weight = float(servers.up)
        scaling.observe(LoadSample(total, seconds, 0, int(under_way), weight, servers.up), at)
        return scaling.desired

    return rule


def queue_time_rule(target_s: float) -> Rule:
    """Follow the mean time in the queue of the last 30 s."""
    recent: deque[Tick] = deque(maxlen=6)

    def rule(servers: Servers, tick: Tick, at: float) -> int:
        recent.append(tick)
        answered = sum(each.answered for each in recent)
        queue_s = sum(each.answered * each.queue_s for each in recent) / (answered + 1)
        ratio = queue_s / target_s
        if abs(ratio - 1.0) <= _TOLERANCE:
            return servers.count
        return math.ceil(servers.count * ratio)

    return rule


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a day was like."""

    late: float
    """Share of the requests in ticks whose mean time was beyond the budget."""
    hours: float
    """Of servers."""
    changes: int
    """How often their number changed."""


def day(rule: Rule, *, instances: int = 1, seed: int = 1, seconds: int = DAY_S) -> Outcome:
    """Play a day."""
    rng = Random(seed)
    traffic = Traffic(rng, float(instances))
    servers = Servers(instances, up=4)
    late = total = changes = 0
    hours = 0.0
    for number in range(int(seconds / TICK_S)):
        at = number * TICK_S
        mean = traffic.rate(at) * TICK_S
        tick = servers.serve(at, max(0.0, rng.gauss(mean, math.sqrt(mean))))
        total += tick.answered
        late += tick.answered if tick.time_s > BUDGET_S else 0
        hours += servers.count * TICK_S / 3600
        wanted = rule(servers, tick, at)
        if number % _SYNC_TICKS == 0:
            before = servers.count
            servers.scale(at, wanted)
            changes += servers.count != before
    return Outcome(late / total, hours, changes)


def main() -> None:
    """Print a table."""
    print("| follows | instances | beyond the budget | server hours | changes |")
    print("|---|---:|---:|---:|---:|")
    rules: list[tuple[str, Callable[[], Rule]]] = [
        ("`triton_lb_desired_backends`", lambda: desired_rule(BUDGET_S)),
        *(
            (f"queue time, target {target_s * 1e3:g} ms", lambda t=target_s: queue_time_rule(t))
            for target_s in (50e-6, 0.005, 0.020, 0.040)
        ),
    ]
    for name, make in rules:
        for instances in (1, 4):
            found = day(make(), instances=instances)
            cells = (f"{100 * found.late:.1f} %", f"{found.hours:.0f}", str(found.changes))
            print(f"| {name} | {instances} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
