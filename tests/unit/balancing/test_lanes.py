"""What is under way at one backend, and when something more would end."""

from __future__ import annotations

import pytest

from lb.balancing.batches import BatchLane
from lb.balancing.lanes import LEAD_S, Lane
from lb.balancing.others import Others
from lb.balancing.site import Site
from lb.balancing.tally import Tally
from lb.domain.schedule import Ending, LaneLimit, Plan, Ticket
from tests.fakes.backends import make_backend

PLAN = Plan(limits={})


def lane_of(limit: LaneLimit) -> Lane:
    return Lane(Site(make_backend("one")), limit, Tally())


def begin(lane: Lane, now: float) -> Ticket:
    ticket = Ticket(b"model", b"", PLAN, (lane.backend,), now)
    lane.look(1, 0, now)
    ticket.began_at = now
    lane.begin(ticket, now)
    lane.backend.in_flight += 1
    return ticket


def end(lane: Lane, ticket: Ticket, now: float, ending: Ending = Ending.GOOD) -> None:
    lane.backend.in_flight -= 1
    lane.end(ticket, now, ending)


def taught(limit: LaneLimit, took_s: float) -> Lane:
    """A lane that has learnt how long an execution takes; the time is 100."""
    lane = lane_of(limit)
    for number in range(30):
        now = 90.0 + number / 10
        end(lane, begin(lane, now), now + took_s)
    return lane


def test_idle_lane_ends_a_request_after_its_execution() -> None:
    lane = taught(LaneLimit(2), 0.01)
    assert lane.look(1, 0, 100.0) == pytest.approx(100.01)
    assert lane.is_open


def test_busy_lane_ends_it_after_what_is_under_way() -> None:
    lane = taught(LaneLimit(2), 0.01)
    begin(lane, 100.0)
    assert lane.look(1, 0, 100.004) == pytest.approx(100.02)
    assert lane.is_open


def test_what_is_overdue_is_expected_to_take_as_long_again() -> None:
    lane = taught(LaneLimit(2), 0.01)
    begin(lane, 100.0)
    assert lane.free_at(100.5) == pytest.approx(100.99)


def test_request_ahead_does_not_count_as_execution() -> None:
    lane = taught(LaneLimit(3), 0.01)
    first, second, third = (begin(lane, 100.0) for _ in range(3))
    end(lane, first, 100.01)
    end(lane, second, 100.02)
    end(lane, third, 100.03)
    assert lane.cost.mean_s == pytest.approx(0.01)


def test_instances_run_side_by_side() -> None:
    lane = taught(LaneLimit(4, instances=2), 0.01)
    tickets = [begin(lane, 100.0) for _ in range(4)]
    assert lane.free_at(100.0) == pytest.approx(100.02)
    for ticket, now in zip(tickets, (100.01, 100.01, 100.02, 100.02), strict=True):
        end(lane, ticket, now)
    assert lane.cost.mean_s == pytest.approx(0.01)


def test_full_lane_is_closed() -> None:
    lane = taught(LaneLimit(2), 0.01)
    begin(lane, 100.0)
    begin(lane, 100.0)
    lane.look(1, 0, 100.0)
    assert not lane.is_open


def test_nothing_is_sent_ahead_of_a_long_execution() -> None:
    lane = taught(LaneLimit(1, is_auto=True), 0.1)
    begin(lane, 100.0)
    lane.look(1, 0, 100.0)
    assert not lane.is_open
    lane.look(1, 0, 100.1 - LEAD_S + 0.001)
    assert lane.is_open


def test_a_number_is_kept_exactly_however_long_executions_take() -> None:
    lane = taught(LaneLimit(3), 2.0)
    for _ in range(3):
        lane.look(1, 0, 100.0)
        assert lane.is_open
        begin(lane, 100.0)
    lane.look(1, 0, 100.0)
    assert not lane.is_open


def test_no_more_instances_count_than_a_number_lets_in() -> None:
    lane = taught(LaneLimit(1, instances=4), 0.1)
    assert (lane.instances, lane.slots) == (1, 1)
    begin(lane, 100.0)
    assert lane.free_at(100.0) == pytest.approx(100.1)


def test_as_many_surprises_as_executions_run_side_by_side_are_no_change() -> None:
    lane = lane_of(LaneLimit(1))
    alone = lane.cost.surprises
    assert lane.tally.usual.surprises == alone
    lane.apply(LaneLimit(4, instances=4))
    assert lane.cost.surprises == lane.tally.usual.surprises == alone + 3
    lane.apply(LaneLimit(8, instances=8, is_adaptive=True))
    assert lane.cost.surprises == alone + 7
    lane.apply(LaneLimit(2, instances=2))
    assert lane.cost.surprises == alone + 1
    assert lane_of(LaneLimit(3, is_auto=True, instances=3)).tally.usual.surprises == alone + 2


def test_unknown_lane_gets_one_request_at_a_time() -> None:
    lane = lane_of(LaneLimit(4))
    lane.look(1, 0, 100.0)
    assert lane.is_open
    begin(lane, 100.0)
    lane.look(1, 0, 100.0)
    assert not lane.is_open


def test_automatic_limit_covers_the_turnaround_of_fast_executions() -> None:
    assert taught(LaneLimit(1, is_auto=True), 0.04).limit == 2
    assert taught(LaneLimit(1, is_auto=True), 0.005).limit == 6
    assert taught(LaneLimit(1, is_auto=True), 0.0003).limit == 85


def test_backend_at_its_own_limit_is_closed() -> None:
    lane = taught(LaneLimit(4), 0.01)
    lane.backend.max_in_flight = 1
    lane.backend.in_flight = 1
    lane.look(1, 0, 100.0)
    assert not lane.is_open


def test_errors_make_a_backend_count_as_slower_for_a_while() -> None:
    lane = taught(LaneLimit(4), 0.01)
    for _ in range(3):
        end(lane, begin(lane, 100.0), 100.0, Ending.FAILED)
    assert lane.look(1, 0, 100.0) == pytest.approx(100.0 + 0.01 * 1.5**3)
    assert lane.look(1, 0, 130.0) == pytest.approx(130.01)


def test_cancelled_attempt_teaches_nothing() -> None:
    lane = taught(LaneLimit(4), 0.01)
    end(lane, begin(lane, 100.0), 100.0001, Ending.NEITHER)
    assert lane.cost.mean_s == pytest.approx(0.01)
    assert lane.in_flight == 0


def test_requests_of_others_count_less_and_less() -> None:
    lane = taught(LaneLimit(4), 0.01)
    lane.others = Others()
    for at, wait_s in ((99.0, 0.0), (100.0, 0.05)):
        lane.others.told(lane.cost, at, wait_s=wait_s, share=None, device=None)
    assert lane.look(1, 0, 100.0) == pytest.approx(100.06)
    assert lane.look(1, 0, 100.03) == pytest.approx(100.06)
    assert lane.look(1, 0, 101.0) == pytest.approx(101.01)


@pytest.mark.parametrize("limit", [LaneLimit(2), LaneLimit(16, is_auto=True, max_batch=8)])
def test_good_answers_end_a_penalty(limit: LaneLimit) -> None:
    lane = (BatchLane if limit.max_batch else Lane)(Site(make_backend("one")), limit, Tally())
    for _ in range(4):
        end(lane, begin(lane, 100.0), 100.0, Ending.FAILED)
    assert lane.site.penalty_now(100.0) == pytest.approx(1.5**4)
    end(lane, begin(lane, 100.0), 100.0)
    assert lane.site.penalty_now(100.0) == pytest.approx(1.5**4 / 2)
    for _ in range(3):
        end(lane, begin(lane, 100.0), 100.0)
    assert lane.site.penalty_now(100.0) == 1.0


def test_what_may_take_any_time_is_not_sent_ahead_as_if_the_ways_were_long() -> None:
    lane = lane_of(LaneLimit(1, is_auto=True))
    for number in range(60):
        now = 90.0 + number
        end(lane, begin(lane, now), now + (0.9 if number % 4 == 3 else 0.01))
    assert lane.lead_s < 0.5
    assert lane.limit <= 2


@pytest.mark.parametrize("burst", [4, 5, 8])
def test_answers_that_come_in_bursts_are_not_taken_for_slow_ones(burst: int) -> None:
    lane = lane_of(LaneLimit(1, is_auto=True))
    now = 1.0
    under_way = [begin(lane, now) for _ in range(burst)]
    for _ in range(400):
        now += 0.0005 * burst
        for ticket in under_way:
            end(lane, ticket, now)
        under_way = [begin(lane, now) for _ in range(burst)]
    assert lane.cost.mean_s < 0.0015
    assert lane.limit >= 18


def test_nothing_is_refused_for_being_much_larger_than_all_that_ran() -> None:
    lane = taught(LaneLimit(1), 0.05)
    for number in range(100):
        size = 600_000 if number % 10 == 0 else 400
        lane.cost.learn(0.3 if size > 400 else 0.05, 1, size, 99.0 + number / 100)
    size = 100_000_000
    lane.look(1, size, 100.0)
    assert lane.cost.byte_s * size > 10.0
    assert lane.predict(1, size) < 1.0
    begin, own_s, usual_s = lane.least_end(1, size, 100.0)
    assert begin == 100.0
    assert 0.02 < usual_s < own_s < 1.0


def test_the_least_that_requests_take_goes_by_the_quickest_recent_execution() -> None:
    lane = lane_of(LaneLimit(1))
    for number in range(20):
        assert lane.least_end(1, 0, 100.0) == (0.0, 0.0, 0.0)
        lane.cost.learn(0.04 if number == 7 else 0.1, 1, 0, 99.0)
    assert lane.least_end(1, 0, 100.0) == pytest.approx((100.0, 0.04, 0.04))
    begin(lane, 100.0)
    begin(lane, 100.0)
    assert lane.least_end(1, 0, 100.01) == pytest.approx((100.08, 0.04, 0.04))
    for _ in range(13):
        lane.cost.learn(0.1, 1, 0, 100.0)
    assert lane.least_end(1, 0, 100.01)[2] == pytest.approx(0.1, rel=0.02)
    assert lane.least_end(1, 0, 200.0) == (0.0, 0.0, 0.0)


def test_only_late_answers_widen_the_margin() -> None:
    lane = taught(LaneLimit(1), 0.1)
    for _ in range(4):
        end(lane, begin(lane, 100.0), 100.01)
    assert lane.margin_s == 0.0
    end(lane, begin(lane, 100.0), 100.0 + lane.cost.mean_s + 0.02)
    assert 0.0 < lane.margin_s < 0.02
