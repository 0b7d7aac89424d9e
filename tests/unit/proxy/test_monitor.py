"""When checks are made, of how much at once, and when the monitor rests."""

from __future__ import annotations

from math import inf

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation, OperationKind
from lb.net.iteration import IterationBudget
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.monitor import Monitor
from tests.fakes.http2_connections import PaperRelay


class Counting:
    """A check that notes when it was made, and of what."""

    def __init__(self, interval_s: float, subjects: int = 0) -> None:
        self.pause_s = interval_s
        self.subjects = subjects
        self.may_rest = True
        self.begun: list[float] = []
        self.ended = 0
        self.checked: list[int] = []
        self.broken: set[int] = set()
        self.is_end_broken = False

    def interval_s(self, _now: float) -> float:
        return self.pause_s

    def begin(self, now: float) -> range:
        self.begun.append(now)
        return range(self.subjects)

    def check(self, subject: int, _now: float) -> None:
        self.checked.append(subject)
        if subject in self.broken:
            raise RuntimeError("a bug")

    def end(self) -> None:
        self.ended += 1
        if self.is_end_broken:
            raise RuntimeError("a bug")


class Bench:
    """A monitor, and requests that are opened and closed by hand."""

    def __init__(self, *checks: Counting) -> None:
        relay = PaperRelay()
        relay.monitor.close()
        self.loop = relay.loop
        self.started_at = self.loop.time()
        self.dispatcher = relay.dispatcher
        self.iteration = IterationBudget(self.loop)
        self.monitor = Monitor(self.loop, self.iteration, self.dispatcher, checks)

    def opens(self) -> Exchange:
        """A request begins, and is placed."""
        operation = Operation("infer", OperationKind.INFERENCE)
        exchange = Exchange(AppProtocol.GRPC, operation, "", self.loop.time())
        self.dispatcher.accounts.begin()
        self.dispatcher.placer.place(exchange, Attempt)
        return exchange

    def times(self, check: Counting) -> list[float]:
        """When scans began, in seconds since the start."""
        return [round(at - self.started_at, 3) for at in check.begun]


async def test_each_check_is_made_at_its_own_interval_by_one_timer() -> None:
    often, seldom = Counting(0.005), Counting(1.0)
    bench = Bench(often, seldom)
    bench.opens()
    assert bench.loop.pending == 1
    bench.loop.advance(2.0004)
    assert len(often.begun) == 400
    assert bench.times(seldom) == [1.0, 2.0]
    assert bench.loop.pending == 1


async def test_it_rests_while_no_request_is_open() -> None:
    check = Counting(0.1)
    bench = Bench(check)
    assert bench.loop.pending == 0
    bench.loop.advance(10.0)
    exchange = bench.opens()
    bench.loop.advance(0.25)
    assert bench.times(check) == [10.1, 10.2]
    bench.dispatcher.accounts.finish(exchange)
    bench.loop.advance(10.0)
    assert bench.times(check) == [10.1, 10.2, 10.3], "it is told once that nothing is left"
    assert bench.loop.pending == 0
    bench.opens()
    bench.loop.advance(0.11)
    assert len(check.begun) == 4


async def test_other_intervals_do_not_spare_the_last_scan() -> None:
    check = Counting(0.1)
    bench = Bench(check)
    bench.dispatcher.accounts.finish(bench.opens())
    bench.monitor.wake()
    bench.loop.advance(10.0)
    assert bench.times(check) == [0.1]
    assert bench.loop.pending == 0


async def test_a_check_that_has_something_left_is_made_on() -> None:
    lasting, other = Counting(1.0), Counting(0.1)
    bench = Bench(lasting, other)
    exchange = bench.opens()
    lasting.may_rest = False
    bench.dispatcher.accounts.finish(exchange)
    bench.loop.advance(5.05)
    assert (len(lasting.begun), len(other.begun)) == (5, 1)
    bench.opens()
    bench.loop.advance(0.16)
    assert len(other.begun) == 2, "the request woke it at once"
    lasting.may_rest = True


async def test_what_is_off_is_not_made_before_it_is_on() -> None:
    check = Counting(inf)
    bench = Bench(check)
    bench.opens()
    bench.loop.advance(5.0)
    assert bench.loop.pending == 0
    check.pause_s = 0.1
    bench.monitor.wake()
    bench.loop.advance(0.11)
    assert bench.times(check) == [5.1]


async def test_very_many_are_checked_some_in_each_iteration_of_the_loop() -> None:
    many, few = Counting(1.0, subjects=1000), Counting(1.0, subjects=3)
    bench = Bench(many, few)
    bench.opens()
    bench.loop.stall(1.0)
    seen = []
    while many.ended == 0:
        bench.loop.turn()
        seen.append(len(many.checked))
    assert max(now - before for before, now in zip([0, *seen], seen, strict=False)) == 200
    assert many.checked == list(range(1000))
    assert few.checked == [0, 1, 2]
    assert bench.loop.pending == 1


async def test_it_goes_on_after_costly_work_that_waits() -> None:
    """Its share of an iteration is bounded, and so is that of all others."""
    check = Counting(1.0, subjects=300)
    bench = Bench(check)
    bench.opens()
    bench.iteration.spend(10_000)
    order: list[int] = []
    bench.iteration.later(lambda: order.append(len(check.checked)))
    bench.loop.advance(1.01)
    assert (order, len(check.checked)) == ([0], 300)


async def test_a_scan_that_is_under_way_is_not_begun_again() -> None:
    check = Counting(0.005, subjects=1000)
    bench = Bench(check)
    bench.opens()
    bench.loop.stall(0.005)
    bench.loop.turn()
    bench.loop.stall(1.0)
    bench.monitor.wake()
    bench.loop.turn()
    bench.loop.turn()
    assert (len(check.begun), check.ended) == (1, 0)


async def test_a_mistake_with_one_ends_nothing_else() -> None:
    check, other = Counting(1.0, subjects=5), Counting(1.0, subjects=1)
    check.broken = {1, 3}
    bench = Bench(check, other)
    bench.opens()
    bench.loop.advance(2.01)
    assert check.checked == [0, 1, 2, 3, 4] * 2
    assert (len(bench.loop.errors), len(other.checked)) == (4, 2)


async def test_a_closed_monitor_checks_nothing() -> None:
    check = Counting(1.0, subjects=1000)
    bench = Bench(check)
    bench.opens()
    bench.loop.stall(1.0)
    bench.loop.turn()
    bench.monitor.close()
    bench.opens()
    bench.loop.advance(5.0)
    assert (len(check.checked), bench.loop.pending) == (200, 0)


async def test_a_mistake_at_the_end_of_a_scan_ends_nothing_else() -> None:
    check, other = Counting(1.0), Counting(1.0)
    check.is_end_broken = True
    bench = Bench(check, other)
    bench.opens()
    bench.loop.advance(2.01)
    assert (len(check.begun), len(other.begun), len(bench.loop.errors)) == (2, 2, 2)
