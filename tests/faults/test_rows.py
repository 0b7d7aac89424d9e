"""Short rows of the fault suite, which `make chaos` plays in full and side by side."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults import steps
from benchmarks.faults.between import NO_FAULT, Fault
from benchmarks.faults.contestants import TritonLb
from benchmarks.faults.load import DEADLINE_S, Mix
from benchmarks.faults.play import perform
from benchmarks.faults.rules import Rule, failed, failed_share, failed_steps, judge, note
from benchmarks.faults.scenarios import Scenario
from benchmarks.faults.site import Site
from benchmarks.faults.steps import Step
from benchmarks.faults.worker_rows import CONTROL, WORKERS, all_serve, failed_beside, send
from benchmarks.load.proxies import TRITON_LB

MIX = Mix(rate=60.0, connect_s=DEADLINE_S)
"""A quarter of what three Tritons can carry: other tests may run beside these."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three Tritons whose models keep a ledger."""
    running = Site.start(tmp_path_factory.mktemp("faults"))
    yield running
    running.close()


def row(name: str, *script: Step, rules: tuple[Rule, ...], disturbed: bool = False) -> Scenario:
    """One row, with load before its fault and after it."""
    return Scenario(name, name, (steps.rest(0.5), *script, steps.rest(0.5)), rules, disturbed)


ROWS = (
    row(
        "killed",
        *(steps.kill(1), steps.rest(0.5), steps.restart(1), steps.back(1)),
        rules=(failed(),),
    ),
    row(
        "drained before it ends",
        *(steps.drain(0), steps.terminate(0), steps.restart(0), steps.back(0), steps.enable(0)),
        rules=(failed(), failed_steps()),
    ),
    row(
        "a model is unloaded on one",
        *(steps.unload(2), steps.rest(1.0), steps.load(2)),
        rules=(failed(),),
    ),
    row(
        "a broken device, and a client that sends only bad requests",
        *(steps.tell(2, "poison", "UNKNOWN"), steps.bad_requests(60.0), steps.rest(2.0)),
        *(steps.heal(2), steps.bad_requests(0.0)),
        rules=(failed(), failed_steps()),
    ),
    row(
        "requests that are never answered",
        # They would still be there when the Tritons are asked to exit.
        *(
            steps.lose(6),
            steps.rest(2.0),
            steps.kill(0, 1, 2),
            steps.restart(0, 1, 2),
            steps.back(0, 1, 2),
        ),
        rules=(
            note("unserved", "requests for that model without an answer", 0),
            failed_share("lose", "found", 0.0),
        ),
    ),
    row(
        "refuses connections",
        *(steps.disturb(1, Fault(refuse=True)), steps.rest(1.0), steps.disturb(1, NO_FAULT)),
        # Steps of its sequences fail where they need a new connection: they can go nowhere else.
        rules=(failed(),),
        disturbed=True,
    ),
    replace(
        row(
            "two workers: one is killed, then the control process",
            *(send(0, signal.SIGKILL, "kill"), steps.rest(1.0), all_serve()),
            *(send(CONTROL, signal.SIGKILL, "end"), steps.rest(1.0), all_serve()),
            # On a busy machine a killed process may take long to close its connections.
            rules=(failed_beside("kill", 3.0),),
        ),
        sections=WORKERS,
    ),
)


@pytest.mark.parametrize("scenario", ROWS, ids=[each.name for each in ROWS])
def test_nothing_is_lost_answered_wrongly_or_run_twice(
    scenario: Scenario, site: Site, tmp_path: Path
) -> None:
    joined = asyncio.run(perform(scenario, TritonLb(), site, tmp_path, MIX, seed=1))
    assert joined.counted()
    missed = [each for each in judge(scenario.rules, {TRITON_LB: joined}) if not each.is_met]
    errors = [each.error for each in joined.asked if each.error and each.is_counted][:5]
    assert [f"{each.rule.what}: {each.text}" for each in missed] == [], errors
