"""What the simulation says that triton-lb makes of the same arrivals: is it to be trusted?

The scheduler is that of the product, the Tritons take what the real ones were measured to take, and
both begin with the warm-up that real contestants get.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from benchmarks.load.proxies import TRITON_LB
from benchmarks.study.figures import Run, by_kind, figures, middle
from benchmarks.study.generator import Outcome
from benchmarks.study.gpus import Gpu, Models
from benchmarks.study.simulate import Gpu as SimulatedGpu
from benchmarks.study.simulate import Request, World
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from benchmarks.study.trace import Kind, arrivals
from benchmarks.study.wires import GOOD, LATE

SIMULATED = f"{TRITON_LB} (simulated)"
WARM_UP_S, WARM_UP_SHARE = 1.5, 0.5
_PAUSE_S = 2.0
"""After the warm-up: nothing of it is left then."""


def predict(
    rate: float,
    seconds: float,
    kinds: Sequence[Kind],
    fleet: Sequence[Models],
    *,
    capacity: float,
    seeds: Sequence[int],
    budget_ms: float,
) -> Run:
    """The median over the arrivals of several runs.

    Args:
        rate: requests a second.
        seconds: of load.
        kinds: what is asked; all of one model.
        fleet: Tritons with one model each.
        capacity: requests a second that they carry together, for the warm-up.
        seeds: of the arrivals, one for each run.
        budget_ms: for goodput.
    """
    gpus = [_simulated(gpu) for models in fleet for gpu in models.values()]
    warm = arrivals(WARM_UP_SHARE * capacity, WARM_UP_S, kinds, seed=99)
    runs = []
    for seed in seeds:
        begins = WARM_UP_S + _PAUSE_S
        due = arrivals(rate, seconds, kinds, seed)
        before = [_request(each.at, kinds[each.kind], ends=False) for each in warm]
        asked = [_request(begins + each.at, kinds[each.kind], ends=True) for each in due]
        world = World(gpus, seed=Random(seed).randrange(1 << 30))
        world.run([*before, *asked], Scheduled(world, auto_plan(world)))
        outcomes = [
            _outcome(request, arrival.kind, begins)
            for request, arrival in zip(asked, due, strict=True)
        ]
        whole = figures(outcomes, seconds, budget_ms)
        per_kind = by_kind(outcomes, kinds, seconds, budget_ms)
        runs.append(Run(whole, per_kind, rate, [], 0.0, [], 0.0))
    return middle(runs)


def is_predictable(kinds: Sequence[Kind], fleet: Sequence[Models]) -> bool:
    """Whether the simulation knows all of it: one model by itself, and no fields that matter."""
    gpus = [gpu for models in fleet for gpu in models.values()]
    is_simple = len(gpus) == len(fleet) and not any(gpu.in_ensemble for gpu in gpus)
    return is_simple and not any(each.fields for each in kinds)


def _simulated(gpu: Gpu) -> SimulatedGpu:
    return SimulatedGpu(
        gpu.base_ms / 1000.0,
        gpu.row_ms / 1000.0,
        gpu.instances,
        gpu.max_batch if gpu.batches else 0,
    )


def _request(at: float, kind: Kind, *, ends: bool) -> Request:
    request = Request(at, rows=kind.rows)
    if ends and kind.deadline_ms:
        request.deadline = at + kind.deadline_ms / 1000.0
    return request


def _outcome(request: Request, kind: int, begins: float) -> Outcome:
    due = request.at - begins
    what = GOOD if request.is_good else LATE
    ended = request.ended_at if request.ended_at >= 0.0 else request.deadline
    return Outcome(kind, due, due, ended - begins, what)
