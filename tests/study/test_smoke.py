"""A few seconds of the scheduling study: real Tritons, triton-lb, the load generator, the page."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.load.processes import Cores
from benchmarks.load.proxies import TRITON_LB
from benchmarks.study import report
from benchmarks.study.bound import PERFECT
from benchmarks.study.fleet import Fleet
from benchmarks.study.generator import GRPC, HTTP, Job
from benchmarks.study.gpus import Gpu, one
from benchmarks.study.journal import Journal
from benchmarks.study.parts import SMOKE
from benchmarks.study.session import generate, play
from benchmarks.study.trace import Kind
from benchmarks.study.wires import GOOD, LATE
from tests.fakes.process import wait_until

SCALE = 0.25
"""Of the seconds of loads."""
CORE = Cores.choose().load
_BACKLOG = 128
"""More connections than a short run of the generator opens."""
_TRIES = 20


def test_a_part_is_played_and_told_of(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "study.jsonl")
    played = play(SMOKE, journal, runs=1, commit="this", scale=SCALE)
    made = report.chapter(played, journal, commit="this", scale=SCALE)
    assert played.errors == {}
    for step in SMOKE.steps:
        run = made.medians[step.name][TRITON_LB]
        assert run.figures.asked > 5
        assert run.outcomes == {}
        assert sum(run.shares) == pytest.approx(1.0)
        assert 0.0 < max(run.utilisation) <= 1.1
    assert made.medians[SMOKE.steps[0].name][PERFECT].figures.p50 >= 2.0
    assert PERFECT in report.page([made], {"commit": "this"}, {}, "")
    # What is in the journal is not measured again, and no Triton is started for it.
    again = play(SMOKE, Journal(tmp_path / "study.jsonl"), runs=1, commit="this", scale=SCALE)
    assert again.measured == played.measured


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One Triton that batches up to four rows in 20 ms."""
    gpu = Gpu(20.0, max_batch=4, batches=True)
    running = Fleet.start(tmp_path_factory.mktemp("study"), [one(gpu)])
    yield running
    running.close()


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_requests_that_wait_are_batched_and_counted(fleet: Fleet, protocol: str) -> None:
    (address,) = fleet.addresses
    port = address.http if protocol == HTTP else address.grpc
    before = fleet.counted()[0]
    kinds = (Kind(rows=1), Kind("two", rows=2))
    outcomes = generate(Job(protocol, port, kinds, seconds=0.4, seed=1, clients=8), CORE)
    assert {each.what for each in outcomes} == {GOOD}
    rows = sum(1 + each.kind for each in outcomes)
    # Triton counts an inference after its answer.
    wait_until(lambda: (fleet.counted()[0] - before).inferences >= rows, what="all are counted")
    did = fleet.counted()[0] - before
    assert did.inferences == rows
    assert did.executions < did.inferences
    assert did.busy_s >= did.executions * 0.019


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_latency_counts_from_when_a_request_was_due(protocol: str) -> None:
    # This server accepts connections and says nothing: a Triton that knows the deadline may be the
    # first to say so, however long it takes for an answer.
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as silent:
        port = silent.getsockname()[1]
        job = Job(protocol, port, (Kind(deadline_ms=10.0),), seconds=0.3, seed=1, rate=40.0)
        outcomes = generate(job, CORE)
    assert {each.what for each in outcomes} == {LATE}
    assert all(each.due <= each.sent < each.ended >= each.due + 0.01 for each in outcomes)


def test_a_triton_can_be_slowed_down_for_a_while(fleet: Fleet) -> None:
    (address,) = fleet.addresses
    job = Job(HTTP, address.http, (Kind(),), seconds=0.25, seed=1, clients=1)
    fleet.slow_down(0, 3.0)
    try:
        slow = generate(job, CORE)
    finally:
        fleet.slow_down(0, 1.0)
    assert min(each.ended - each.due for each in slow) > 0.059
    # On a busy machine one of several tries is quick.
    tries = (each.ended - each.due for _ in range(_TRIES) for each in generate(job, CORE))
    assert any(took_s < 0.059 for took_s in tries)
