"""A simulation of other clients at the same backends: what `scheduling.load_poll_interval` gains.

`python -m benchmarks.study.simulate_load` plays every scene with several rates of our requests,
with and without reports of the backends' load, and prints a table of our latencies in ms.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import fmean

from benchmarks.study.simulate import Gpu, Request, World, poisson, quantile
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.domain.load import LoadReport, ModelLoad

MODEL = b"gpu"
TWO = (Gpu(0.01), Gpu(0.02))
FOUR = (Gpu(0.01),) * 4
RATES = (1.0, 4.0, 10.0, 40.0)
WARM_S = 5.0


@dataclass(frozen=True)
class Scene:
    """What others do: the part of each backend's time that they use, by time in seconds."""

    name: str
    gpus: tuple[Gpu, ...]
    theirs: Callable[[int, float], float]


def _half_in_turns(number: int, at: float) -> float:
    """Half of the backends are full; every ten seconds it is the other half."""
    return 0.9 if (number % 2 == 0) == (at % 20.0 < 10.0) else 0.0


SCENES = (
    Scene("half of all, always", FOUR, lambda _number, _at: 0.5),
    Scene("two of four, always", FOUR, lambda number, _at: 0.9 if number < 2 else 0.0),
    Scene("two of four, in turns of 10 s", FOUR, _half_in_turns),
    Scene("one of two, 10 s of 20", TWO, lambda n, at: 0.9 if n == 0 and at % 20.0 < 10.0 else 0.0),
    Scene("half of one of two, 10 s of 20", TWO, lambda n, at: 0.5 * (n == 0 and at % 20 < 10)),
    Scene("nobody", FOUR, lambda _number, _at: 0.0),
)


class SharedBackends(Scheduled):
    """The scheduler, before backends that others use without it."""

    def __init__(self, world: World, poll_s: float) -> None:
        super().__init__(world, auto_plan(world))
        self._poll_s = poll_s
        for number in range(len(world.servers)):
            if poll_s:
                world.at(poll_s * number / len(world.servers), lambda at=number: self._ask(at))  # type: ignore[misc]

    def ended(self, request: Request, now: float) -> None:
        """An answer came; those of others are none of its business."""
        if request.state is not None:
            super().ended(request, now)

    def _ask(self, number: int) -> None:
        """Read what a Triton's metrics say."""
        server = self.world.servers[number]
        load = ModelLoad(
            pending=float(len(server.queue)),
            requests=float(server.executed),
            executions=float(server.executions),
            execution_s=server.busy_s,
        )
        report = LoadReport(
            at=self.world.now,
            models={MODEL: load},
            in_flight=self.scheduler.in_flight_by_model(server.backend),
        )
        self.scheduler.on_load_report(server.backend, report)
        self.world.at(self.world.now + self._poll_s, lambda: self._ask(number))


def play(scene: Scene, rate: float, poll_s: float, seed: int, seconds: float) -> list[float]:
    """Latencies of our requests in ms."""
    world = World(scene.gpus, seed)
    balancer = SharedBackends(world, poll_s)
    rng = Random(seed)
    for number, gpu in enumerate(scene.gpus):
        at = rng.expovariate(gpu.rate())
        while at < seconds:
            if rng.random() < scene.theirs(number, at):
                other = Request(at)
                world.at(at, lambda each=other, to=number: world.send(each, to))  # type: ignore[misc]
            at += rng.expovariate(gpu.rate())
    load = poisson(rate, seconds, seed)
    world.run(load, balancer, until=seconds + 5.0)
    return [1000.0 * each.latency_s for each in load if each.at > WARM_S and each.ended_at > 0.0]


def main() -> None:
    """Print a table of all scenes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=125.0)
    args = parser.parse_args()
    intervals = (0.0, 1.0, 2.0)
    print("| others | ours | never asked | every second | every 2 s |")
    print("|---|---:|---:|---:|---:|")
    for scene in SCENES:
        for rate in RATES:
            cells = []
            for poll_s in intervals:
                runs = [
                    play(scene, rate, poll_s, seed, args.seconds)
                    for seed in range(1, args.seeds + 1)
                ]
                figures = (
                    fmean(fmean(run) for run in runs),
                    fmean(quantile(run, 0.5) for run in runs),
                    fmean(quantile(run, 0.99) for run in runs),
                )
                cells.append(" / ".join(f"{each:.0f}" for each in figures))
            print(f"| {scene.name} | {rate:.0f}/s | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
