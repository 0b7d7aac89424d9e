"""The best of very many lanes, without looking at all."""

from __future__ import annotations

from random import Random

import pytest

from lb.balancing.batches import BatchLane
from lb.balancing.index import LARGE, LaneIndex
from lb.balancing.lanes import Lane
from lb.balancing.shared import SharedLane
from lb.balancing.site import Site
from lb.balancing.tally import Tally
from lb.domain.schedule import Ending, LaneLimit, Plan, Ticket
from tests.fakes.backends import make_backend

PLAN = Plan(limits={})


def lanes_of(count: int, *, limit: int = 2) -> list[Lane]:
    """Every third is four times as slow."""
    tally = Tally()
    lanes = [
        Lane(Site(make_backend(f"b{number}")), LaneLimit(limit), tally) for number in range(count)
    ]
    for number, lane in enumerate(lanes):
        for _ in range(4):
            lane.learn(0.04 if number % 3 == 2 else 0.01, 1, 0, 99.0)
    return lanes


def begin(index: LaneIndex, lane: Lane, now: float) -> Ticket:
    ticket = Ticket(b"model", b"", PLAN, (lane.backend,), now)
    lane.look(1, 0, now)
    ticket.began_at = now
    lane.begin(ticket, now)
    index.changed(lane, now)
    return ticket


def test_candidates_are_the_best_idle_busy_and_full_lane() -> None:
    lanes = lanes_of(30)
    index = LaneIndex(lanes, 100.0)
    for lane in lanes[:20]:
        begin(index, lane, 100.0)
    for lane in lanes[:10]:
        begin(index, lane, 100.002)
    found = index.candidates(100.003, None)
    assert found is not None
    idle, busy, full = found
    assert idle in lanes[20:]
    assert busy in lanes[10:20]
    assert full in lanes[:10]
    assert all(lane.usual_s(100.0) < 0.02 for lane in found)


def test_they_are_as_good_as_those_that_a_scan_finds() -> None:
    rng = Random(1)
    lanes = lanes_of(40)
    index = LaneIndex(lanes, 100.0)
    under_way: list[tuple[Lane, Ticket]] = []
    now = 100.0
    for _ in range(3000):
        now += rng.expovariate(3000.0)
        if under_way and rng.random() < 0.49:
            lane, ticket = under_way.pop(rng.randrange(len(under_way)))
            lane.end(ticket, now, Ending.NEITHER)
            index.changed(lane, now)
        found = index.candidates(now, None) or lanes
        best = min(lane.look(1, 0, now) for lane in lanes)
        assert min(lane.look(1, 0, now) for lane in found) - now <= (best - now) * 1.1 + 1e-9
        open_lanes = [lane for lane in found if lane.look(1, 0, now) and lane.is_open]
        if open_lanes:
            chosen = rng.choice(open_lanes)
            under_way.append((chosen, begin(index, chosen, now)))


def test_only_lanes_that_may_be_given_are() -> None:
    lanes = lanes_of(30)
    index = LaneIndex(lanes, 100.0)
    among = frozenset(lanes[3:])
    assert index.candidates(100.0, among) is not None
    for _ in range(5):
        found = index.candidates(100.0, among)
        assert found
        assert set(found) <= among


def test_where_hardly_any_may_be_given_all_are_to_be_looked_at() -> None:
    lanes = lanes_of(30)
    index = LaneIndex(lanes, 100.0)
    assert index.candidates(100.0, frozenset(lanes[20:21])) is None


def test_backend_at_its_limit_is_passed_over() -> None:
    lanes = lanes_of(30)
    index = LaneIndex(lanes, 100.0)
    first = index.candidates(100.0, None)
    assert first
    first[0].backend.max_in_flight = 1
    first[0].backend.in_flight = 1
    second = index.candidates(100.0, None)
    assert second
    assert second[0] is not first[0]


def test_slow_start_is_noticed_without_an_event() -> None:
    lanes = lanes_of(LARGE + 1)
    for lane in lanes[:-1]:
        lane.backend.set_share(0.2)
    lanes[-1].backend.set_share(0.01)
    index = LaneIndex(lanes, 100.0)
    for lane in lanes:
        lane.last_pick = 1
    lanes[-1].last_pick = 0
    lanes[-1].backend.set_share(1.0)
    found = index.candidates(102.0, None)
    assert found == [lanes[-1]]


def test_void_entries_do_not_pile_up() -> None:
    lanes = lanes_of(20)
    index = LaneIndex(lanes, 100.0)
    for _ in range(2000):
        index.changed(lanes[0], 100.0)
    assert len(index._idle) <= 4 * len(lanes) + 1


BATCHES = LaneLimit(16, is_auto=True, instances=2, max_batch=8)
ONE_BY_ONE = LaneLimit(2, is_auto=True, instances=2)
SIDE_BY_SIDE = LaneLimit(is_shared=True)


@pytest.mark.parametrize(
    ("kind", "limit"), [(Lane, ONE_BY_ONE), (BatchLane, BATCHES), (SharedLane, SIDE_BY_SIDE)]
)
def test_newcomer_that_takes_no_more_does_not_hide_the_others(
    kind: type[Lane], limit: LaneLimit
) -> None:
    tally = Tally()
    lanes = [kind(Site(make_backend(f"b{number}")), limit, tally) for number in range(LARGE + 2)]
    *old, new = lanes
    for number, lane in enumerate(old):
        lane.last_pick = 100 + number
        for _ in range(4):
            lane.learn(0.01, 1, 0, 99.0)
    index = LaneIndex(lanes, 100.0)
    new.look(1, 0, 100.0)
    while new.is_open and new.in_flight < limit.instances:
        begin(index, new, 100.0)
        new.look(1, 0, 100.0)
    for lane in old:
        begin(index, lane, 100.0)
    for now in (100.001, 100.02, 100.5, 103.0):
        found = index.candidates(now, None) or lanes
        for lane in found:
            lane.look(1, 0, now)
        assert any(lane.is_open for lane in found)


def test_newcomer_that_is_not_known_is_no_free_one_among_those_that_have_room() -> None:
    lanes = lanes_of(LARGE + 1, limit=3)
    index = LaneIndex(lanes, 100.0)
    for lane in lanes:
        begin(index, lane, 100.0)
    lanes[0].forget()
    index.outdated()
    found = index.candidates(100.0001, None)
    assert found
    busy, full = found
    assert full is lanes[0]
    busy.look(1, 0, 100.0001)
    assert busy.is_open


def test_number_below_the_instances_is_a_limit_like_others() -> None:
    tally = Tally()
    limit = LaneLimit(1, instances=4)
    lanes = [Lane(Site(make_backend(f"b{number}")), limit, tally) for number in range(LARGE + 1)]
    index = LaneIndex(lanes, 100.0)
    for lane in lanes:
        begin(index, lane, 100.0)
    found = index.candidates(100.001, None)
    assert found
    assert len(found) == 1
