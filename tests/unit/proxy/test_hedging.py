"""Which requests are sent to a second backend, and when."""

from __future__ import annotations

from math import inf

import pytest

from lb.domain.hedge import HedgeRules
from lb.domain.outcome import Outcome
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.hedging import Hedger
from lb.proxy.http2.attempt import GrpcAttempt
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import answer, data, headers, named, request_fields

_SERVICE = b"/inference.GRPCInferenceService/"


class Bench:
    """A hedger that knows that answers take 16 to 115 ms, 110 of them in 95 %."""

    def __init__(self, backends: int = 2, rules: HedgeRules | None = None) -> None:
        self.relay = PaperRelay(backends=backends)
        self.backends = self.relay.backends
        self.loop = self.relay.loop
        self.dispatcher = self.relay.dispatcher
        self.sides = [self.relay.backend(number) for number in range(backends)]
        self.client = self.relay.client()
        self.begun: list[Exchange] = []
        self.seconds: list[GrpcAttempt] = []
        self.hedger = Hedger(self.dispatcher, self._begin, self.relay.relay.cancel_hedge)
        self.hedger.configure(rules or HedgeRules())
        self.relay.check_attempts(self.hedger)
        for number in range(100):
            self.dispatcher.blame.durations.add(b"m", 0.016 + number * 0.001)
        self._streams = -1

    def _begin(self, exchange: Exchange) -> GrpcAttempt | None:
        self.begun.append(exchange)
        second = self.relay.relay.hedge(exchange)
        if second is not None:
            self.seconds.append(second)
        return second

    def answers(self, second: GrpcAttempt) -> None:
        """Its backend answers a second attempt."""
        self.relay.relay.flush()
        self.sides[self.backends.index(second.backend)].sends(answer(second.request.sink_id))

    def begins(
        self, model: bytes = b"m", method: bytes = b"ModelInfer", *, ended: bool = True
    ) -> Exchange:
        self._streams += 2
        before = set(self.relay.relay.under_way())
        head = headers(self._streams, request_fields(path=_SERVICE + method))
        self.client.sends(head + data(self._streams, named(model), end=ended))
        if not ended:
            self.client.sends(data(self._streams, b""))
        (one,) = set(self.relay.relay.under_way()) - before
        return one


async def test_what_takes_longer_than_most_is_sent_again_once() -> None:
    bench = Bench()
    bench.loop.advance(0.2)
    one = bench.begins()
    bench.loop.advance(0.105)
    assert bench.begun == []
    bench.loop.advance(0.04)
    assert bench.begun == [one]
    bench.loop.advance(1.0)
    assert bench.begun == [one]
    assert (bench.hedger.count, len(bench.hedger)) == (1, 1)


async def test_nothing_is_sent_again_while_too_little_is_known_of_its_model() -> None:
    bench = Bench()
    bench.begins(model=b"unknown")
    bench.loop.advance(5.0)
    assert bench.begun == []


async def test_the_time_begins_when_all_of_the_request_has_come() -> None:
    bench = Bench()
    one = bench.begins(ended=False)
    bench.loop.advance(5.0)
    bench.client.sends(data(1, end=True))
    bench.loop.advance(0.08)
    assert bench.begun == []
    bench.loop.advance(0.08)
    assert bench.begun == [one]


@pytest.mark.parametrize("why", ["step", "regions", "never", "read", "again", "alone", "full"])
async def test_what_must_not_or_cannot_be_sent_twice_is_not(why: str) -> None:
    bench = Bench(backends=1 if why == "alone" else 2)
    one = bench.begins(method=b"ModelConfig" if why == "read" else b"ModelInfer")
    one.hints = RoutingHints()
    if why == "step":
        one.hints.step = SequenceStep(SequenceKey(b"m", 1))
    if why == "regions":
        one.hints.regions = (b"r",)
    if why == "never":
        bench.relay.run_once(b"m")
    if why == "again":
        one.attempts = 2
    if why == "full":
        for backend in bench.backends:
            backend.max_in_flight = backend.in_flight = 1
    bench.loop.advance(2.0)
    assert bench.begun == []
    assert bench.hedger.refused == 0


async def test_there_is_a_budget() -> None:
    bench = Bench(rules=HedgeRules(share=0.0001))
    for _ in range(100):
        bench.begins()
    bench.loop.advance(0.3)
    assert 1 <= len(bench.begun) <= 20
    assert bench.hedger.refused == 100 - len(bench.begun)


async def test_what_cannot_begin_takes_nothing_of_the_budget() -> None:
    bench = Bench(rules=HedgeRules(share=0.0001))
    memory_budget = bench.relay.relay.memory_budget
    for _ in range(100):
        bench.begins()
    held, memory_budget.held = memory_budget.held, memory_budget.ceiling
    bench.loop.advance(0.3)
    memory_budget.held = held
    assert (len(bench.begun), bench.hedger.count, bench.hedger.refused) == (100, 0, 0)


async def test_what_has_won_is_counted_and_what_is_not_needed_cancelled() -> None:
    bench = Bench()
    for _ in range(3):
        bench.begins()
    bench.loop.advance(0.2)
    first, second, third = bench.seconds
    bench.answers(first)
    failed = second.exchange.attempt
    assert failed is not None
    bench.dispatcher.accounts.attempt_ended(failed, Outcome.LOST)
    bench.loop.advance(0.1)
    assert first.outcome is Outcome.ANSWERED
    assert (second.outcome, second.exchange.hedge) == (Outcome.OVERTAKEN, None)
    assert (third.outcome, third.exchange.hedge) == (None, third)
    assert (bench.hedger.won, len(bench.hedger)) == (1, 1)


async def test_a_second_attempt_that_failed_is_forgotten_while_the_first_goes_on() -> None:
    bench = Bench()
    one = bench.begins()
    bench.loop.advance(0.2)
    (second,) = bench.seconds
    bench.relay.relay.flush()
    bench.sides[bench.backends.index(second.backend)].goes()
    assert (second.outcome, one.is_under_way) == (Outcome.LOST, True)
    bench.loop.advance(0.1)
    assert (bench.hedger.won, len(bench.hedger)) == (0, 0)


async def test_it_does_not_rest_while_a_second_attempt_runs() -> None:
    bench = Bench()
    bench.begins()
    bench.loop.advance(0.2)
    (second,) = bench.seconds
    assert not bench.hedger.may_rest
    second.failed(Outcome.LOST)
    bench.loop.advance(0.2)
    assert bench.hedger.may_rest


async def test_switched_off_it_ends_what_runs() -> None:
    bench = Bench()
    bench.begins()
    bench.loop.advance(0.2)
    bench.hedger.configure(None)
    assert [second.outcome for second in bench.seconds] == [Outcome.OVERTAKEN]
    assert bench.hedger.interval_s(bench.loop.time()) == inf
    bench.loop.advance(1.0)
    assert len(bench.seconds) == 1


async def test_samples_of_answers_are_asked_for() -> None:
    bench = Bench()
    bench.begins()
    bench.loop.advance(0.2)
    assert all(backend.reports_due for backend in bench.backends)
