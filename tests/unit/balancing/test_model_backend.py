"""What is under way at one backend, and when something more would end."""

from __future__ import annotations

import pytest

from lb.balancing.backend_external_load import BackendExternalLoad
from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.batching import BatchingModelBackend
from lb.balancing.cost import MAX_EXTRAPOLATION
from lb.balancing.model_backend import LEAD_S, ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, QueuePlan, RequestClass, Ticket
from tests.fakes.backends import make_backend

PLAN = QueuePlan(limits={})


def lane_of(limit: Capacity) -> ModelBackend:
    return ModelBackend(BackendPenalty(make_backend("one")), limit, ModelStats())


def begin(model_backend: ModelBackend, now: float) -> Ticket:
    ticket = Ticket(RequestClass(b"model", b"", PLAN, (model_backend.backend,)), now)
    model_backend.begin(ticket, model_backend.estimate(1, 0, now), now)
    model_backend.backend.in_flight += 1
    return ticket


def end(
    model_backend: ModelBackend, ticket: Ticket, now: float, ending: Ending = Ending.GOOD
) -> None:
    model_backend.backend.in_flight -= 1
    model_backend.end(ticket, now, ending)


def taught(limit: Capacity, took_s: float) -> ModelBackend:
    """A model backend that has learnt how long an execution takes; the time is 100."""
    model_backend = lane_of(limit)
    for number in range(30):
        now = 90.0 + number / 10
        end(model_backend, begin(model_backend, now), now + took_s)
    return model_backend


def test_idle_lane_ends_a_request_after_its_execution() -> None:
    model_backend = taught(Capacity(2), 0.01)
    estimate = model_backend.estimate(1, 0, 100.0)
    assert estimate.ends_at == pytest.approx(100.01)
    assert estimate.may_begin


def test_busy_lane_ends_it_after_what_is_under_way() -> None:
    model_backend = taught(Capacity(2), 0.01)
    begin(model_backend, 100.0)
    estimate = model_backend.estimate(1, 0, 100.004)
    assert estimate.ends_at == pytest.approx(100.02)
    assert estimate.may_begin


def test_what_is_overdue_is_expected_to_take_as_long_again() -> None:
    model_backend = taught(Capacity(2), 0.01)
    begin(model_backend, 100.0)
    assert model_backend.free_times(100.5)[0] == pytest.approx(100.99)


def test_request_ahead_does_not_count_as_execution() -> None:
    model_backend = taught(Capacity(3), 0.01)
    first, second, third = (begin(model_backend, 100.0) for _ in range(3))
    end(model_backend, first, 100.01)
    end(model_backend, second, 100.02)
    end(model_backend, third, 100.03)
    assert model_backend.cost.mean_s == pytest.approx(0.01)


def test_instances_run_side_by_side() -> None:
    model_backend = taught(Capacity(4, instances=2), 0.01)
    tickets = [begin(model_backend, 100.0) for _ in range(4)]
    assert model_backend.free_times(100.0)[0] == pytest.approx(100.02)
    for ticket, now in zip(tickets, (100.01, 100.01, 100.02, 100.02), strict=True):
        end(model_backend, ticket, now)
    assert model_backend.cost.mean_s == pytest.approx(0.01)


def test_full_lane_is_closed() -> None:
    model_backend = taught(Capacity(2), 0.01)
    begin(model_backend, 100.0)
    begin(model_backend, 100.0)
    assert not model_backend.estimate(1, 0, 100.0).may_begin


def test_nothing_is_sent_ahead_of_a_long_execution() -> None:
    model_backend = taught(Capacity(1, is_auto=True), 0.1)
    begin(model_backend, 100.0)
    assert not model_backend.estimate(1, 0, 100.0).may_begin
    assert model_backend.estimate(1, 0, 100.1 - LEAD_S + 0.001).may_begin


def test_a_number_is_kept_exactly_however_long_executions_take() -> None:
    model_backend = taught(Capacity(3), 2.0)
    for _ in range(3):
        assert model_backend.estimate(1, 0, 100.0).may_begin
        begin(model_backend, 100.0)
    assert not model_backend.estimate(1, 0, 100.0).may_begin


def test_no_more_instances_count_than_a_number_lets_in() -> None:
    model_backend = taught(Capacity(1, instances=4), 0.1)
    assert (model_backend.instances, model_backend.slots) == (1, 1)
    begin(model_backend, 100.0)
    assert model_backend.free_times(100.0)[0] == pytest.approx(100.1)


def test_as_many_surprises_as_executions_run_side_by_side_are_no_change() -> None:
    model_backend = lane_of(Capacity(1))
    alone = model_backend.cost.surprises
    assert model_backend.stats.usual.surprises == alone
    model_backend.apply(Capacity(4, instances=4))
    assert model_backend.cost.surprises == model_backend.stats.usual.surprises == alone + 3
    model_backend.apply(Capacity(8, instances=8, is_adaptive=True))
    assert model_backend.cost.surprises == alone + 7
    model_backend.apply(Capacity(2, instances=2))
    assert model_backend.cost.surprises == alone + 1
    assert lane_of(Capacity(3, is_auto=True, instances=3)).stats.usual.surprises == alone + 2


def test_unknown_lane_gets_one_request_at_a_time() -> None:
    model_backend = lane_of(Capacity(4))
    assert model_backend.estimate(1, 0, 100.0).may_begin
    begin(model_backend, 100.0)
    assert not model_backend.estimate(1, 0, 100.0).may_begin


def test_automatic_limit_covers_the_turnaround_of_fast_executions() -> None:
    assert taught(Capacity(1, is_auto=True), 0.04).limit == 2
    assert taught(Capacity(1, is_auto=True), 0.005).limit == 6
    assert taught(Capacity(1, is_auto=True), 0.0003).limit == 85


def test_backend_at_its_own_limit_is_closed() -> None:
    model_backend = taught(Capacity(4), 0.01)
    model_backend.backend.max_in_flight = 1
    model_backend.backend.in_flight = 1
    assert not model_backend.estimate(1, 0, 100.0).may_begin


def test_errors_make_a_backend_count_as_slower_for_a_while() -> None:
    model_backend = taught(Capacity(4), 0.01)
    for _ in range(3):
        end(model_backend, begin(model_backend, 100.0), 100.0, Ending.FAILED)
    assert model_backend.estimate(1, 0, 100.0).ends_at == pytest.approx(100.0 + 0.01 * 1.25**3)
    assert model_backend.estimate(1, 0, 130.0).ends_at == pytest.approx(130.01)


def test_cancelled_attempt_teaches_nothing() -> None:
    model_backend = taught(Capacity(4), 0.01)
    end(model_backend, begin(model_backend, 100.0), 100.0001, Ending.NEITHER)
    assert model_backend.cost.mean_s == pytest.approx(0.01)
    assert model_backend.in_flight == 0


def test_requests_of_others_count_less_and_less() -> None:
    model_backend = taught(Capacity(4), 0.01)
    model_backend.external_load = BackendExternalLoad()
    for at, wait_s in ((99.0, 0.0), (100.0, 0.05)):
        model_backend.external_load.on_report(
            model_backend.cost, at, wait_s=wait_s, share=None, device=None
        )
    assert model_backend.estimate(1, 0, 100.0).ends_at == pytest.approx(100.06)
    assert model_backend.estimate(1, 0, 100.03).ends_at == pytest.approx(100.06)
    assert model_backend.estimate(1, 0, 101.0).ends_at == pytest.approx(101.01)


@pytest.mark.parametrize("limit", [Capacity(2), Capacity(16, is_auto=True, max_batch=8)])
def test_good_answers_end_a_penalty(limit: Capacity) -> None:
    model_backend = (BatchingModelBackend if limit.max_batch else ModelBackend)(
        BackendPenalty(make_backend("one")), limit, ModelStats()
    )
    for _ in range(4):
        end(model_backend, begin(model_backend, 100.0), 100.0, Ending.FAILED)
    assert model_backend.penalty.factor_now(100.0) == pytest.approx(1.25**4)
    end(model_backend, begin(model_backend, 100.0), 100.0)
    assert model_backend.penalty.factor_now(100.0) == pytest.approx(1.25**4 / 2)
    for _ in range(3):
        end(model_backend, begin(model_backend, 100.0), 100.0)
    assert model_backend.penalty.factor_now(100.0) == 1.0


def test_what_may_take_any_time_is_not_sent_ahead_as_if_the_ways_were_long() -> None:
    model_backend = lane_of(Capacity(1, is_auto=True))
    for number in range(60):
        now = 90.0 + number
        end(model_backend, begin(model_backend, now), now + (0.9 if number % 4 == 3 else 0.01))
    assert model_backend.lead_s < 0.5
    assert model_backend.limit <= 2


@pytest.mark.parametrize("burst", [4, 5, 8])
def test_answers_that_come_in_bursts_are_not_taken_for_slow_ones(burst: int) -> None:
    model_backend = lane_of(Capacity(1, is_auto=True))
    now = 1.0
    in_flight_by_model = [begin(model_backend, now) for _ in range(burst)]
    for _ in range(400):
        now += 0.0005 * burst
        for ticket in in_flight_by_model:
            end(model_backend, ticket, now)
        in_flight_by_model = [begin(model_backend, now) for _ in range(burst)]
    assert model_backend.cost.mean_s < 0.0015
    assert model_backend.limit >= 18


def test_nothing_is_refused_for_being_much_larger_than_all_that_ran() -> None:
    model_backend = taught(Capacity(1), 0.05)
    for number in range(100):
        size = 600_000 if number % 10 == 0 else 400
        model_backend.cost.learn(0.3 if size > 400 else 0.05, 1, size, 99.0 + number / 100)
    size = 100_000_000
    model_backend.estimate(1, size, 100.0)
    assert model_backend.cost.byte_s * size > 10.0
    most_s = MAX_EXTRAPOLATION * model_backend.cost.mean_s
    assert model_backend.predict(1, size) == pytest.approx(most_s)
    begin, own_s, usual_s = model_backend.least_end(1, size, 100.0)
    assert begin == 100.0
    assert 0.02 < usual_s < own_s < most_s


def test_the_least_that_requests_take_goes_by_the_quickest_recent_execution() -> None:
    model_backend = lane_of(Capacity(1))
    for number in range(20):
        assert model_backend.least_end(1, 0, 100.0) == (0.0, 0.0, 0.0)
        model_backend.cost.learn(0.04 if number == 7 else 0.1, 1, 0, 99.0)
    assert model_backend.least_end(1, 0, 100.0) == pytest.approx((100.0, 0.04, 0.04))
    begin(model_backend, 100.0)
    begin(model_backend, 100.0)
    assert model_backend.least_end(1, 0, 100.01) == pytest.approx((100.08, 0.04, 0.04))
    for _ in range(13):
        model_backend.cost.learn(0.1, 1, 0, 100.0)
    assert model_backend.least_end(1, 0, 100.01)[2] == pytest.approx(0.1, rel=0.02)
    assert model_backend.least_end(1, 0, 200.0) == (0.0, 0.0, 0.0)


def test_only_late_answers_widen_the_margin() -> None:
    model_backend = taught(Capacity(1), 0.1)
    for _ in range(4):
        end(model_backend, begin(model_backend, 100.0), 100.01)
    assert model_backend.margin_s == 0.0
    end(model_backend, begin(model_backend, 100.0), 100.0 + model_backend.cost.mean_s + 0.02)
    assert 0.0 < model_backend.margin_s < 0.02
