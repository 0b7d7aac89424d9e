"""Plays scenarios: each with every contestant in turn, before the same Tritons."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from benchmarks.faults.contestants import MAKERS, Contestant
from benchmarks.faults.ledger import Joined, join, quantile
from benchmarks.faults.load import Load, Mix
from benchmarks.faults.rules import Judged, judge
from benchmarks.faults.scenarios import Scenario
from benchmarks.faults.site import Site
from benchmarks.faults.steps import Stage
from benchmarks.load.bench import say
from benchmarks.load.processes import BenchError

_WARM_UP_S = 2.0
_LOST = (BenchError, OSError, RuntimeError, TimeoutError)
"""What a step or a contestant ends with when it does not get on."""


@dataclass
class Played:
    """A scenario with the evidence of everybody, and what went wrong with the play itself."""

    scenario: Scenario
    evidence: dict[str, Joined] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def judged(self) -> list[Judged]:
        """The rules, applied."""
        return judge(self.scenario.rules, self.evidence)


def play(
    scenarios: Sequence[Scenario], contestants: Sequence[str], mix: Mix, *, seed: int
) -> Iterator[Played]:
    """Play all, one after the other.

    Raises:
        BenchError: there are no Tritons.
    """
    with tempfile.TemporaryDirectory(prefix="triton-lb-faults-") as name:
        directory = Path(name)
        site = Site.start(directory)
        try:
            asyncio.run(_warm_up(site, mix, seed))
            for scenario in scenarios:
                played = Played(scenario)
                for each in scenario.only or contestants:
                    if each in contestants:
                        _play_one(played, each, site, directory, mix, seed)
                yield played
        finally:
            site.close()


async def _warm_up(site: Site, mix: Mix, seed: int) -> None:
    """Ask a Triton directly, so that the first scenario meets nothing that happens once."""
    for triton in site.tritons:
        async with Load(triton.target, replace(mix, rate=mix.rate / 3), seed=seed).running():
            await asyncio.sleep(_WARM_UP_S)


def _play_one(played: Played, name: str, site: Site, directory: Path, mix: Mix, seed: int) -> None:
    folder = directory / f"{played.scenario.name}-{name}"
    folder.mkdir()
    try:
        joined = asyncio.run(perform(played.scenario, MAKERS[name](), site, folder, mix, seed))
    except _LOST as error:
        played.errors[name] = f"{type(error).__name__}: {error}"
        say(f"  {played.scenario.name}, {name}: {played.errors[name]}")
        return
    played.evidence[name] = joined
    say(f"  {played.scenario.name}, {name}: {summary(joined)}")


async def perform(
    scenario: Scenario,
    contestant: Contestant,
    site: Site,
    folder: Path,
    mix: Mix,
    seed: int,
) -> Joined:
    """Play one scenario with one contestant.

    Raises:
        BenchError: the contestant does not start.
        TimeoutError: a step waited in vain.
    """
    if not contestant.keeps_sequences:
        mix = replace(mix, steps=0.0)
    if scenario.rogue:
        mix = replace(mix, streams=0.0)
    await site.make_well()
    site.ledgers.news()
    async with AsyncExitStack() as stack:
        if scenario.disturbed:
            await stack.enter_async_context(site.disturbed(seed))
        if scenario.rogue:
            await stack.enter_async_context(site.joined_by_rogue(seed))
        contestant.sections = scenario.sections
        stack.callback(contestant.stop)
        await contestant.start(site.ways, folder)
        load = Load(contestant.target, mix, seed=seed)
        stage = Stage(site, contestant, load, Random(seed))
        async with load.running():
            for step in scenario.script:
                await step(stage)
    return join(load.ledger.asked.values(), site.ledgers.news(), stage.marks, stage.notes)


def summary(joined: Joined) -> str:
    """One line: how much, how fast, what failed."""
    counted = joined.counted()
    failures = Counter(each.error[:90] for each in counted if each.error)
    took = [each.took for each in counted if not each.error]
    p50, p99 = (1000.0 * (quantile(took, share) or 0.0) for share in (0.5, 0.99))
    text = f"{len(counted)} counted, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    for error, count in failures.most_common(4):
        text += f"\n    {count} x {error}"
    for each in joined.wrong()[:3]:
        text += f"\n    wrong: {each.id} {each.kind.value}: {each.wrong}"
    return text
