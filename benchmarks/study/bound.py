"""What a perfect dispatcher makes of the same arrivals: it knows all times, and costs none.

Each request goes, in the order of arrival, to whichever Triton ends it first, possibly by waiting
for a fast one. Nothing is batched here.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.study import simulate
from benchmarks.study.figures import Run, by_kind, figures, middle
from benchmarks.study.generator import Outcome
from benchmarks.study.gpus import Models
from benchmarks.study.trace import Arrival, Kind, arrivals
from benchmarks.study.wires import GOOD

PERFECT = "perfect (simulated)"


def dispatch(
    due: Sequence[Arrival], kinds: Sequence[Kind], fleet: Sequence[Models]
) -> list[Outcome]:
    """When each request ends. Models have instances of their own, so each is alone."""
    ended: dict[int, float] = {}
    for model in {kind.model for kind in kinds}:
        gpus = [models[model] for models in fleet]
        places = [place for place, each in enumerate(due) if kinds[each.kind].model == model]
        asked = []
        for place in places:
            rows = kinds[due[place].kind].rows
            takes = [(gpu.base_ms + rows * gpu.row_ms) / 1000.0 for gpu in gpus]
            asked.append((due[place].at, takes))
        took = simulate.bound(asked, [gpu.instances for gpu in gpus])
        ended |= {place: due[place].at + each for place, each in zip(places, took, strict=True)}
    return [
        Outcome(each.kind, each.at, each.at, ended[place], GOOD) for place, each in enumerate(due)
    ]


def bound(
    rate: float,
    seconds: float,
    kinds: Sequence[Kind],
    fleet: Sequence[Models],
    *,
    seeds: Sequence[int],
    budget_ms: float,
) -> Run:
    """The median over the arrivals of several runs."""
    runs = []
    for seed in seeds:
        outcomes = dispatch(arrivals(rate, seconds, kinds, seed), kinds, fleet)
        whole = figures(outcomes, seconds, budget_ms)
        per_kind = by_kind(outcomes, kinds, seconds, budget_ms)
        runs.append(Run(whole, per_kind, rate, [], 0.0, [], 0.0))
    return middle(runs)


def is_apt(kinds: Sequence[Kind], fleet: Sequence[Models], rate: float, most: float) -> bool:
    """Whether it says something: nothing is batched or given up, and the load can be carried."""
    batches = any(gpu.batches for models in fleet for gpu in models.values())
    return 0.0 < rate < most and not batches and not any(kind.deadline_ms for kind in kinds)
