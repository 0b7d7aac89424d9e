"""An hour of everything, a little at a time: what leaks shows only after many faults.

One fault after the other, drawn at random, with quiet between them, so that about one request in a
hundred meets one. The resources of the balancer are read all the time.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import psutil

from benchmarks.faults import steps
from benchmarks.faults.between import NO_FAULT, Fault
from benchmarks.faults.contestants import Contestant
from benchmarks.faults.rules import failed, note
from benchmarks.faults.scenarios import Scenario
from benchmarks.faults.steps import Stage, Step
from benchmarks.load.bench import say

_QUIET_S = 10.0
_SAMPLE_S = 5.0
_WARM_UP = 0.25
"""This share of the samples is not looked at: pools and caches grow to what they need."""
_WINDOWS = 12
_MIB = 1 << 20


def scenario(minutes: float) -> Scenario:
    """The soak as a scenario of its own."""
    return Scenario(
        "soak",
        f"{minutes:g} minutes of all of it at 1 %",
        (_soak(minutes * 60.0), steps.rest(8.0)),
        (
            failed(),
            note("memory_trend", "growth of its memory but for steps", 4.0, unit="MiB"),
            note("memory", "growth of its memory", 32.0, unit="MiB"),
            note("files", "growth of its descriptors", 8.0),
            note("threads", "growth of its threads", 0.0),
            note("tasks", "growth of its tasks", 4.0),
        ),
        disturbed=True,
    )


_LINES = {
    "black hole": Fault(black_hole=True),
    "refuse": Fault(refuse=True),
    "stop reading": Fault(stop_reading=True),
    "late": Fault(latency_s=0.3),
    "cut requests": Fault(reset_after=300_000),
    "cut answers": Fault(half_close_after=400),
    "corrupt": Fault(corrupt_after=1),
    "rate": Fault(bytes_per_s=4_000_000),
}


def bursts(victim: int) -> dict[str, tuple[Step, ...]]:
    """One short script for each kind of fault."""
    return {
        "kill": (
            *(steps.kill(victim), steps.rest(5.0)),
            *(steps.restart(victim), steps.back(victim)),
        ),
        "terminate": (steps.terminate(victim), steps.restart(victim), steps.back(victim)),
        "freeze": (steps.freeze(victim), steps.rest(4.0), steps.thaw(victim)),
        "internal": (steps.tell(victim, "poison", "INTERNAL"), steps.rest(2.0), steps.heal(victim)),
        "unknown": (steps.tell(victim, "poison", "UNKNOWN"), steps.rest(2.0), steps.heal(victim)),
        "slow": (steps.tell(victim, "slow", "20"), steps.rest(5.0), steps.heal(victim)),
        "bad client": (steps.bad_requests(10.0), steps.rest(5.0), steps.bad_requests(0.0)),
        "resets": (steps.resets(0.01, 5.0),),
        "unload": (steps.unload(victim), steps.rest(2.0), steps.load(victim)),
        "reload": (steps.reloads(2, 0.5),),
        **{
            name: (steps.disturb(victim, fault), steps.rest(3.0), steps.disturb(victim, NO_FAULT))
            for name, fault in _LINES.items()
        },
    }


def _soak(seconds: float) -> Step:
    async def step(stage: Stage) -> None:
        samples: list[Sample] = []
        reading = asyncio.ensure_future(_read(stage, samples))
        end = time.monotonic() + seconds
        try:
            await asyncio.sleep(min(_QUIET_S, seconds / 4))
            while time.monotonic() < end:
                victim = stage.rng.randrange(len(stage.site.tritons))
                kinds = bursts(victim)
                name = stage.rng.choice(list(kinds))
                say(f"  {name}, {victim}; {_state(stage, samples)}")
                for each in kinds[name]:
                    await each(stage)
                await asyncio.sleep(min(_QUIET_S, max(0.0, end - time.monotonic())))
        finally:
            reading.cancel()
        stage.notes |= growth(samples)

    return step


def _state(stage: Stage, samples: Sequence[Sample]) -> str:
    """How it does, for who watches."""
    bad = [each for each in stage.load.ledger.asked.values() if each.error and each.is_counted]
    return f"{len(bad)} failed, {samples[-1] if samples else 'no sample yet'}"


@dataclass(frozen=True)
class Sample:
    """What a process held at a moment."""

    memory: float
    """MiB."""
    files: int
    """Without the connections of clients: they keep as many as they once needed at once."""
    threads: int
    tasks: int
    """Of its event loop."""


async def _read(stage: Stage, samples: list[Sample]) -> None:
    while True:
        await asyncio.sleep(_SAMPLE_S)
        try:
            samples.append(await asyncio.to_thread(_sample, stage.contestant))
        except (psutil.Error, OSError) as error:
            say(f"  no sample: {error}")


def _sample(contestant: Contestant) -> Sample:
    """
    Raises:
        psutil.Error, OSError: it does not run, or does not answer.
    """
    process, tasks = contestant.process(), contestant.gauge("triton_lb_tasks")
    clients = contestant.gauge("triton_lb_connections")
    with process.oneshot():
        memory = process.memory_info().rss / _MIB
        return Sample(memory, process.num_fds() - clients, process.num_threads(), tasks)


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """How much the last quarter of the samples is above the first one after the warm-up."""
    rest = samples[int(len(samples) * _WARM_UP) :]
    part = max(1, len(rest) // 4)
    if len(rest) < 2 * part:
        return {}
    found = {
        name: statistics.median(getattr(each, name) for each in rest[-part:])
        - statistics.median(getattr(each, name) for each in rest[:part])
        for name in ("memory", "files", "threads", "tasks")
    }
    return found | {"memory_trend": _trend([each.memory for each in rest])}


def _trend(values: Sequence[float]) -> float:
    """What values grow by from window to window, as at the median, over all windows.

    A leak grows all the time. Freed memory is kept for the next time, so that a rare coincidence of
    large requests shows as one step, after which nothing grows.
    """
    size = max(1, len(values) // _WINDOWS)
    medians = [
        statistics.median(values[at : at + size]) for at in range(0, len(values) - size + 1, size)
    ]
    steps_up = [after - before for before, after in pairwise(medians)]
    return statistics.median(steps_up) * len(steps_up) if steps_up else 0.0
