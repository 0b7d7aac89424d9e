"""Plays a part: starts Tritons and contestants, then runs, each contestant in turn."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from benchmarks.load.bench import say
from benchmarks.load.processes import REPOSITORY, BenchError, Children, Cores, run_pinned
from benchmarks.study.contestants import DIRECT, Ground, Running, contestant
from benchmarks.study.figures import Run, by_kind, failures, figures, lateness_ms
from benchmarks.study.fleet import Counted, Fleet
from benchmarks.study.generator import HTTP, Job, Outcome
from benchmarks.study.gpus import Gpu, Models
from benchmarks.study.journal import Journal, Key, Times
from benchmarks.study.parts import Part, Step
from benchmarks.study.predicted import WARM_UP_S, WARM_UP_SHARE
from benchmarks.study.trace import Kind, mean_rows
from benchmarks.study.wires import GOOD

_CALIBRATION_S, _CALIBRATION_CLIENTS, _CALIBRATION_TRIES = 0.8, 2, 5
_CALIBRATION_EXECUTIONS, _CALIBRATION_TAKEN = 10, 2
"""The better of two: whatever else runs on the machine makes Tritons look slower."""
_START_S = 20.0
"""Of the load generator, beyond its load."""
_SETTLE_S, _LOOK_S = 20.0, 0.25
_GENERATOR_STARTS_S = 0.25
_DISTURBED_MS = 15.0
"""The generator has a core that is nearly idle: only something else on the machine delays it so."""


@dataclass
class Played:
    """What there is about a part: how its Tritons fared alone, and who did not take part."""

    part: Part
    measured: list[Models] = field(default_factory=list)
    """The Tritons with the times that they took when they were asked directly."""
    errors: dict[str, str] = field(default_factory=dict)

    def rate(self, step: Step) -> float:
        """Requests a second that a step offers; 0 in a closed loop."""
        if step.share:
            return step.share * capacity(self.measured, step.kinds)
        return step.rate


def capacity(fleet: Sequence[Models], kinds: Sequence[Kind]) -> float:
    """Requests of this mix a second that all Tritons carry together."""
    whole = sum(kind.share for kind in kinds)
    per_triton = []
    for models in fleet:
        if len(models) == 1:
            (gpu,) = models.values()
            per_triton.append(gpu.rate(mean_rows(kinds)))
        else:  # models have instances of their own: the one that is full first decides
            most = [models[each.model].rate(each.rows) * whole / each.share for each in kinds]
            per_triton.append(min(most))
    return sum(per_triton)


def play(
    part: Part,
    journal: Journal,
    *,
    runs: int,
    commit: str,
    scale: float = 1.0,
    until: float = inf,
) -> Played:
    """Measure what the journal does not have yet.

    Args:
        part: what to play.
        journal: gets every measurement at once.
        runs: of each step and contestant, interleaved.
        commit: what is measured.
        scale: of the seconds of each load.
        until: when no further run begins but the first, in monotonic seconds.

    Raises:
        BenchError: there are no Tritons, or the load generator failed.
    """
    played = known(part, journal, commit)
    left = [
        (number, step, name)
        for number in range(runs)
        for step in part.steps
        for name in _turned(part.contestants, number)
        if Key(part.name, step.name, name, number, fingerprint(part, step, commit, scale))
        not in journal
    ]
    if not left and played.measured:
        return played
    core = Cores.choose().load
    with tempfile.TemporaryDirectory(prefix="triton-lb-study-") as directory:
        fleet = Fleet.start(Path(directory), part.fleet)
        try:
            if not played.measured:
                played.measured = calibrate(fleet, core, scale)
                journal.add_times(part.name, commit, _times(played.measured))
            _tell_capacity(played)
            with Children(Path(directory)) as own:
                started = _start({name for *_, name in left}, own, Path(directory), fleet, played)
                for each in started.values():
                    _warm_up(each, played, core, scale)
                begun = 0
                for number, step, name in left:
                    if number > begun and time.monotonic() > until:
                        say(f"  the time of {part.name} is over after {number} runs")
                        break
                    begun = number
                    if name in started:
                        taken = _Taken(started[name], step, number, scale)
                        key = Key(
                            part.name,
                            step.name,
                            name,
                            number,
                            fingerprint(part, step, commit, scale),
                        )
                        journal.add(key, undisturbed(taken, fleet, played, core))
        finally:
            fleet.close()
    return played


def known(part: Part, journal: Journal, commit: str) -> Played:
    """A part as far as the journal knows it; without times where it does not."""
    times = journal.times(part.name, commit)
    if times is None:
        return Played(part)
    measured = [
        {name: replace(gpu, base_ms=took[name]) for name, gpu in models.items()}
        for models, took in zip(part.fleet, times, strict=True)
    ]
    return Played(part, list(measured))


def _times(fleet: Sequence[Models]) -> list[Times]:
    return [{name: gpu.base_ms for name, gpu in models.items()} for models in fleet]


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Each run begins with another one."""
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]


def seed_of(number: int) -> int:
    """Of the arrivals of a run: the same for everybody."""
    return 1000 + number


def fingerprint(part: Part, step: Step, commit: str, scale: float) -> str:
    """Of all that makes measurements comparable."""
    return f"{commit} x{scale:g} {part.protocol} {step} {part.fleet}"


def _start(
    names: AbstractSet[str], own: Children, directory: Path, fleet: Fleet, played: Played
) -> dict[str, Running]:
    ground = Ground(directory, fleet.addresses, fleet.models, Cores.choose().proxy)
    started = {}
    for name in played.part.contestants:
        if name not in names:
            continue
        try:
            started[name] = contestant(name).start(own, ground)
        except BenchError as error:
            played.errors[name] = str(error)
            say(f"  {name} does not take part: {error}")
    return started


def _warm_up(running: Running, played: Played, core: int, scale: float) -> None:
    """Half of what they can carry: connections are made, and times are learnt."""
    step = replace(played.part.steps[0], rate=0.0, share=WARM_UP_SHARE, clients=0)
    step = replace(step, kinds=tuple(replace(each, deadline_ms=0.0) for each in step.kinds))
    job = _job(running, step, played, seed=99, seconds=scale * WARM_UP_S)
    generate(job, core)


def _tell_capacity(played: Played) -> None:
    step = played.part.steps[0]
    nominal = capacity(played.part.fleet, step.kinds)
    found = capacity(played.measured, step.kinds)
    say(f"{played.part.name}: {played.part.title}; {found:.0f}/s, by their times {nominal:.0f}/s")


def calibrate(fleet: Fleet, core: int, scale: float = 1.0) -> list[Models]:
    """Ask each Triton alone, so that it never idles: what an execution takes beyond its time."""
    found: dict[tuple[tuple[str, Gpu], ...], Models] = {}
    for address, models in zip(fleet.addresses, fleet.models, strict=True):
        alike = tuple(models.items())
        if alike in found:
            continue
        found[alike] = {
            name: replace(
                gpu,
                base_ms=gpu.base_ms
                + _overhead_ms(address.http, name, gpu, core, scale * _CALIBRATION_S),
            )
            for name, gpu in models.items()
        }
    return [found[tuple(models.items())] for models in fleet.models]


def _overhead_ms(port: int, model: str, gpu: Gpu, core: int, seconds: float) -> float:
    clients = _CALIBRATION_CLIENTS * gpu.slots()
    kinds = (Kind(model=model),)
    seconds = max(seconds, _CALIBRATION_EXECUTIONS * gpu.slots() / gpu.rate())
    job = Job(HTTP, port, kinds, seconds=seconds, seed=1, clients=clients)
    found: list[float] = []
    for _ in range(_CALIBRATION_TRIES):  # the first request of all may take a second
        outcomes = generate(job, core)
        ends = sorted(each.ended for each in outcomes if each.what == GOOD)
        if len(ends) >= 2 * gpu.slots() + 2:
            # The first batch may be small, and executions end at once: count from the second end.
            first = ends[gpu.slots()]
            rate = sum(end > first for end in ends) / (ends[-1] - first)
            found.append(1000.0 * gpu.slots() * (1.0 / rate - 1.0 / gpu.rate()))
        if len(found) == _CALIBRATION_TAKEN:
            return max(0.0, min(found))
    raise BenchError("a Triton that was asked directly did not answer often enough")


@dataclass(frozen=True)
class _Taken:
    """One measurement to take."""

    running: Running
    step: Step
    number: int
    scale: float


def undisturbed(taken: _Taken, fleet: Fleet, played: Played, core: int) -> Run:
    """Measure, and once more where the machine kept the load generator from sending in time."""
    run = measure(taken, fleet, played, core)
    if run.late_ms <= _DISTURBED_MS:
        return run
    say(f"  requests were sent {run.late_ms:.0f} ms late (p99): once more")
    again = measure(taken, fleet, played, core)
    return min(run, again, key=lambda each: each.late_ms)


def measure(taken: _Taken, fleet: Fleet, played: Played, core: int) -> Run:
    """Play one step to one contestant.

    Raises:
        BenchError: the load generator failed, or a Triton does not answer.
    """
    step, part = taken.step, played.part
    seconds = step.seconds * taken.scale
    job = _job(taken.running, step, played, seed=seed_of(taken.number), seconds=seconds)
    before = fleet.counted()
    with _slowness(step, fleet, seconds):
        outcomes = generate(job, core)
    taken_s = max((each.ended for each in outcomes), default=seconds)
    if any(each.what != GOOD for each in outcomes):
        taken_s += _settle(fleet)
    after = fleet.counted()
    did = [now - then for now, then in zip(after, before, strict=True)]
    all_figures = figures(outcomes, seconds, part.budget_ms)
    run = Run(
        figures=all_figures,
        kinds=by_kind(outcomes, step.kinds, seconds, part.budget_ms),
        offered=job.rate or all_figures.rate,
        utilisation=_utilisation(did, fleet.models, taken_s),
        batch=_batch(did),
        shares=_shares(did),
        late_ms=lateness_ms(outcomes),
        outcomes=failures(outcomes),
    )
    say(
        f"  {step.name} run {taken.number + 1} {taken.running.name:22} p50 {all_figures.p50:6.1f}"
        f" p99 {all_figures.p99:7.1f} ms, {all_figures.rate:5.0f}/s,"
        f" in budget {all_figures.goodput:5.0f}/s, late {run.late_ms:.1f} ms"
        + (f", {run.outcomes}" if run.outcomes else "")
    )
    return run


def _job(running: Running, step: Step, played: Played, *, seed: int, seconds: float) -> Job:
    part = played.part
    rate = played.rate(step)
    if running.name == DIRECT:
        rate /= len(part.fleet)
    port = running.http if part.protocol == HTTP else running.grpc
    return Job(part.protocol, port, step.kinds, seconds, seed, rate=rate, clients=step.clients)


def generate(job: Job, core: int) -> list[Outcome]:
    """Run the load generator in a process of its own.

    Raises:
        BenchError: it failed, or did not end.
    """
    argv = [sys.executable, "-m", "benchmarks.study.generator", job.as_json()]
    limit = job.seconds + job.drain_s + _START_S
    said = json.loads(run_pinned(argv, core=core, timeout_s=limit, cwd=REPOSITORY))
    return [Outcome(*each) for each in said]


class _slowness:  # noqa: N801 - reads as the statement it is
    """While the block runs, one Triton is slow for a part of the time."""

    def __init__(self, step: Step, fleet: Fleet, seconds: float) -> None:
        self._timers: list[threading.Timer] = []
        self._end: Callable[[], None] = lambda: None
        if (slow := step.slowness) is not None:
            self._end = lambda: fleet.slow_down(slow.triton, 1.0)
            for share, factor in ((slow.begins, slow.factor), (slow.ends, 1.0)):
                at = _GENERATOR_STARTS_S + share * seconds
                arguments = (slow.triton, factor)
                self._timers.append(threading.Timer(at, fleet.slow_down, arguments))

    def __enter__(self) -> None:
        for timer in self._timers:
            timer.start()

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._end()


def _settle(fleet: Fleet) -> float:
    """Wait until the Tritons have done what nobody waits for any more; gives the seconds."""
    begun = time.monotonic()
    before = fleet.counted()
    quiet = begun
    while time.monotonic() - begun < _SETTLE_S:
        time.sleep(_LOOK_S)
        now = fleet.counted()
        if now == before:
            break
        before, quiet = now, time.monotonic()
    return quiet - begun


def _utilisation(did: Sequence[Counted], fleet: Sequence[Models], seconds: float) -> list[float]:
    instances = [sum(gpu.instances for gpu in models.values()) for models in fleet]
    return [each.busy_s / seconds / count for each, count in zip(did, instances, strict=True)]


def _batch(did: Sequence[Counted]) -> float:
    executions = sum(each.executions for each in did)
    return sum(each.inferences for each in did) / executions if executions else 0.0


def _shares(did: Sequence[Counted]) -> list[float]:
    whole = sum(each.inferences for each in did)
    return [each.inferences / whole if whole else 0.0 for each in did]
