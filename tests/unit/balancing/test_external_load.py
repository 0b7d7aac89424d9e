"""What model backends make of the reports of their backends."""

from __future__ import annotations

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.external_load import ExternalLoad
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.balancing.shared_execution import SharedModelBackend
from lb.domain.load import LoadReport, ModelLoad
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

M = b"m"
PLAN = QueuePlan(limits={})
PLAN = QueuePlan(limits={})


class Bench:
    """One model backend, and a Triton that counts everybody's requests."""

    def __init__(self, instances: int = 1, *, is_shared: bool = False) -> None:
        self.backend = make_backend("a")
        self.penalty = BackendPenalty(self.backend)
        self.stats = ModelStats()
        kind = SharedModelBackend if is_shared else ModelBackend
        limit = Capacity(8, instances=instances, is_shared=is_shared)
        self.model_backend = kind(self.penalty, limit, self.stats)
        self.external_load = ExternalLoad()
        self.now = 100.0
        self.requests = self.executions = 0
        self.execution_s = 0.0

    def ours(self, count: int, took_s: float = 0.01) -> None:
        """So many of our requests, one after the other."""
        for _ in range(count):
            ticket = Ticket(RequestClass(M, b"", PLAN, (self.backend,)), self.now)
            self.model_backend.begin(ticket, self.model_backend.estimate(1, 0, self.now), self.now)
            ticket.began_at = self.now
            self.now += took_s
            self.model_backend.end(ticket, self.now, Ending.GOOD)
        self.theirs(count, took_s)

    def theirs(self, count: int, took_s: float = 0.01, batch: int = 1) -> None:
        """The Triton answers so many."""
        self.requests += count
        self.executions += count // batch
        self.execution_s += count * took_s

    def report(
        self, *, pending: float = 0.0, others: float | None = None, in_flight_by_model: int = 0
    ) -> None:
        load = ModelLoad(
            pending=pending,
            requests=self.requests,
            executions=self.executions,
            execution_s=self.execution_s,
        )
        self.external_load.on_report(
            self.backend,
            {M: [self.model_backend]},
            LoadReport(
                at=self.now,
                models={M: load},
                others=others,
                in_flight={M: in_flight_by_model},
            ),
        )

    @property
    def is_told(self) -> bool:
        """Whether its backend says anything that its model backend does not know."""
        return self.model_backend.external_load is not None

    def slower(self) -> float:
        return (
            1.0
            if self.model_backend.external_load is None
            else self.model_backend.external_load.slower(self.now)
        )


def test_our_own_requests_are_not_those_of_others() -> None:
    bench = Bench()
    bench.report()
    for _ in range(5):
        bench.ours(90)
        bench.now += 0.1
        bench.report()
        assert not bench.is_told


def test_requests_of_others_make_a_lane_slower() -> None:
    bench = Bench()
    bench.ours(20)
    bench.report()
    bench.now += 1.0
    bench.report()
    bench.theirs(50)
    bench.now += 1.0
    bench.report()
    assert bench.slower() == pytest.approx(1.5)
    fresh = bench.model_backend.estimate(1, 0, bench.now).ends_at - bench.now
    assert fresh == pytest.approx(0.015, rel=0.05)
    assert bench.model_backend.usual_s(bench.now) == pytest.approx(0.015, rel=0.05)


def test_they_count_by_the_executions_that_they_needed_and_the_instances_that_there_are() -> None:
    bench = Bench(instances=2)
    bench.ours(20)
    for _ in range(2):
        bench.report()
        bench.now += 1.0
    bench.theirs(400, 0.02, batch=8)
    bench.report()
    assert bench.slower() == pytest.approx(1.5)


def test_what_waits_there_beyond_ours_delays_the_next_one() -> None:
    bench = Bench()
    bench.ours(20)
    bench.report()
    bench.now += 1.0
    bench.report(pending=5.0, in_flight_by_model=2)
    estimate = bench.model_backend.estimate(1, 0, bench.now)
    assert estimate.begins_at - bench.now == pytest.approx(0.03, rel=0.05)
    bench.report(pending=5.0)
    assert bench.is_told, "too soon for news"
    bench.now += 1.0
    bench.report(pending=2.0, in_flight_by_model=2)
    assert not bench.is_told


def test_where_all_share_one_engine_those_of_others_count_as_work_that_is_under_way() -> None:
    bench = Bench(is_shared=True)
    bench.ours(20)
    for _ in range(2):
        bench.report()
        bench.now += 1.0
    bench.theirs(4, 0.5)
    bench.report(pending=1.0)
    assert bench.slower() == 1.0
    assert bench.model_backend.estimate(1, 0, bench.now).ends_at - bench.now == pytest.approx(
        0.04, rel=0.05
    )


def test_a_triton_that_was_restarted_is_not_held_to_what_it_had_counted() -> None:
    bench = Bench()
    bench.ours(20)
    for _ in range(2):
        bench.report()
        bench.now += 1.0
    bench.requests, bench.executions, bench.execution_s = 3, 3, 0.03
    bench.report()
    assert not bench.is_told


def test_a_model_that_is_not_on_the_page_and_a_backend_that_is_forgotten_say_nothing() -> None:
    bench = Bench()
    bench.report(pending=5.0)
    assert bench.is_told
    bench.external_load.on_report(
        bench.backend, {M: [bench.model_backend]}, LoadReport(at=bench.now)
    )
    assert not bench.is_told


def test_nothing_is_held_against_a_backend_that_was_restarted() -> None:
    bench = Bench()
    bench.report(pending=5.0)
    bench.external_load.forget(bench.backend)
    bench.model_backend.forget()
    assert not bench.is_told


def test_a_busy_device_makes_all_lanes_on_it_slower() -> None:
    bench = Bench()
    bench.ours(20)
    bench.report(others=0.0)
    bench.now += 1.0
    bench.report(others=0.5)
    assert bench.slower() == pytest.approx(1.5)
