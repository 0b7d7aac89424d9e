"""Lanes and pools of one version of a model."""

from __future__ import annotations

from lb.balancing.lanes import Lane
from lb.balancing.lines import Line
from lb.domain.backend import Backend
from lb.domain.schedule import Ending, LaneLimit, Plan, QueueRules, Ticket
from tests.fakes.backends import make_backend, make_backends


def line_of(*, reserved: float = 0.0, instances: int = 1) -> Line:
    default = LaneLimit(instances + 1, instances=instances)
    plan = Plan(limits={}, default=default, rules=QueueRules(reserved=reserved))
    return Line(b"model", b"", plan, {})


def ticket(line: Line, *eligible: Backend) -> Ticket:
    return Ticket(b"model", b"", line.plan, eligible, 0.0)


def test_tickets_with_the_same_backends_share_a_pool() -> None:
    line = line_of()
    one, two = make_backend("one"), make_backend("two")
    pool = line.pool(ticket(line, one, two), 0.0)
    assert line.pool(ticket(line, one, two), 0.0) is pool
    assert line.pool(ticket(line, one), 0.0) is not pool
    assert len(line.lanes) == 2


def test_pools_share_lanes() -> None:
    line = line_of()
    one, two = make_backend("one"), make_backend("two")
    both, alone = line.pool(ticket(line, one, two), 0.0), line.pool(ticket(line, one), 0.0)
    assert alone.lanes[0] is both.lanes[0]


def test_where_it_failed_is_left_out_while_there_is_another() -> None:
    line = line_of()
    one, two = make_backend("one"), make_backend("two")
    again = ticket(line, one, two)
    again.tried = (one,)
    assert [lane.backend for lane in line.pool(again, 0.0).lanes] == [two]
    again.tried = (one, two)
    assert [lane.backend for lane in line.pool(again, 0.0).lanes] == [one, two]


def test_many_different_tuples_are_not_all_remembered() -> None:
    line = line_of()
    backends = make_backends(*[0] * 3)
    for _ in range(1000):
        line.pool(ticket(line, *list(backends)), 0.0)
    assert len(line.pools) == 1
    assert len(line._aliases) <= 64


def low(line: Line) -> Ticket:
    made = ticket(line)
    made.priority = 1
    return made


def begin(line: Line, lane: Lane, made: Ticket) -> None:
    lane.begin(made, 0.0)
    line.began(made, lane, 0.0)


def end(line: Line, lane: Lane, made: Ticket) -> None:
    lane.end(made, 0.0, Ending.NEITHER)
    line.ended(made, lane, 0.0)


def test_part_is_kept_for_the_highest_priority() -> None:
    line = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = line.pool(ticket(line, one, two), 0.0).lanes
    last = low(line)
    for lane, each in ((first, low(line)), (first, low(line)), (second, last)):
        assert not line.is_kept(1)
        begin(line, lane, each)
    assert line.is_kept(1)
    assert not line.is_kept(0)
    end(line, second, last)
    assert not line.is_kept(1)


def test_it_is_kept_beyond_what_the_highest_priority_uses() -> None:
    line = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = line.pool(ticket(line, one, two), 0.0).lanes
    begin(line, first, low(line))
    begin(line, first, ticket(line))
    assert not line.is_kept(1)
    begin(line, second, ticket(line))
    assert line.is_kept(1)


def test_what_goes_ahead_to_a_busy_lane_takes_no_slot() -> None:
    line = line_of(reserved=0.3)
    lanes = line.pool(ticket(line, *(make_backend(name) for name in "abc")), 0.0).lanes
    first, ahead = low(line), low(line)
    begin(line, lanes[0], first)
    begin(line, lanes[0], ahead)
    assert not line.is_kept(1)
    begin(line, lanes[1], low(line))
    end(line, lanes[0], ahead)
    assert line.is_kept(1)
    end(line, lanes[0], first)
    assert not line.is_kept(1)


def test_lower_priorities_are_never_shut_out() -> None:
    line = line_of(reserved=0.9)
    line.pool(ticket(line, make_backend("one")), 0.0)
    assert not line.is_kept(5)


def test_another_plan_changes_the_limits() -> None:
    line = line_of()
    one = make_backend("one")
    line.pool(ticket(line, one), 0.0)
    line.apply(Plan(limits={one: LaneLimit(7)}))
    assert line.lanes[one].limit == 7
