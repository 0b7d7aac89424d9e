"""Play the same plans before both versions, and say where they differ."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.against.clients import play
from tests.against.plans import Plan, Protocol, make
from tests.against.trees import Tree, serve

AGAIN = 4
"""How often a plan that differed is played once more: what one version does now and then as well
is no difference."""

ENOUGH = 50
"""Differences after which no more plans are played again."""
_IDENTITY = re.compile(r"triton-lb-[0-9a-f]{16}")
"""What a process calls itself toward other balancers: another one each time it starts."""
STRAYED = 8
"""How much a counter may differ for each plan that did not end the same way at first: its requests
have so many attempts at most."""
Counters = Mapping[str, float]


@dataclass(frozen=True)
class Difference:
    """A plan on which the versions do not agree, however often it is played."""

    plan: Plan
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What came of a run."""

    played: int
    differences: tuple[Difference, ...]
    counters: tuple[str, ...]
    """Counters that differ, as text."""


async def compare(
    folder: Path,
    first: Path,
    second: Path,
    numbers: Sequence[int],
    seed: int,
    ignored: Collection[str] = (),
) -> Comparison:
    """Play the plans of these numbers before the versions in two folders of sources.

    Fields called as in `ignored` are not compared where backends get them.
    """
    async with (
        serve("first", first, folder, ignored) as one,
        serve("second", second, folder, ignored) as other,
    ):
        plans = [make(seed, number) for number in numbers]
        got = await asyncio.gather(_play_all(one, plans), _play_all(other, plans))
        logged = [await asyncio.to_thread(tree.logged) for tree in (one, other)]
        suspects = [
            plan
            for plan, *found in zip(plans, *got, strict=True)
            if found[0] != found[1]
            or any(logged[0].get(each.id) != logged[1].get(each.id) for each in plan.requests)
        ]
        counters = await asyncio.gather(*(asyncio.to_thread(t.counters) for t in (one, other)))
        found = []
        for plan in suspects:
            difference = await _again(plan, one, other)
            if difference is not None:
                found.append(difference)
            if len(found) == ENOUGH:
                break
        differing = _differing(*counters, allowed=STRAYED * len(suspects))
        return Comparison(len(plans), tuple(found), differing)


def _differing(one: Counters, other: Counters, *, allowed: int) -> tuple[str, ...]:
    found = []
    for name in sorted(one.keys() | other.keys()):
        values = one.get(name, 0.0), other.get(name, 0.0)
        # Bytes tell nothing where a plan had another end.
        is_told = not (allowed and "_bytes_" in name)
        if is_told and abs(values[0] - values[1]) > allowed:
            found.append(f"{name}: {values[0]:.0f} {values[1]:.0f}")
    return tuple(found)


async def _play_all(tree: Tree, plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    return [await _play(tree, plan) for plan in plans]


async def _play(tree: Tree, plan: Plan) -> tuple[str, ...]:
    got = await play(plan, tree.registry, tree.http, tree.grpc)
    for each in plan.requests[: 1 if plan.protocol is Protocol.STREAM else None]:
        tree.played[each.id] += tree.registry.arrived[each.id].is_set()
    seen = [
        f"{each.id} reached {saw}" for each in plan.requests for saw in tree.registry.seen[each.id]
    ]
    # Which backend it was is a matter of placement, and errors name it.
    lines = (re.sub(r"\bb\d\b", "bN", line) for line in (*got, *seen))
    return tuple(_IDENTITY.sub("triton-lb-ID", line) for line in lines)


async def _again(plan: Plan, one: Tree, other: Tree) -> Difference | None:
    """The difference, where neither version ever does what the other one does."""
    ways: list[set[tuple[str, ...]]] = [set(), set()]
    for _ in range(AGAIN):
        for known, tree in zip(ways, (one, other), strict=True):
            got = await _play(tree, plan)
            logged = await asyncio.to_thread(tree.logged)
            known.add((*got, *(f"log: {logged.get(each.id)}" for each in plan.requests)))
        if ways[0] & ways[1]:
            return None
    return Difference(plan, min(ways[0]), min(ways[1]))
