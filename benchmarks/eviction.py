"""Which model makes room for another one: rules of eviction, played on the same requests.

    python -m benchmarks.eviction [--seeds N | --recorded FILE]

Three backends with room for four of twenty models, five requests a second for ten minutes. Loads
take 0.3 s and unloads 1.1 s, as those of python models on Triton do, one change at a time on each
backend. All rules choose among the same models at the same times, in `ModelPlanner`; they differ in
what a model is worth. The figure is the share of requests that needed no load of their own: their
model was ready, or was being loaded for an earlier request. With `--recorded`, the requests and
the load times are those of a run with real Tritons (`make placement`), and a second figure is the
share of requests whose model was ready when they came.

Traffic: independent requests with Zipf popularity (exponents 0.8, 1.0 and 1.2); popularity that is
dealt anew every two and a half minutes (`shift`); two models that swap places every ten seconds
(`drift`); all models one after the other after each 200 requests (`scan`).

Rules of others: LRU; LFU; LRU-2 (O'Neil, O'Neil and Weikum, SIGMOD 1993); GDSF with equal sizes and
costs (Cherkasova, HP Labs 98-69); a half-life of 300 s. Rules that decide whether to keep what was
loaded, such as W-TinyLFU's admission, do not apply: a request needs its model loaded. Two rules
know more than a balancer can: how popular each model is in the whole run, and when each is
needed next (Belady, 1966). Belady's rule replaces the model that is needed last, on whichever
backend that is, and waits for that backend if it is busy. It loads nothing before a request comes.
"""

from __future__ import annotations

import argparse
import json
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol

from lb.placing.copies import Model
from lb.placing.planner import Host, ModelPlanner, PlannerRules, Step, Used
from tests.fakes.model_store import SimulatedStores, belady_hits, lru_hits, zipf

MODELS: Final = tuple(b"m%d" % number for number in range(20))
BACKENDS, ROOM = 3, 4
LENGTH: Final = 3000
GAP_S: Final = 0.2
LOAD_S, UNLOAD_S = 0.3, 1.1
REQUEST_S: Final = 0.005
"""How long a model executes a request of a recorded run."""


class Arrival(NamedTuple):
    """A request."""

    at: float
    """Seconds since the run began."""
    model: Model


class Shares(NamedTuple):
    """What part of the requests had what they needed."""

    no_load: float
    """Those that made no load: their model was ready, or being loaded for an earlier request."""
    ready: float
    """Those whose model was ready when they came."""


@dataclass(frozen=True)
class Recording:
    """A run with real Tritons. Times are seconds since it began."""

    arrivals: list[tuple[float, str]]
    """When each request came, and its model."""
    loads: list[tuple[float, float]]
    """When each load ended, and how long it took."""
    unloads: list[tuple[float, float]]
    """The same of unloads."""
    measured: tuple[float, float]
    """What `Shares` has."""
    min_age_s: float

    def write(self, path: Path) -> None:
        """Keep it for `read`."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read what `write` wrote."""
        kept = json.loads(path.read_text())
        return cls(
            arrivals=[(at, name) for at, name in kept["arrivals"]],
            loads=[(at, took) for at, took in kept["loads"]],
            unloads=[(at, took) for at, took in kept["unloads"]],
            measured=tuple(kept["measured"]),
            min_age_s=kept["min_age_s"],
        )


class Rule(Protocol):
    """Says what models are worth."""

    def used(self, model: Model, now: float) -> None:
        """A request came."""

    def evicted(self, model: Model) -> None:
        """A model was chosen to make room."""

    def value(self, model: Model, now: float) -> float:
        """What is worth least makes room."""


class _Rule:
    def evicted(self, model: Model) -> None:
        """Most rules do not care."""

    def used(self, model: Model, now: float) -> None:
        """Those that know the future do not care."""


class Recency(_Rule):
    """The k-th last use; LRU with k = 1."""

    def __init__(self, count: int) -> None:
        self._uses: dict[Model, deque[float]] = {}
        self._count = count

    def used(self, model: Model, now: float) -> None:
        """See `Rule`."""
        self._uses.setdefault(model, deque(maxlen=self._count)).append(now)

    def value(self, model: Model, _now: float) -> float:
        """See `Rule`. Models with fewer uses come before all others, by their last one."""
        uses = self._uses.get(model, ())
        if len(uses) == self._count:
            return uses[0] + 1e9
        return uses[-1] if uses else 0.0


class Decay(_Rule):
    """Uses that count half after a time; LFU without end."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._uses: dict[Model, tuple[float, float]] = {}

    def used(self, model: Model, now: float) -> None:
        """See `Rule`."""
        self._uses[model] = self.value(model, now) + 1.0, now

    def value(self, model: Model, now: float) -> float:
        """See `Rule`."""
        uses, at = self._uses.get(model, (0.0, now))
        return uses * math.exp2((at - now) / self._half_life_s)


class GreedyDual(_Rule):
    """GDSF: uses since the last load, on top of the value of what was evicted last."""

    def __init__(self) -> None:
        self._uses = Counter[Model]()
        self._values: dict[Model, float] = {}
        self._base = 0.0

    def used(self, model: Model, _now: float) -> None:
        """See `Rule`."""
        self._uses[model] += 1
        self._values[model] = self._base + self._uses[model]

    def evicted(self, model: Model) -> None:
        """See `Rule`."""
        self._base = max(self._base, self._values.get(model, 0.0))
        del self._uses[model]

    def value(self, model: Model, _now: float) -> float:
        """See `Rule`."""
        return self._values.get(model, 0.0)


class KnownPopularity(_Rule):
    """How often each model is used in the whole run."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._uses = Counter(each.model for each in arrivals)

    def value(self, model: Model, _now: float) -> float:
        """See `Rule`."""
        return self._uses[model]


class RankedPlanner(ModelPlanner):
    """The planner with another rule."""

    def __init__(self, rules: PlannerRules, rule: Rule) -> None:
        super().__init__(rules)
        self._rule = rule

    def used(self, models: Iterable[Model], now: float) -> None:
        """See `ModelPlanner`."""
        for model in models:
            self._rule.used(model, now)

    def value(self, model: Model, _copies: int, now: float) -> float:
        """See `ModelPlanner`."""
        return self._rule.value(model, now)

    def plan(
        self, wanted: Mapping[Model, float], hosts: Sequence[Host], used: Used, now: float
    ) -> list[Step]:
        """See `ModelPlanner`."""
        steps = super().plan(wanted, hosts, used, now)
        for step in steps:
            for model in step.evict:
                self._rule.evicted(model)
        return steps


class BeladyPlanner(ModelPlanner):
    """Replaces the model that is needed last, of all that are loaded anywhere. If its backend is
    busy, it waits for that."""

    def __init__(self, rules: PlannerRules, arrivals: Sequence[Arrival]) -> None:
        super().__init__(rules)
        self._upcoming: dict[Model, list[float]] = {}
        for at, model in reversed(arrivals):
            self._upcoming.setdefault(model, []).append(SimulatedStores.BEGIN + at)

    def _needed_at(self, model: Model, now: float) -> float:
        upcoming = self._upcoming.get(model, [])
        while upcoming and upcoming[-1] <= now:
            upcoming.pop()
        return upcoming[-1] if upcoming else math.inf

    def plan(
        self, wanted: Mapping[Model, float], hosts: Sequence[Host], _used: Used, now: float
    ) -> list[Step]:
        """See `ModelPlanner`."""
        taken = frozenset[Model]().union(*(host.taken for host in hosts))
        free = {host.name: host for host in hosts if not host.is_busy}
        steps = []
        for model in sorted(wanted.keys() - taken, key=lambda each: wanted[each]):
            roomy = [host for host in free.values() if len(host.taken) < ROOM]
            if roomy:
                step = Step(model, min(roomy, key=lambda host: len(host.taken)).name, ())
            else:
                choices = [
                    (self._needed_at(each, now), each, host.name)
                    for host in hosts
                    for each in host.ready - wanted.keys()
                ]
                if not choices:
                    continue
                _, victim, name = max(choices)
                step = Step(model, name, (victim,))
            if free.pop(step.backend, None) is not None:
                steps.append(step)
        return steps


def traffic(seed: int) -> dict[str, list[Arrival]]:
    """Make the requests of each kind of traffic."""
    rng = Random(seed)
    kinds = {
        "0.8": zipf(len(MODELS), 0.8, LENGTH, rng),
        "1.0": zipf(len(MODELS), 1.0, LENGTH, rng),
        "1.2": zipf(len(MODELS), 1.2, LENGTH, rng),
        "shift": _changing(4, lambda order: rng.shuffle(order), rng),
        "drift": _changing(60, lambda order: _swap(order, rng), rng),
        "scan": _scanned(rng),
    }
    return {
        kind: [Arrival(GAP_S * (at + 1), MODELS[each]) for at, each in enumerate(requests)]
        for kind, requests in kinds.items()
    }


def _changing(parts: int, change: Callable[[list[int]], None], rng: Random) -> list[int]:
    order = list(range(len(MODELS)))
    requests = []
    for _ in range(parts):
        change(order)
        requests += [order[each] for each in zipf(len(MODELS), 1.0, LENGTH // parts, rng)]
    return requests


def _swap(order: list[int], rng: Random) -> None:
    one, other = rng.randrange(len(order)), rng.randrange(len(order))
    order[one], order[other] = order[other], order[one]


def _scanned(rng: Random) -> list[int]:
    requests: list[int] = []
    while len(requests) < LENGTH:
        requests += [*zipf(len(MODELS), 1.0, 200, rng), *range(len(MODELS))]
    return requests[:LENGTH]


OURS: Final = "two half-lives (triton-lb)"
RULES: Final[dict[str, Callable[[PlannerRules, Sequence[Arrival]], ModelPlanner]]] = {
    "LRU": lambda rules, _: RankedPlanner(rules, Recency(1)),
    "LRU-2": lambda rules, _: RankedPlanner(rules, Recency(2)),
    "LFU": lambda rules, _: RankedPlanner(rules, Decay(math.inf)),
    "GDSF": lambda rules, _: RankedPlanner(rules, GreedyDual()),
    "half-life 300 s": lambda rules, _: RankedPlanner(rules, Decay(300.0)),
    OURS: lambda rules, _: ModelPlanner(rules),
    "known popularity": lambda rules, arrivals: RankedPlanner(rules, KnownPopularity(arrivals)),
    "Belady": BeladyPlanner,
}


def play(arrivals: Sequence[Arrival], name: str, recording: Recording | None = None) -> Shares:
    """Play requests.

    Args:
        arrivals: the requests.
        name: of the rule.
        recording: what load times are taken from; None: `LOAD_S` and `UNLOAD_S`.
    """
    rules = PlannerRules(max_models=ROOM)
    if recording is not None and name == OURS:
        rules = PlannerRules(max_models=ROOM, min_age_s=recording.min_age_s)
    stores = SimulatedStores(
        count=BACKENDS,
        models=MODELS,
        rules=rules,
        load_s=LOAD_S,
        unload_s=UNLOAD_S,
        request_s=0.0 if recording is None else REQUEST_S,
    )
    stores.planner = RULES[name](rules, arrivals)
    stores.planner.follow(stores.hosts(), stores.now)
    for at, model in arrivals:
        if recording is not None:
            stores.load_s = _latest(recording.loads, at)
            stores.unload_s = _latest(recording.unloads, at)
        stores.advance(SimulatedStores.BEGIN + at)
        stores.ask(model)
    count = len(arrivals)
    # Each model that requests still wait for is loaded once, after the last of all requests.
    loads = len(stores.loads) + len(stores.waiting)
    return Shares(1.0 - loads / count, stores.hits / count)


def _latest(measured: Sequence[tuple[float, float]], at: float) -> float:
    """Say what the last step took that had ended at a time, or the first one."""
    return measured[max(0, bisect_right(measured, (at, math.inf)) - 1)][1]


def compare(recording: Recording) -> Iterable[tuple[str, Shares]]:
    """Play the requests of a run with other rules, in the same stores with the load times of the
    run, and in one store of the same size whose loads take no time."""
    arrivals = [Arrival(at, name.encode()) for at, name in recording.arrivals]
    yield "triton-lb, measured", Shares(*recording.measured)
    stores = f"{BACKENDS} stores of {ROOM}"
    for name in (OURS, "LRU", "known popularity", "Belady"):
        yield f"{name}, simulated, {stores}", play(arrivals, name, recording)
    numbers = [MODELS.index(each.model) for each in arrivals]
    for name, count in (("LRU", lru_hits), ("Belady", belady_hits)):
        share = count(numbers, BACKENDS * ROOM) / len(numbers)
        yield f"{name}, one store of {BACKENDS * ROOM}, loads take no time", Shares(share, share)


def comparison(recording: Recording) -> str:
    """Make a table of `compare`."""
    lines = ["| rule | no load of its own | ready on arrival |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {100 * shares.no_load:.1f} % | {100 * shares.ready:.1f} % |"
        for name, shares in compare(recording)
    ]
    return "\n".join(lines)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recorded", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.recorded is not None:
        print(comparison(Recording.read(given.recorded)))
        return
    kinds = [traffic(seed) for seed in range(1, 1 + given.seeds)]
    print(f"| rule | {' | '.join(kinds[0])} |")
    print(f"|---|{'---:|' * len(kinds[0])}")
    for name in RULES:
        cells = []
        for kind in kinds[0]:
            shares = [play(each[kind], name).no_load for each in kinds]
            cells.append(f"{100 * sum(shares) / len(shares):.1f} %")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
