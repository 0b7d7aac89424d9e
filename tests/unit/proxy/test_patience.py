"""Attempts that take too long: found in time, once, and only where that was asked for."""

from __future__ import annotations

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation, OperationKind
from lb.proxy.exchange import Exchange
from lb.proxy.patience import AttemptTimes, Patience
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.records import INFER

STREAM = Operation("ModelStreamInfer", OperationKind.STREAM)


class Slow(Exchange):
    """A request whose answer does not begin."""

    def __init__(self, now: float, model: bytes = b"m", operation: Operation = INFER) -> None:
        super().__init__(AppProtocol.GRPC, operation, "client", now)
        self.model = model
        self.backend = make_backend("b")
        self.port = self.backend.ports[1]
        self.attempts = 1
        self.attempt_at = now
        self.has_come = True
        self.late = 0

    @property
    def is_sent(self) -> bool:
        return self.has_come

    def attempt_late(self) -> None:
        self.late += 1


class Bench:
    def __init__(self, times: AttemptTimes) -> None:
        self.loop = FakeLoop()
        self.under_way: list[Slow] = []
        self.patience = Patience(self.loop.wheel(), self.loop.time, lambda: self.under_way)
        self.patience.use(times)

    def begins(self, model: bytes = b"m", operation: Operation = INFER) -> Slow:
        self.under_way.append(slow := Slow(self.loop.time(), model, operation))
        return slow


def test_an_attempt_is_late_once_its_time_is_over() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    slow = bench.begins()
    bench.loop.advance(0.99)
    assert slow.late == 0
    bench.loop.advance(0.2)
    assert slow.late == 1
    bench.loop.advance(5.0)
    assert slow.late == 1, "it is asked once"
    slow.attempts, slow.attempt_at = 2, bench.loop.time()
    bench.loop.advance(0.9)
    assert slow.late == 1
    bench.loop.advance(0.3)
    assert slow.late == 2, "the second attempt is another one"


def test_each_model_has_its_own_time() -> None:
    bench = Bench(AttemptTimes(common=1.0, models={b"fast": 0.1, b"slow": 0.0}))
    common, fast, slow = bench.begins(), bench.begins(b"fast"), bench.begins(b"slow")
    bench.loop.advance(0.15)
    assert [common.late, fast.late, slow.late] == [0, 1, 0]
    bench.loop.advance(10.0)
    assert [common.late, fast.late, slow.late] == [1, 1, 0]


def test_the_time_begins_when_all_of_the_request_has_come() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    slow = bench.begins()
    slow.has_come = False
    bench.loop.advance(5.0)
    slow.has_come = True
    bench.loop.advance(0.8)
    assert slow.late == 0
    bench.loop.advance(0.4)
    assert slow.late == 1


def test_streams_take_the_time_that_they_take() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    stream = bench.begins(operation=STREAM)
    bench.loop.advance(5.0)
    assert stream.late == 0


def test_what_ended_while_others_were_looked_at_is_not_late() -> None:
    bench = Bench(AttemptTimes(common=1.0))
    slow = bench.begins()
    slow.port = None
    bench.loop.advance(5.0)
    assert slow.late == 0


def test_nothing_is_looked_at_where_there_is_no_limit() -> None:
    bench = Bench(AttemptTimes())
    slow = bench.begins()
    bench.loop.advance(100.0)
    assert (slow.late, bench.loop.pending) == (0, 0)
    bench.patience.use(AttemptTimes(common=1.0))
    bench.loop.advance(0.2)
    assert slow.late == 1
    bench.patience.use(AttemptTimes())
    bench.loop.advance(1.0)
    assert bench.loop.pending == 0
