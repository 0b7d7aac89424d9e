"""Every flood, small: the attacker is cut, its work ends with it, and nobody else notices.

Latency and memory are left to `make floods`: here the machine may be busy with anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.floods.catalogue import CASES, Flood, case_name
from tests.floods.judge import Verdict, cancelled_late_s
from tests.floods.play import SMALL
from tests.floods.stage import Stage

TIMEOUT_S = 0.5
LATE_S = 15.0
"""Other work may have the cores; the figures themselves come from `make floods`."""
CANCEL_S = 5.0
PATIENCE_S = 20.0
"""With those who must be cut."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    running = Stage(tmp_path_factory.mktemp("floods"), TIMEOUT_S)
    yield running
    running.close()


@pytest.fixture(scope="module", autouse=True)
def good_client_beside(stage: Stage) -> Iterator[None]:
    """Sees no error, whatever flood it was that ran."""
    stop = stage.start_good(tls=False)
    yield
    samples = stop()
    assert len(samples) > 100
    assert [sample.error for sample in samples if sample.error] == []
    assert stage.until_quiet(10.0) == {}
    assert "Traceback" not in stage.log
    assert stage.metrics()["backend_state_changes_total"] == 2, stage.log


@pytest.mark.parametrize(
    ("flood", "is_tls"), CASES, ids=[case_name(flood, is_tls) for flood, is_tls in CASES]
)
def test_attacker_is_cut_and_its_work_ends(stage: Stage, flood: Flood, is_tls: bool) -> None:
    stage.observer.clear()
    size = SMALL._replace(patience_s=PATIENCE_S) if flood.is_cut else SMALL
    played = asyncio.run(flood.play(stage.target(tls=is_tls), size))
    seen = stage.until_flood_is_over(10.0)
    verdict = Verdict(
        name=case_name(flood, is_tls),
        flood=flood,
        played=played,
        timeout_s=TIMEOUT_S,
        started_upstream=seen.flood,
        peak_upstream=seen.peak,
        late_s=cancelled_late_s(played, seen.handled),
    )
    assert verdict.attacker_faults(LATE_S) == []
    assert verdict.upstream_faults(CANCEL_S) == []
    assert seen.in_flight == 0
