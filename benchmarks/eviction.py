"""Which model makes room for another one: rules of eviction, played on the same requests.

    python -m benchmarks.eviction [--seeds N]

Three backends with room for four of twenty models, five requests a second for ten minutes. Loads
take 0.3 s and unloads 1.1 s, as those of python models on Triton do, one change at a time on each
backend. All rules choose among the same models at the same times, in `ModelPlanner`; they differ in
what a model is worth. The figure is the share of requests that needed no load of their own.

Traffic: independent requests with Zipf popularity (exponents 0.8, 1.0 and 1.2); popularity that is
dealt anew every two and a half minutes (`shift`); two models that swap places every ten seconds
(`drift`); all models one after the other after each 200 requests (`scan`).

Rules of others: LRU; LFU; LRU-2 (O'Neil, O'Neil and Weikum, SIGMOD 1993); GDSF with equal sizes and
costs (Cherkasova, HP Labs 98-69); a half-life of 300 s. Rules that decide whether to keep what was
loaded, such as W-TinyLFU's admission, do not apply: a request needs its model loaded. Two rules
know more than a balancer can: how popular each model is in the whole run, and when each is
needed next (Belady, 1966).
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, Protocol

from lb.placing.copies import Model
from lb.placing.planner import ModelPlanner, PlannerRules
from tests.fakes.model_store import SimulatedStores, zipf

MODELS: Final = tuple(b"m%d" % number for number in range(20))
BACKENDS, ROOM = 3, 4
LENGTH: Final = 3000
GAP_S: Final = 0.2
BEGIN: Final = 1000.0
LOAD_S, UNLOAD_S = 0.3, 1.1


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

    def __init__(self, requests: Sequence[int]) -> None:
        self._uses = Counter(MODELS[each] for each in requests)

    def value(self, model: Model, _now: float) -> float:
        """See `Rule`."""
        return self._uses[model]


class Belady(_Rule):
    """When each model is needed next."""

    def __init__(self, requests: Sequence[int]) -> None:
        self._uses: dict[Model, list[float]] = {}
        for number in reversed(range(len(requests))):
            at = BEGIN + GAP_S * (number + 1)
            self._uses.setdefault(MODELS[requests[number]], []).append(at)

    def value(self, model: Model, now: float) -> float:
        """See `Rule`."""
        uses = self._uses.get(model, [])
        while uses and uses[-1] <= now:
            uses.pop()
        return 1.0 / (uses[-1] - now) if uses else 0.0


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


def traffic(seed: int) -> dict[str, list[int]]:
    """Make the requests of each kind of traffic."""
    rng = Random(seed)
    return {
        "0.8": zipf(len(MODELS), 0.8, LENGTH, rng),
        "1.0": zipf(len(MODELS), 1.0, LENGTH, rng),
        "1.2": zipf(len(MODELS), 1.2, LENGTH, rng),
        "shift": _changing(4, lambda order: rng.shuffle(order), rng),
        "drift": _changing(60, lambda order: _swap(order, rng), rng),
        "scan": _scanned(rng),
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


RULES: Final[dict[str, Callable[[Sequence[int]], Rule | None]]] = {
    "LRU": lambda _: Recency(1),
    "LRU-2": lambda _: Recency(2),
    "LFU": lambda _: Decay(math.inf),
    "GDSF": lambda _: GreedyDual(),
    "half-life 300 s": lambda _: Decay(300.0),
    "two half-lives (triton-lb)": lambda _: None,
    "known popularity": KnownPopularity,
    "Belady": Belady,
}


def share_without_load(requests: Sequence[int], rule: Rule | None) -> float:
    """Play requests; None is the rule of the product."""
    stores = SimulatedStores(
        count=BACKENDS,
        models=MODELS,
        rules=PlannerRules(max_models=ROOM),
        load_s=LOAD_S,
        unload_s=UNLOAD_S,
    )
    if rule is not None:
        stores.planner = RankedPlanner(stores.planner.rules, rule)
        stores.planner.follow(stores.hosts(), stores.now)
    evicted = 0
    for each in requests:
        stores.advance(stores.now + GAP_S)
        stores.ask(MODELS[each])
        for _, model, *_ in stores.evictions[evicted:] if rule is not None else ():
            rule.evicted(model)
        evicted = len(stores.evictions)
    return 1.0 - len(stores.loads) / len(requests)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    kinds = [traffic(seed) for seed in range(1, 1 + parser.parse_args().seeds)]
    print(f"| rule | {' | '.join(kinds[0])} |")
    print(f"|---|{'---:|' * len(kinds[0])}")
    for name, make in RULES.items():
        cells = []
        for kind in kinds[0]:
            shares = [share_without_load(each[kind], make(each[kind])) for each in kinds]
            cells.append(f"{100 * sum(shares) / len(shares):.1f} %")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
