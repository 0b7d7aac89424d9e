"""Lanes and pools of one version of a model."""

from __future__ import annotations

from itertools import combinations

from lb.balancing.batches import BatchLane
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


def going_again(line: Line, backends: tuple[Backend, ...], *tried: Backend) -> Ticket:
    made = Ticket(b"model", b"", line.plan, backends, 0.0)
    made.tried = tried
    return made


def test_pools_of_requests_that_go_again_are_not_kept_for_ever() -> None:
    line = line_of()
    backends = make_backends(*[0] * 40)
    first = line.pool(going_again(line, backends), 0.0)
    for pair in combinations(backends, 2):
        pool = line.pool(going_again(line, backends, *pair), 0.0)
        assert len(pool.lanes) == 38
        assert not {lane.backend for lane in pool.lanes} & set(pair)
    assert len(line.pools) <= 256
    assert len(line._aliases) <= 64
    again = line.pool(going_again(line, backends), 0.0)
    assert again.lanes == first.lanes
    assert line.pool(going_again(line, backends), 0.0) is again


def test_pools_in_which_somebody_waits_are_kept() -> None:
    line = line_of()
    backends = make_backends(*[0] * 40)
    waiting = going_again(line, backends, backends[0], backends[1])
    waiting.number, waiting.work_s = 1, 0.01
    pool = line.pool(waiting, 0.0)
    pool.queue.add(waiting)
    for pair in combinations(backends[2:], 2):
        line.pool(going_again(line, backends, *pair), 0.0)
    assert line.pool(waiting, 0.0) is pool


def test_new_pool_changes_nothing_of_the_others_but_where_lanes_are_new() -> None:
    line = line_of()
    backends = make_backends(*[0] * 20)
    line.pool(going_again(line, backends), 0.0)
    pool = line.pool(going_again(line, backends, backends[0]), 0.0)
    index, among = pool.index, pool._among
    assert index is not None
    assert line.pool(going_again(line, backends, backends[1]), 0.0).index is index
    assert pool.index is index
    assert pool._among is among
    more = (*backends, make_backend("more"))
    assert line.pool(going_again(line, more), 0.0).index is pool.index
    assert pool.index is not index


def test_pools_are_found_by_what_waits_when_lanes_become_of_another_kind() -> None:
    line = line_of()
    backends = make_backends(*[0] * 20)
    made = going_again(line, backends)
    pool = line.pool(made, 0.0)
    some = line.pool(going_again(line, backends, backends[0]), 0.0)
    line.apply(Plan(limits={}, default=LaneLimit(8, max_batch=8)), 0.0)
    assert line.pool(made, 0.0) is pool
    assert pool.index is some.index is line.index
    assert {type(lane) for lane in (*pool.lanes, *some.lanes)} == {BatchLane}
    assert pool.lanes[1:] == some.lanes
    assert pool.choose(1, 0, 0.0) in pool.lanes
    assert some.choose(1, 0, 0.0) in some.lanes


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


def test_what_is_kept_follows_a_reload_while_requests_are_under_way() -> None:
    line = line_of(instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = line.pool(ticket(line, one, two), 0.0).lanes
    under_way = [low(line), low(line), low(line)]
    for lane, each in zip((first, first, second), under_way, strict=True):
        begin(line, lane, each)
    line.apply(line_of(reserved=0.25, instances=2).plan, 0.0)
    assert line.is_kept(1)
    end(line, first, under_way[0])
    assert not line.is_kept(1)


def test_lanes_that_no_pool_uses_have_nothing_that_could_be_kept() -> None:
    line = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    _, gone = line.pool(ticket(line, one, two), 0.0).lanes
    late = low(line)
    begin(line, gone, late)
    line.restart()
    (left,) = line.pool(ticket(line, one), 0.0).lanes
    assert not line.is_kept(1)
    begin(line, left, low(line))
    assert line.is_kept(1)
    end(line, gone, late)
    assert line.is_kept(1)
    line.pool(ticket(line, two, one), 0.0)
    assert not line.is_kept(1)


def test_lower_priorities_are_never_shut_out() -> None:
    line = line_of(reserved=0.9)
    line.pool(ticket(line, make_backend("one")), 0.0)
    assert not line.is_kept(5)


def test_another_plan_changes_the_limits() -> None:
    line = line_of()
    one = make_backend("one")
    line.pool(ticket(line, one), 0.0)
    line.apply(Plan(limits={one: LaneLimit(7)}), 0.0)
    assert line.lanes[one].limit == 7
