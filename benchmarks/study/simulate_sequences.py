"""A simulation of sequences: what each way of placing new ones does to steps and other requests.

`python -m benchmarks.study.simulate_sequences` plays every scene with every variant and the same
seeds, and prints a table. Sequences begin at random times and stay on the backend of their START.
Requests of a stateless model share the backends with them; the scheduler places those.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, geometric_mean

from benchmarks.study.simulate import Gpu, Request, World, quantile
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.balancing.policies import make_policy
from lb.balancing.sequences import Pin, SequenceTable
from lb.domain.backend import Backend
from lb.domain.pool import Placement
from lb.domain.sequence import SequenceKey, SequenceStep

UNEQUAL = (Gpu(0.005), Gpu(0.01), Gpu(0.04))
EQUAL = (Gpu(0.01), Gpu(0.01), Gpu(0.01))
WARM_S = 20.0
"""Requests that arrive earlier are not counted: nothing is learnt yet."""
_OVERLOAD_S = 0.25
"""A backend with more seconds of work in its queue is overloaded."""
_SAMPLE_S = 0.1
_IDLE_S = 10.0


@dataclass(frozen=True)
class SequenceKind:
    """How sequences of one kind behave."""

    steps: tuple[int, ...]
    """Steps of a sequence; one of these at random."""
    pause_s: float
    """From one step to the next; from its answer, unless `is_fixed`."""
    is_fixed: bool = False
    """Steps are sent at a fixed rate, whatever the answers do, as audio is."""
    burst: int = 0
    """Steps in a burst; 0: there are none."""
    quiet_s: float = 0.0
    """Mean pause between bursts."""
    model: bytes = b"asr"
    share: float = 1.0
    """Part of the steps that are of this kind."""

    @property
    def mean_steps(self) -> float:
        """Steps of a sequence on average."""
        return fmean(self.steps)


STREAMS = SequenceKind(steps=(100, 300, 500), pause_s=0.1, is_fixed=True)
CHAT = SequenceKind(steps=(10, 20, 30), pause_s=1.0)
BURSTS = SequenceKind(steps=(200, 300, 400), pause_s=0.05, burst=20, quiet_s=5.0)
SHORT_AND_LONG = SequenceKind(steps=(2,) * 9 + (500,), pause_s=0.1, is_fixed=True)
SLOW_AND_FAST = (
    SequenceKind(steps=(60,), pause_s=1.0, is_fixed=True, share=0.3),
    SequenceKind(steps=(600,), pause_s=0.05, is_fixed=True, share=0.7),
)
TWO_MODELS = (
    replace(STREAMS, share=0.5),
    replace(CHAT, share=0.5, model=b"chat"),
)


@dataclass(frozen=True)
class Scene:
    """A load on some backends."""

    name: str
    gpus: tuple[Gpu, ...]
    kinds: tuple[SequenceKind, ...]
    load: float
    """Part of what the backends can do."""
    sequences: float
    """Part of the requests that are steps."""
    at_once: int = 0
    """Sequences of the first kind that begin together in the middle."""
    is_apart: bool = False
    """Steps have instances of their own, which do not slow down other requests."""
    slow: tuple[float, float, float] | None = None
    """From when to when the first backend takes how many times as long."""


SCENES = (
    Scene("streams, 60 %", UNEQUAL, (STREAMS,), 0.6, 1.0),
    Scene("streams, 80 %", UNEQUAL, (STREAMS,), 0.8, 1.0),
    Scene("streams and stateless, 60 %", UNEQUAL, (STREAMS,), 0.6, 0.5),
    Scene("streams and stateless, 75 %", UNEQUAL, (STREAMS,), 0.75, 0.5),
    Scene("streams and stateless, 90 %", UNEQUAL, (STREAMS,), 0.9, 0.5),
    Scene("few streams, 75 %", UNEQUAL, (STREAMS,), 0.75, 0.2),
    Scene("chat, 80 %", UNEQUAL, (CHAT,), 0.8, 1.0),
    Scene("chat and stateless, 75 %", UNEQUAL, (CHAT,), 0.75, 0.5),
    Scene("bursts and stateless, 75 %", UNEQUAL, (BURSTS,), 0.75, 0.5),
    Scene("short and long, 75 %", UNEQUAL, (SHORT_AND_LONG,), 0.75, 0.5),
    Scene("slow and fast, 75 %", UNEQUAL, SLOW_AND_FAST, 0.75, 0.5),
    Scene("two models, 75 %", UNEQUAL, TWO_MODELS, 0.75, 0.5),
    Scene("50 at once, 40 %", UNEQUAL, (CHAT,), 0.4, 0.5, at_once=50),
    Scene("streams apart, 60 %", UNEQUAL, (STREAMS,), 0.6, 0.5, is_apart=True),
    Scene("first one slow, 60 %", UNEQUAL, (STREAMS,), 0.6, 0.5, slow=(50.0, 80.0, 4.0)),
    Scene("equal, streams, 80 %", EQUAL, (STREAMS,), 0.8, 1.0),
    Scene("equal, streams and stateless, 75 %", EQUAL, (STREAMS,), 0.75, 0.5),
    Scene("equal, slow and fast, 75 %", EQUAL, SLOW_AND_FAST, 0.75, 0.5),
    Scene("equal, bursts, 75 %", EQUAL, (BURSTS,), 0.75, 0.5),
)


@dataclass
class Step:
    """What the balancer notes about a step."""

    step: SequenceStep
    pin: Pin
    starts: int
    sent_at: float
    kind: SequenceKind
    left: int
    """Steps that follow."""


class Sequences(Scheduled):
    """Places steps by a table of sequences, and everything else by the scheduler."""

    def __init__(self, world: World, scene: Scene, seed: int, table: SequenceTable) -> None:
        self.table = table
        self.steps: list[Request] = []
        self._scene = scene
        self._rng = Random(seed)
        self._ids = 0
        count = len(scene.gpus)
        # Steps have servers of their own where they run apart, with the same backends.
        self._offset = count if scene.is_apart else 0
        for number in range(count, len(world.servers)):
            world.servers[number].backend = world.servers[number - count].backend
        world_backends = world.backends[:count]
        super().__init__(world, auto_plan(world))
        plan, _ = self.placements[""]
        limits = {each: plan.limits[each] for each in world_backends}
        self.placements[""] = (replace(plan, limits=limits), world_backends)
        self.numbers = {backend: number for number, backend in enumerate(world_backends)}
        policy = make_policy("least_loaded", Random(seed))
        self._placement = Placement(world_backends, policy.build(world_backends), policy)

    def begin(self, kind: SequenceKind) -> None:
        """A sequence begins."""
        self._ids += 1
        steps = self._rng.choice(kind.steps)
        self._send(SequenceKey(kind.model, self._ids), kind, steps, steps - 1, self.world.now)

    def _send(
        self, key: SequenceKey, kind: SequenceKind, steps: int, left: int, began_at: float
    ) -> None:
        now = self.world.now
        step = SequenceStep(key, left == steps - 1, not left)
        backend, pin = self.table.place(step, self._placement, _IDLE_S, now)
        assert backend is not None
        assert pin is not None
        request = Request(now, kind="step")
        request.state = Step(step, pin, pin.starts, now, kind, left)
        request.client = steps  # nobody else uses it here
        self.steps.append(request)
        self.world.send(request, self.numbers[backend] + self._offset)
        if kind.is_fixed and left:
            at = began_at + (steps - left) * kind.pause_s
            self.world.at(at, lambda: self._send(key, kind, steps, left - 1, began_at))

    def ended(self, request: Request, now: float) -> None:
        """A step, or a request of the scheduler's, was answered."""
        if not isinstance(request.state, Step):
            super().ended(request, now)
            return
        noted = request.state
        self.table.ended(noted.step, noted.pin, noted.starts, now, began_at=noted.sent_at)
        kind = noted.kind
        if kind.is_fixed or not noted.left:
            return
        steps, left, rng = request.client, noted.left - 1, self._rng
        pause_s = rng.expovariate(1.0 / kind.pause_s)
        if kind.burst and (steps - noted.left) % kind.burst == 0:
            pause_s = rng.expovariate(1.0 / kind.quiet_s)
        key = noted.step.key
        self.world.at(now + pause_s, lambda: self._send(key, kind, steps, left, 0.0))


@dataclass(frozen=True)
class Figures:
    """What came of one run; milliseconds, and the part of the time."""

    step_p50: float
    step_p99: float
    step_mean: float
    other_p50: float
    other_p99: float
    other_mean: float
    overload: float


def play(scene: Scene, variant: str, seed: int, seconds: float) -> Figures:
    """Play one scene once."""
    slow = (scene.slow,) if scene.slow else ()
    gpus = (replace(scene.gpus[0], slow=slow), *scene.gpus[1:])
    world = World(gpus * (2 if scene.is_apart else 1), seed)
    balancer = Sequences(world, scene, seed, VARIANTS[variant](limit=100_000))
    rng = Random(seed)
    capacity = sum(gpu.rate() for gpu in scene.gpus)
    other: list[Request] = []
    rate = scene.load * capacity * (1.0 - scene.sequences)
    at = rng.expovariate(rate) if rate else seconds
    while at < seconds:
        other.append(Request(at))
        at += rng.expovariate(rate)
    for kind in scene.kinds:
        rate = scene.load * capacity * scene.sequences * kind.share / kind.mean_steps
        at = rng.expovariate(rate)
        while at < seconds:
            world.at(at, lambda kind=kind: balancer.begin(kind))  # type: ignore[misc]
            at += rng.expovariate(rate)
    for _ in range(scene.at_once):
        world.at(seconds / 2, lambda: balancer.begin(scene.kinds[0]))
    for second in range(int(seconds)):
        world.at(second + 0.5, lambda: balancer.table.sweep(world.now, 5000))
    overloaded: list[bool] = []
    usual_s = {server.number: server.gpu.base_s for server in world.servers}

    def sample() -> None:
        work = [len(server.queue) * usual_s[server.number] for server in world.servers]
        overloaded.append(max(work) > _OVERLOAD_S)

    for tick in range(int((seconds - WARM_S) / _SAMPLE_S)):
        world.at(WARM_S + tick * _SAMPLE_S, sample)
    world.run(iter(other), balancer, until=seconds)
    steps = list(_latencies(balancer.steps, seconds))
    others = list(_latencies(other, seconds))
    return Figures(
        quantile(steps, 0.5), quantile(steps, 0.99), fmean(steps),
        quantile(others, 0.5), quantile(others, 0.99), fmean(others) if others else float("nan"),
        100.0 * fmean(overloaded),
    )  # fmt: skip


def _latencies(requests: Sequence[Request], until: float) -> Iterator[float]:
    """Milliseconds of each; one without an answer has waited until the end."""
    for each in requests:
        if each.at >= WARM_S:
            yield 1000.0 * ((each.ended_at if each.ended_at >= 0 else until) - each.at)


class FewestOpen(SequenceTable):
    """Places a new sequence on the backend with the fewest open ones, whatever its speed."""

    def _choose(self, step: SequenceStep, candidates: list[Backend], slots: int) -> Backend | None:
        del step, slots
        return min(candidates, key=lambda each: (each.open_sequences, each.last_sequence))


VARIANTS: dict[str, type[SequenceTable]] = {
    "triton-lb": SequenceTable,
    "fewest open": FewestOpen,
}
_FIELDS = tuple(Figures.__dataclass_fields__)


def main() -> None:
    """Print a table of all scenes and variants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--scenes", nargs="*", type=int, default=range(len(SCENES)))
    args = parser.parse_args()
    cells = [(SCENES[number], variant) for number in args.scenes for variant in args.variants]
    runs = [(*cell, seed) for cell in cells for seed in range(1, args.seeds + 1)]
    with ProcessPoolExecutor(args.processes) as pool:
        futures = [pool.submit(play, *run, args.seconds) for run in runs]
        found = iter([future.result() for future in futures])
    print("| scene | variant | " + " | ".join(_FIELDS) + " |")
    print("|---|---|" + "---|" * len(_FIELDS))
    means: dict[str, list[list[float]]] = {variant: [] for variant in args.variants}
    for scene, variant in cells:
        runs_of = [next(found) for _ in range(args.seeds)]
        row = [fmean(getattr(each, name) for each in runs_of) for name in _FIELDS]
        means[variant].append(row)
        print(f"| {scene.name} | {variant} | " + " | ".join(f"{each:.1f}" for each in row) + " |")
    first = means[args.variants[0]]
    for variant, rows in means.items():
        ratios = []
        for number in range(len(_FIELDS) - 1):
            some = [
                row[number] / base[number]
                for row, base in zip(rows, first, strict=True)
                if row[number] == row[number]
            ]
            ratios.append(geometric_mean(some) if some else float("nan"))
        overload = fmean(row[-1] for row in rows)
        print(
            f"| all, ratio | {variant} | "
            + " | ".join(f"{each:.3f}" for each in ratios)
            + f" | {overload:.1f} |"
        )


if __name__ == "__main__":
    main()
