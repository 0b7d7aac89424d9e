"""What one upstream stream is at work on."""

from __future__ import annotations

import pytest

from lb.balancing.habits import StepCost
from lb.balancing.schedule import QueueScheduler
from lb.domain.pool import PoolRef
from lb.domain.schedule import LaneLimit, Plan, Ticket
from lb.proxy.dispatch import Dispatcher
from lb.proxy.http2.stream_work import StepUnderway, Underway
from lb.proxy.queue import Queue
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import frame_message
from lb.wire.ledger import Ledger
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import Finished, Outcomes, snapshot_of

PLAN = Plan(limits={}, default=LaneLimit(1, is_auto=True))
NOW = 50.0
GOOD, ERROR = frame_message(b"\x12\x00"), frame_message(b"\x0a\x02no")


class Bench:
    """One backend, and a queue that nobody waits in."""

    def __init__(self) -> None:
        self.backend = make_backend()
        self.loop = FakeLoop()
        dispatcher = Dispatcher(
            PoolRef(snapshot_of((self.backend,))),
            Outcomes(),
            Finished(),
            clock=self.loop.time,
            ledger=Ledger(1000),
            max_attempts=1,
        )
        self.queue: Queue = dispatcher.queue

    def ticket(self) -> Ticket:
        return Ticket(b"m", b"", PLAN, (self.backend,), NOW)

    @property
    def lanes(self) -> list[tuple[int, int]]:
        """Requests under way, and how many taught."""
        assert isinstance(self.queue.scheduler, QueueScheduler)
        return [(lane.in_flight, lane.learnt) for lane in self.queue.scheduler.lanes()]


def test_answers_belong_to_requests_in_order() -> None:
    bench, cost = Bench(), StepCost()
    underway = Underway(bench.queue, before=1)
    underway.begin(StepUnderway(cost, NOW), bench.backend, NOW)
    underway.begin(None, bench.backend, NOW)
    underway.begin(bench.ticket(), bench.backend, NOW)
    assert (len(underway), bench.lanes) == (4, [(1, 0)])
    underway.answered(1, NOW + 0.5, is_good=True)  # of the one before
    assert cost.count == 0
    underway.answered(1, NOW + 1.0, is_good=True)
    assert cost.mean_s == pytest.approx(1.0)
    underway.answered(2, NOW + 2.0, is_good=True)
    assert (len(underway), bench.lanes) == (0, [(0, 1)])
    underway.answered(1, NOW + 3.0, is_good=True)  # more than there were requests


def test_errors_teach_nothing() -> None:
    bench, cost = Bench(), StepCost()
    underway = Underway(bench.queue)
    underway.begin(StepUnderway(cost, NOW), bench.backend, NOW)
    underway.begin(bench.ticket(), bench.backend, NOW)
    underway.answered(2, NOW + 1.0, is_good=False)
    assert cost.count == 0
    assert bench.lanes == [(0, 0)]


@pytest.mark.parametrize("size", [1, 3, 6, 7, 100])
def test_answers_are_counted_however_they_are_cut(size: int) -> None:
    bench = Bench()
    underway = Underway(bench.queue)
    for _ in range(3):
        underway.begin(bench.ticket(), bench.backend, NOW)
    stream = GOOD + ERROR + GOOD
    left = []
    for at in range(0, len(stream), size):
        underway.arrived(stream[at : at + size], NOW + 1.0)
        left.append(len(underway))
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert bench.lanes[0][0] == 0
    if size > len(ERROR):
        assert bench.lanes == [(0, 2)]


def test_an_answer_that_had_begun_ends() -> None:
    bench = Bench()
    underway = Underway(bench.queue, before=1)
    underway.begin(bench.ticket(), bench.backend, NOW)
    underway.follow(MessageCutter(rest=4))
    underway.arrived(b"tail" + GOOD[:3], NOW)
    assert len(underway) == 1
    underway.arrived(GOOD[3:], NOW)
    assert bench.lanes == [(0, 1)]


def test_what_is_closed_is_over_and_teaches_nothing() -> None:
    bench, cost = Bench(), StepCost()
    underway = Underway(bench.queue)
    underway.begin(bench.ticket(), bench.backend, NOW)
    underway.begin(StepUnderway(cost, NOW), bench.backend, NOW)
    underway.close(NOW + 1.0)
    underway.close(NOW + 1.0)
    assert (len(underway), bench.lanes, cost.count) == (0, [(0, 0)], 0)
