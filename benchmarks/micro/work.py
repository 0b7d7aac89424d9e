"""Work per request, frame and message: counted, not timed, so a busy machine shows the same.

    python -m benchmarks.micro.work            # the table, against the ceilings
    python -m benchmarks.micro.work --update   # what is counted now becomes the ceilings

The ceilings are `benchmarks/micro/ceilings.json`; `make test` runs the check. More work than they
allow is a slow-down, or has to be worth it: then they are updated in the commit that adds it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from types import CodeType

from benchmarks.micro.counting import Counter, Work
from benchmarks.micro.scenes import SCENES, Make

CEILINGS = Path(__file__).with_name("ceilings.json")
SLACK = 0.03
"""Of a ceiling."""
SLACK_AT_LEAST = 1.5
"""Whatever the figure: the interpreter's own caches are not counted out to the last block."""
_WARM_UP = 1000
_STEPS = 6
"""Of one part each."""
_STEPS_AT_LEAST = 3
_STEPS_BEFORE = 2
"""Counted and thrown away: the first ones under the tracer make objects of its own."""


def count(make: Make, functions: Collection[CodeType] = ()) -> tuple[Work, Counter]:
    """What a part of a scene does, and the counter of all its steps. Needs a running loop."""
    scene = make(itertools.repeat(1000.0).__next__)  # a clock that stands, without a call
    for one in scene.take(_WARM_UP):
        scene.step(one)
    steps = max(_STEPS // scene.parts, _STEPS_AT_LEAST)
    for repeats in (_STEPS_BEFORE, steps):
        counter = Counter(functions)
        for _ in range(repeats):
            counter.count(scene.step, scene.take(3))
    return counter.total.per(steps * scene.parts), counter


async def count_all() -> dict[str, Work]:
    """Of every scene."""
    return {name: count(make)[0] for name, make in SCENES.items()}


def ceilings() -> dict[str, Work]:
    """Those that are committed."""
    return {name: Work(**each) for name, each in json.loads(CEILINGS.read_text()).items()}


def allowed(ceiling: float) -> float:
    """The most that passes."""
    return ceiling + max(SLACK_AT_LEAST, SLACK * ceiling)


def excesses(counted: dict[str, Work], limits: dict[str, Work]) -> list[str]:
    """One line for every figure that is over its ceiling, and for every scene without."""
    missing = [f"{name}: there is no ceiling" for name in counted if name not in limits]
    return missing + [
        f"{name}: {now:g} {each.name} instead of {before:g}"
        for name, work in counted.items()
        if name in limits
        for each in fields(Work)
        if (now := getattr(work, each.name)) > allowed(before := getattr(limits[name], each.name))
    ]


def main() -> int:
    """Print the table; 1 if something is over its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the ceilings anew")
    update = parser.parse_args().update
    counted = asyncio.run(count_all())
    limits = ceilings() if CEILINGS.exists() else {}
    names = [each.name for each in fields(Work)]
    print("per part (was)".ljust(42), *(f"{name:>20}" for name in names))
    for name, work in counted.items():
        before = limits.get(name, Work())
        figures = ((getattr(work, each), getattr(before, each)) for each in names)
        print(name.ljust(42), *(f"{now:10.1f} ({then:7.1f})" for now, then in figures))
    if update:
        rounded = {
            name: {key: round(value, 2) for key, value in asdict(work).items()}
            for name, work in counted.items()
        }
        CEILINGS.write_text(json.dumps(rounded, indent=1) + "\n")
        return 0
    over = excesses(counted, limits)
    for line in over:
        print(f"over its ceiling: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
