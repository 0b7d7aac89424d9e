"""The table of the fence: what each marked function costs, and each small piece of relaying.

    python -m benchmarks.micro [--rounds 7] [--steps 300] [PATTERN...]

Nanoseconds are those of the best round; the rounds go through all rows in turn, so that a busy
minute of the machine hits every row alike. What a function calls is included. Instructions and
objects are counted (`benchmarks.micro.counting`), so they hold on any machine; `bytes` is what a
call holds at its peak, more than before it.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from fnmatch import fnmatch

from benchmarks.micro.counting import Work
from benchmarks.micro.functions import HotFunction, hot_functions
from benchmarks.micro.scenes import SCENES
from benchmarks.micro.timing import bytes_within, stopwatch_ns, time_scene, time_within
from benchmarks.micro.work import count

_BYTES_STEPS = 30


@dataclass
class FunctionRow:
    """One function in the scene that shows it."""

    function: HotFunction
    scene: str
    work: Work
    """Per call."""
    best_ns: float = float("inf")
    bytes: float = 0.0


@dataclass
class SceneRow:
    """One scene; everything is per part of it."""

    scene: str
    work: Work
    best_ns: float = float("inf")


def find_rows() -> tuple[list[FunctionRow], list[SceneRow]]:
    """Rows of all functions that a scene calls, and of all scenes. Needs a running loop.

    A function is shown in the first scene that calls it: the commonest comes first.
    """
    functions = {each.code: each for each in hot_functions()}
    rows: dict[HotFunction, FunctionRow] = {}
    scenes = []
    for name, make in SCENES.items():
        work, counter = count(make, functions)
        scenes.append(SceneRow(name, work))
        for code, within in counter.within.items():
            if within.calls:
                mean = within.per(int(within.calls))
                rows.setdefault(functions[code], FunctionRow(functions[code], name, mean))
    return [rows[each] for each in functions.values() if each in rows], scenes


def measure(functions: list[FunctionRow], scenes: list[SceneRow], rounds: int, steps: int) -> None:
    """Fill in times and bytes."""
    for row in functions:
        row.bytes = bytes_within(row.function, SCENES[row.scene], _BYTES_STEPS)
    own = stopwatch_ns(steps)
    for _ in range(rounds):
        for scene in scenes:
            scene.best_ns = min(scene.best_ns, time_scene(SCENES[scene.scene], steps))
        for row in functions:
            own = min(own, stopwatch_ns(steps))
            took = time_within(row.function, SCENES[row.scene], steps)
            row.best_ns = min(row.best_ns, took)
    for row in functions:
        row.best_ns -= own


def show(functions: list[FunctionRow], scenes: list[SceneRow]) -> None:
    """Print both tables."""
    head = f"{'ns':>9} {'instructions':>13} {'objects':>8}"
    print(f"{'per call of a function':58} {head} {'bytes':>8}   in")
    for row in functions:
        figures = f"{row.best_ns:9,.0f} {row.work.instructions:13,.1f} {row.work.objects:8,.1f}"
        print(f"{row.function!s:58} {figures} {row.bytes:8,.0f}   {row.scene}")
    print(f"\n{'per request, message, event or read':58} {head}    calls   C calls")
    for each in scenes:
        work = each.work
        figures = f"{each.best_ns:9,.0f} {work.instructions:13,.1f} {work.objects:8,.1f}"
        print(f"{each.scene:58} {figures} {work.calls:8,.1f} {work.c_calls:9,.1f}")


async def run(patterns: list[str], rounds: int, steps: int) -> None:
    """All of it, or the rows whose function or scene matches a pattern."""
    functions, scenes = find_rows()
    if patterns:
        functions = [each for each in functions if _matches(str(each.function), patterns)]
        scenes = [each for each in scenes if _matches(each.scene, patterns)]
    measure(functions, scenes, rounds, steps)
    show(functions, scenes)


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, f"*{pattern}*") for pattern in patterns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="part of a row's name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300, help="of a scene per round")
    given = parser.parse_args()
    asyncio.run(run(given.patterns, given.rounds, given.steps))


_Help = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
