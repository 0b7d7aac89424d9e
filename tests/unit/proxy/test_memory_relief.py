"""When room is made in the memory budget, and how often that is tried."""

from __future__ import annotations

import logging

import pytest

from lb.net.iteration import IterationBudget
from lb.proxy.memory_relief import MemoryRelief
from lb.wire.memory_budget import MemoryBudget, Payer
from tests.fakes.clock import FakeLoop

SIZE = 20


class Bench:
    """A memory budget of 8,000 bytes, and what makes room in it."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.memory_budget = MemoryBudget(8000)
        iteration = IterationBudget(self.loop)
        self.relief = MemoryRelief(self.memory_budget, iteration, self.loop.wheel(), lambda: None)
        self.counted = 0
        """How often holders were looked at."""

    def begin(self, client: object, connection: int = 1, size: int = SIZE) -> Request:
        """Begin a request that holds bytes."""
        request = Request(self, client, connection)
        assert self.memory_budget.take(request, size)
        return request

    def run(self) -> None:
        """Have some iterations of the event loop."""
        for _ in range(100):
            self.loop.turn()


class Request:
    """Holds bytes; once it is cut, that is a refusal too, as of a call."""

    def __init__(self, bench: Bench, client: object, connection: int) -> None:
        self.held = 0
        self.is_cut = False
        self.client_key = client
        self.client_connection = connection
        self._bench = bench

    def evict(self) -> None:
        self.is_cut = True
        self._bench.memory_budget.release(self, self.held)
        self._bench.relief.on_refusal(self)

    @property
    def charged_to(self) -> Payer:
        self._bench.counted += 1
        return self


def test_the_log_names_who_had_to_give_way(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    many = [bench.begin(0x20010DB8_00000000) for _ in range(350)]
    with caplog.at_level(logging.WARNING):
        bench.relief.on_refusal(Request(bench, None, 2))
        bench.run()
    assert sum(each.is_cut for each in many) == 50
    (record,) = caplog.records
    assert record.message == "clients hold too much memory"
    assert vars(record)["clients"] == ["2001:db8::/64"]
    assert (vars(record)["cut"], vars(record)["bytes"]) == (50, 1000)


def test_requests_that_were_cut_push_out_nobody() -> None:
    bench = Bench()
    first = [bench.begin("one", 1) for _ in range(200)]
    second = [bench.begin("one", 2) for _ in range(150)]
    bench.relief.on_refusal(Request(bench, "other", 3))
    bench.run()
    assert sum(each.is_cut for each in first + second) == 50
    counted = bench.counted
    bench.loop.advance(5)
    bench.run()
    assert bench.counted == counted


def test_holders_are_not_counted_for_each_refusal() -> None:
    bench = Bench()
    for number in range(350):
        bench.begin(number)
    for _ in range(10):
        bench.relief.on_refusal(Request(bench, "refused", 1))
        bench.run()
    assert bench.counted == 350
    bench.loop.advance(0.5)
    bench.run()
    assert bench.counted == 700, "once more, for those that were refused meanwhile"
    bench.loop.advance(5)
    bench.run()
    assert bench.counted == 700


def test_the_largest_give_way_once_memory_was_short_for_long() -> None:
    bench = Bench()
    requests = [bench.begin(number) for number in range(350)]
    bench.relief.on_refusal(Request(bench, "refused", 1))
    bench.loop.advance(25)
    assert not any(each.is_cut for each in requests)
    bench.loop.advance(10)
    assert sum(each.is_cut for each in requests) == 50
    assert bench.memory_budget.held == bench.memory_budget.roomy_at


@pytest.mark.parametrize("clients", [1, 10])
def test_single_large_requests_give_way_once_memory_was_short_for_a_while(clients: int) -> None:
    """Ten connections, of one client or of as many, with a request each."""
    bench = Bench()
    requests = [bench.begin(number % clients, number, 700) for number in range(10)]
    for second in range(1, 8):
        bench.relief.on_refusal(Request(bench, "refused" if clients > 1 else 0, 99))
        bench.run()
        assert sum(each.is_cut for each in requests) == (2 if second > 6 else 0)
        bench.loop.advance(1.0)
    assert bench.memory_budget.held <= bench.memory_budget.roomy_at


def test_single_large_requests_stay_while_memory_is_short_now_and_then() -> None:
    bench = Bench()
    requests = [bench.begin(number, number, 690) for number in range(10)]
    for _ in range(10):
        last = bench.begin("last", 11, 100)
        bench.relief.on_refusal(Request(bench, "refused", 99))
        bench.run()
        bench.loop.advance(2.0)
        bench.memory_budget.release(last, last.held)
        bench.loop.advance(1.0)
    assert not any(each.is_cut for each in requests)
