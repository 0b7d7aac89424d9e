"""A model backend at a backend that puts what waits into one execution."""

from __future__ import annotations

import pytest

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.batching import BatchingModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

PLAN = QueuePlan(limits={})
LIMIT = Capacity(8, is_auto=True, instances=1, max_batch=8)


def execution_s(rows: int) -> float:
    return 0.008 + 0.001 * rows


class Backend:
    """Runs what waits as one, whenever it is free."""

    def __init__(self, limit: Capacity = LIMIT) -> None:
        self.model_backend = BatchingModelBackend(
            BackendPenalty(make_backend("one")), limit, ModelStats()
        )
        self.now = 100.0
        self.waiting: list[Ticket] = []

    def begin(self, rows: int = 1) -> Ticket:
        ticket = Ticket(RequestClass(b"model", b"", PLAN, ()), self.now)
        ticket.rows = rows
        self.model_backend.begin(ticket, self.model_backend.estimate(rows, 0, self.now), self.now)
        self.waiting.append(ticket)
        return ticket

    def take(self) -> list[Ticket]:
        """What fits into one execution."""
        batch: list[Ticket] = []
        while self.waiting and sum(each.rows for each in batch) + self.waiting[0].rows <= 8:
            batch.append(self.waiting.pop(0))
        return batch

    def end(self, batch: list[Ticket], ending: Ending = Ending.GOOD) -> None:
        self.now += execution_s(sum(each.rows for each in batch))
        for ticket in batch:
            self.model_backend.end(ticket, self.now, ending)

    def teach(self) -> None:
        """Have it run executions of 1 to 8 rows."""
        for _ in range(8):
            for count in (1, 5, 8, 2):
                self.begin()
                first = self.take()
                for _ in range(count):
                    self.begin()
                self.end(first)
                self.end(self.take())
                self.now += 0.05


def test_what_an_execution_takes_is_told_from_what_a_row_adds() -> None:
    backend = Backend()
    backend.teach()
    cost = backend.model_backend.cost
    assert cost.predict(1, 0) == pytest.approx(execution_s(1), rel=0.1)
    assert cost.predict(8, 0) == pytest.approx(execution_s(8), rel=0.1)


def test_requests_of_one_execution_are_one_sample() -> None:
    backend = Backend()
    backend.teach()
    assert backend.model_backend.cost.count == 8 * 4 * 2


def test_idle_backend_runs_a_request_at_once() -> None:
    backend = Backend()
    backend.teach()
    end = backend.model_backend.estimate(1, 0, backend.now).ends_at
    assert end - backend.now == pytest.approx(execution_s(1), rel=0.1)


def test_busy_one_runs_it_with_those_that_wait() -> None:
    backend = Backend()
    backend.teach()
    for _ in range(4):
        backend.begin()
    estimate = backend.model_backend.estimate(1, 0, backend.now)
    expected = execution_s(1) + execution_s(4)
    assert estimate.ends_at - backend.now == pytest.approx(expected, rel=0.1)
    assert estimate.may_begin


def test_batch_that_is_full_goes_before_the_next_one() -> None:
    backend = Backend()
    backend.teach()
    for _ in range(9):
        backend.begin()
    end = backend.model_backend.estimate(1, 0, backend.now).ends_at
    expected = execution_s(1) + execution_s(8) + execution_s(1)
    assert end - backend.now == pytest.approx(expected, rel=0.1)


def test_more_than_one_batch_that_runs_and_one_that_fills_waits_elsewhere() -> None:
    backend = Backend()
    backend.teach()
    for _ in range(16):
        assert backend.model_backend.estimate(1, 0, backend.now).may_begin
        backend.begin()
    assert not backend.model_backend.estimate(1, 0, backend.now).may_begin


def test_rows_fill_a_batch_however_few_requests_have_them() -> None:
    backend = Backend()
    backend.teach()
    backend.begin(8)
    backend.begin(8)
    assert not backend.model_backend.estimate(1, 0, backend.now).may_begin


def test_failed_execution_teaches_nothing() -> None:
    backend = Backend()
    backend.teach()
    count = backend.model_backend.cost.count
    backend.begin()
    backend.end(backend.take(), Ending.FAILED)
    backend.begin()
    backend.end(backend.take(), Ending.NEITHER)
    assert backend.model_backend.cost.count == count
    assert (
        backend.model_backend.in_flight
        == backend.model_backend.rows
        == backend.model_backend.waiting_rows
        == 0
    )


def test_rate_is_that_of_whole_batches() -> None:
    backend = Backend()
    backend.teach()
    assert backend.model_backend.rate == pytest.approx(8 / execution_s(8), rel=0.1)


def test_unknown_one_gets_one_request() -> None:
    backend = Backend()
    assert backend.model_backend.estimate(1, 0, backend.now).may_begin
    backend.begin()
    assert not backend.model_backend.estimate(1, 0, backend.now).may_begin


def test_a_number_is_kept_exactly_whatever_the_batches_are() -> None:
    backend = Backend(Capacity(40, instances=1, max_batch=8))
    backend.teach()
    for _ in range(40):
        assert backend.model_backend.estimate(1, 0, backend.now).may_begin
        backend.begin()
    assert not backend.model_backend.estimate(1, 0, backend.now).may_begin


@pytest.mark.parametrize(("is_known", "rows"), [(False, 1), (True, 64)])
def test_what_takes_no_more_is_not_said_to_be_free(is_known: bool, rows: int) -> None:
    backend = Backend(Capacity(16, is_auto=True, instances=2, max_batch=8))
    if is_known:
        backend.teach()
    backend.begin(rows)
    estimate = backend.model_backend.estimate(1, 0, backend.now)
    took_s = estimate.ends_at - backend.now
    assert not estimate.may_begin
    assert estimate.begins_at > backend.now
    backend.now += 0.9
    later = backend.model_backend.estimate(1, 0, backend.now)
    assert later.ends_at - backend.now > 0.5 + took_s / 2
