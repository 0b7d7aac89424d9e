"""Step and sine load on standby backends that commands start: Tritons as processes.

    python -m benchmarks.standby_live [--seconds N] [--for S] [--shapes step sine] [--simulated]

Each Triton runs four requests of 200 ms at a time, so it can do 20 a second; the budget is 400 ms.
Two Tritons always serve and two stand by, or all four always serve. The load comes whether
requests are answered or not. It is 58 a second, which take all four, for a quarter of the time and
otherwise 20 (`step`), or goes up and down between 5 and 55 (`sine`). Printed is what part of the
requests took longer than the budget, what part of the time the standby Tritons were started or
active, and how often they were activated. Tritons are real ones with a python model that sleeps,
unless `--simulated` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import aiohttp

from lb.domain.backend import BackendState
from lb.domain.standby import StandbyPhase
from lb.settings.standby import StandbySettings
from tests.fakes.balancer import Balancer, running_balancer
from tests.fakes.slices import Slices
from tests.triton.slices import MODEL, RealSlices, request

BUDGET_S: Final = 0.4
TRITONS, ALWAYS = 4, 2
SPEED: Final = "0.01"
"""Of a simulated Triton: 2 ms of `simple` are 200 ms."""
_EXECUTION_MS: Final = 200
COOLDOWN_S: Final = 15.0
_SAMPLE_S: Final = 0.25
_TIMEOUT_S: Final = 60.0
_ONES: Final = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
_SIMPLE: Final = {"inputs": [{"name": "INPUT0", **_ONES}, {"name": "INPUT1", **_ONES}]}


def step(part: float) -> float:
    """Requests a second, by the part of the run that has passed."""
    return 58.0 if 0.25 <= part < 0.5 else 20.0


def sine(part: float) -> float:
    """Requests a second, by the part of the run that has passed: two waves."""
    return 30.0 - 25.0 * math.cos(4 * math.pi * part)


SHAPES: Final[dict[str, Callable[[float], float]]] = {"step": step, "sine": sine}


@dataclass(slots=True)
class Outcome:
    """What a run was like."""

    statuses: Counter[int] = field(default_factory=Counter)
    """0: no answer."""
    late: int = 0
    on: list[float] = field(default_factory=list)
    """By sample: part of the standby Tritons that were started or active."""
    activations: int = 0


class Pool(NamedTuple):
    """Which Tritons are played on."""

    make: Callable[[Path], Slices]
    options: tuple[str, ...]
    model: str
    body: Mapping[str, object]


SIMULATED: Final = Pool(Slices, ("--speed", SPEED), "simple", _SIMPLE)
REAL: Final = Pool(RealSlices, (), MODEL, request(_EXECUTION_MS))


def arrivals(rate: Callable[[float], float], seconds: float) -> Iterator[float]:
    """When requests come, in seconds from the start."""
    at = 0.0
    while at < seconds:
        yield at
        at += 1.0 / rate(at / seconds)


@contextmanager
def _slices(make: Callable[[Path], Slices]) -> Iterator[Slices]:
    with tempfile.TemporaryDirectory() as folder:
        slices = make(Path(folder))
        try:
            yield slices
        finally:
            slices.kill_all()


async def play(
    rate: Callable[[float], float],
    seconds: float,
    always: int = ALWAYS,
    *,
    for_s: float = StandbySettings().for_,
    pool: Pool = REAL,
) -> Outcome:
    """Play a load.

    Args:
        rate: requests a second, by the part of the run that has passed.
        seconds: how long.
        always: Tritons that always serve.
        for_s: `standby.for`.
        pool: the Tritons.
    """
    outcome = Outcome()
    with _slices(pool.make) as slices:
        backends = [slices.backend(f"gpu-{n}", n + 1, *pool.options) for n in range(TRITONS)]
        for each in backends[:always]:
            command = each.pop("activate")["exec"]
            await (await asyncio.create_subprocess_exec(*command)).wait()
            del each["standby"], each["deactivate"]
        tree = {
            "listen": {"http": "127.0.0.1:0"},
            "health": {"interval": "500ms"},
            "slow_start": {"window": "0s"},
            "standby": {
                "latency": f"{BUDGET_S}s",
                "for": f"{for_s}s",
                "cooldown": f"{COOLDOWN_S}s",
                "hold": "60s",
            },
            "backends": backends,
        }
        async with (
            running_balancer(tree) as balancer,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as client,
        ):
            await _started(balancer, always)
            url = f"http://{balancer.address('http')}/v2/models/{pool.model}/infer"
            sampling = asyncio.ensure_future(_sample(balancer, outcome))
            loop = asyncio.get_running_loop()
            began = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for at in arrivals(rate, seconds):
                    await asyncio.sleep(began + at - loop.time())
                    tasks.create_task(_ask(client, url, pool.body, outcome))
            sampling.cancel()
            counts = balancer.product.control.standby.counts().activations
            outcome.activations = sum(counts.values())
    return outcome


async def _started(balancer: Balancer, count: int) -> None:
    """Wait until the Tritons that always serve do so."""
    records = balancer.product.control.directory.records[:count]
    async with asyncio.timeout(_TIMEOUT_S):
        while not all(record.state is BackendState.UP for record in records):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _sample(balancer: Balancer, outcome: Outcome) -> None:
    while True:
        records = balancer.product.control.directory.records
        statuses = [each.standby for each in records if each.standby is not None]
        used = sum(each.phase is not StandbyPhase.STANDBY for each in statuses)
        outcome.on.append(used / max(1, len(statuses)))
        await asyncio.sleep(_SAMPLE_S)


async def _ask(
    client: aiohttp.ClientSession, url: str, body: Mapping[str, object], outcome: Outcome
) -> None:
    began = monotonic()
    status = 0
    try:
        async with client.post(url, json=body) as answer:
            status = answer.status
            await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        pass
    outcome.statuses[status] += 1
    outcome.late += monotonic() - began > BUDGET_S


def main() -> None:
    """Play loads and print what they were like."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--for", dest="for_s", type=float, default=StandbySettings().for_)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--simulated", action="store_true")
    given = parser.parse_args()
    tritons = SIMULATED if given.simulated else REAL
    print("| load | Tritons | requests | failed | beyond the budget | in use | activations |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in given.shapes:
        for always in (ALWAYS, TRITONS):
            found = asyncio.run(
                play(SHAPES[name], given.seconds, always, for_s=given.for_s, pool=tritons)
            )
            count = found.statuses.total()
            on = sum(found.on) / max(1, len(found.on))
            pool = "two, two stand by" if always == ALWAYS else "four"
            print(
                f"| {name} | {pool} | {count} | {count - found.statuses[200]} "
                f"| {100 * found.late / count:.1f} % | {100 * on:.0f} % | {found.activations} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
