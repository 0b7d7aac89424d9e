"""Every target keeps its promises on its seeds, on what broke it once, and on generated inputs
that are the same in every run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.mutation import strategy
from tests.fuzz.regressions import FOLDER, regressions
from tests.fuzz.target import Target, time_limit
from tests.fuzz.targets import TARGETS


@pytest.fixture(params=TARGETS.values(), ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """Each in turn."""
    chosen: Target = request.param
    return chosen


def test_promises_hold_on_seeds_and_on_what_once_broke_them(target: Target) -> None:
    for data in (*target.seeds, *regressions(target.name)):
        with time_limit():
            target.check(data)


def test_promises_hold_on_mutations_of_the_seeds(target: Target) -> None:
    @settings(
        max_examples=target.examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(target))
    def run(data: bytes) -> None:
        with time_limit():
            target.check(data)

    run()


def test_every_file_of_regressions_belongs_to_a_target() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} <= set(TARGETS)
