"""What relaying costs in calls, instructions and objects stays under its ceilings.

Time would say the same, but not on a machine that does other things too.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.micro.counting import Work
from benchmarks.micro.scenes import SCENES, Clock, Scene
from benchmarks.micro.work import SLACK, allowed, ceilings, count, excesses

TOP = Path(__file__).parents[2]
_COUNT = """
import asyncio, dataclasses, json
from benchmarks.micro.work import count_all
counted = asyncio.run(count_all())
print(json.dumps({name: dataclasses.asdict(work) for name, work in counted.items()}))
"""


def nothing() -> None:
    """One call, no object."""


def thrice(_: object) -> None:
    nothing()
    nothing()
    bytearray(sum((100,)))


def thrice_scene(_: Clock) -> Scene:
    return Scene(thrice, itertools.repeat(None))


@pytest.fixture(scope="module")
def counted() -> dict[str, Work]:
    """What every scene does, counted in a process of its own: what other tests leave in the
    interpreter's caches would count, and the larger the heap, the longer CPython takes to count
    its blocks."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: Work(**each) for name, each in json.loads(done.stdout).items()}


def test_no_scene_does_more_work_than_its_ceiling_allows(counted: dict[str, Work]) -> None:
    assert excesses(counted, ceilings()) == []


def test_every_ceiling_belongs_to_a_scene() -> None:
    assert set(ceilings()) == set(SCENES)


def test_calls_and_objects_are_counted_to_the_last_one() -> None:
    work, counter = count(thrice_scene, {nothing.__code__})
    assert work.calls == 3
    assert work.c_calls == 1
    assert work.objects >= 2  # the array and its content
    assert counter.within[nothing.__code__].calls == 12


@pytest.mark.parametrize("kind", ["calls", "c_calls", "instructions", "objects", "kept"])
def test_a_little_more_of_anything_is_over_the_ceiling(kind: str) -> None:
    before = Work(calls=46.0, c_calls=41.0, instructions=2490.0, objects=67.0, kept=0.0)
    now = Work(**{**vars(before), kind: allowed(getattr(before, kind)) + 1.0})
    assert len(excesses({"gRPC": now}, {"gRPC": before})) == 1
    assert excesses({"gRPC": before}, {"gRPC": before}) == []


def test_two_calls_more_in_a_small_scene_are_over_the_ceiling() -> None:
    assert allowed(16.0) < 18.0


def test_a_scene_without_a_ceiling_is_reported() -> None:
    assert excesses({"new": Work()}, {}) == ["new: there is no ceiling"]


@pytest.mark.parametrize("kind", ["HTTP/1.1 request", "gRPC call"])
def test_a_request_that_is_not_traced_does_hardly_more_while_tracing_is_on(
    kind: str, counted: dict[str, Work]
) -> None:
    off, on = counted[kind], counted[f"{kind}, tracing on"]
    assert on.instructions - off.instructions <= 40


@pytest.mark.parametrize(
    ("repeating", "new"),
    [
        ("HTTP/1.1 request, same traceparent", "HTTP/1.1 request, new traceparent"),
        ("gRPC call, same traceparent", "gRPC call, new header block"),
    ],
)
def test_a_traceparent_that_never_repeats_costs_hardly_more_than_one_that_does(
    repeating: str, new: str, counted: dict[str, Work]
) -> None:
    """52 instructions took half a microsecond."""
    assert counted[new].instructions - counted[repeating].instructions <= 60


@pytest.mark.parametrize(
    ("row", "scene"),
    [("off", ""), ("on, not sampled", ", payload log on"), ("sampled", ", payload logged")],
)
def test_the_page_tells_what_the_payload_log_costs(
    row: str, scene: str, counted: dict[str, Work]
) -> None:
    page = (TOP / "docs/payload-log.md").read_text()
    told = re.search(rf"^\| {row} \| ([0-9,]+) \| ([0-9,]+) \|$", page, re.MULTILINE)
    assert told is not None
    for kind, figure in zip(("HTTP/1.1 request", "gRPC call"), told.groups(), strict=True):
        work = counted[kind + scene]
        assert work.instructions == pytest.approx(int(figure.replace(",", "")), rel=SLACK)
