"""Steps of sequences in the dispatcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.balancing.sequences import Affinity
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute, PoolRef, PoolSnapshot
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.errors import Meaning
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Attempt, Exchange, Particulars
from lb.proxy.failure import grpc_status, http_status
from lb.proxy.steps import UNKNOWN_IDLE_S, idle_of, slots_of
from lb.wire.grpc.status import GrpcStatus
from lb.wire.ledger import Ledger
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.records import INFER
from tests.fakes.relay import Finished, Outcomes, snapshot_of

KEY = SequenceKey(b"m", 7)


class Parts:
    """A dispatcher over some backends."""

    def __init__(self, *backends: Backend) -> None:
        self.backends = backends
        self.ref = PoolRef(snapshot_of(backends))
        self.loop = FakeLoop()
        self.dispatcher = Dispatcher(
            self.ref,
            Outcomes(),
            Finished(),
            clock=self.loop.time,
            ledger=Ledger(800),
            max_attempts=3,
        )

    def only(self, *backends: Backend) -> None:
        """Let new requests go to these alone."""
        placements = snapshot_of(backends).placements
        self.ref.publish(PoolSnapshot(2, self.backends, placements))

    def step(
        self,
        *,
        start: bool = False,
        end: bool = False,
        key: SequenceKey = KEY,
        protocol: AppProtocol = AppProtocol.GRPC,
    ) -> Exchange:
        exchange = Exchange(protocol, INFER, "client", 1.0)
        exchange.model = key.model
        exchange.particulars = Particulars()
        exchange.particulars.step = SequenceStep(key, start, end)
        return exchange

    def place(self, exchange: Exchange) -> Attempt:
        """Begin an attempt."""
        attempt = self.dispatcher.place(exchange, Attempt)
        assert attempt is not None
        return attempt

    def run(self, exchange: Exchange) -> Backend:
        """Place it and answer it."""
        attempt = self.place(exchange)
        self.dispatcher.attempt_ended(attempt, Outcome.ANSWERED)
        return attempt.backend

    def fail(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Let an attempt fail; whether its exchange may be placed again."""
        self.dispatcher.attempt_ended(attempt, outcome)
        return self.dispatcher.may_retry(
            attempt.exchange, outcome, body_retained=True, response_begun=False
        )


def two() -> Parts:
    return Parts(make_backend("a"), make_backend("b"))


@pytest.mark.parametrize("protocol", list(AppProtocol))
def test_steps_follow_their_start_whatever_the_protocol(protocol: AppProtocol) -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    home.in_flight = 9
    assert [parts.run(parts.step(protocol=protocol)) for _ in range(3)] == [home] * 3
    assert home.open_sequences == 1
    assert parts.run(parts.step(end=True, protocol=protocol)) is home
    assert home.open_sequences == 0


def test_a_step_goes_to_a_backend_that_gets_nothing_new() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    parts.only(*(backend for backend in parts.backends if backend is not home))
    assert parts.run(parts.step()) is home
    parts.only()
    assert parts.run(parts.step()) is home


def test_what_nobody_started_is_placed_like_any_request() -> None:
    parts = two()
    parts.backends[0].in_flight = 1
    assert parts.run(parts.step()) is parts.backends[1]


def test_an_attempt_at_a_step_is_counted_once() -> None:
    parts = two()
    exchange = parts.step(start=True)
    attempt = parts.place(exchange)
    assert exchange.particulars is not None
    pin = exchange.particulars.pin
    assert pin is not None
    assert pin.steps == 1
    for _ in range(2):
        parts.dispatcher.attempt_ended(attempt, Outcome.ANSWERED)
    assert pin.steps == 0
    assert exchange.sequence == 7


@pytest.mark.parametrize("outcome", [Outcome.STALE, Outcome.LOST, Outcome.RESET])
def test_a_step_that_may_have_run_is_never_repeated(outcome: Outcome) -> None:
    parts = two()
    assert not parts.fail(parts.place(parts.step(start=True)), outcome)
    assert not parts.fail(parts.place(parts.step()), outcome)


def test_a_start_that_did_not_run_goes_elsewhere_and_the_steps_follow() -> None:
    parts = two()
    start = parts.step(start=True)
    begun = parts.place(start)
    first = begun.backend
    early = parts.place(parts.step())
    assert early.backend is first
    assert parts.fail(begun, Outcome.CONNECT_REFUSED)
    second = parts.place(start).backend
    assert second is not first
    assert parts.fail(early, Outcome.CONNECT_REFUSED)
    assert parts.place(early.exchange).backend is second
    assert (first.open_sequences, second.open_sequences) == (0, 1)


def test_a_later_step_is_repeated_at_its_own_backend_only() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    refused = parts.step()
    assert parts.fail(parts.place(refused), Outcome.REFUSED)
    assert parts.place(refused).backend is home
    unreachable = parts.place(parts.step(end=True))
    assert not parts.fail(unreachable, Outcome.CONNECT_TIMEOUT)
    assert home.open_sequences == 1


def test_the_next_step_is_told_that_its_backend_has_gone() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    home.died()
    parts.only(*(backend for backend in parts.backends if backend is not home))
    with pytest.raises(RequestRefused) as refusal:
        parts.place(parts.step())
    assert refusal.value.reason is Reason.SEQUENCE_LOST
    assert "sequence 7 of model m" in refusal.value.detail
    assert home.name in refusal.value.detail
    assert parts.run(parts.step(start=True)) is not home


@pytest.mark.parametrize("protocol", list(AppProtocol))
def test_a_text_is_no_id_where_ids_are_numbers(protocol: AppProtocol) -> None:
    parts = two()
    facts = ModelFacts(is_stateful=True, has_number_ids=True)
    routes = {b"m": ModelRoute(facts=facts)}
    parts.ref.publish(replace(snapshot_of(parts.backends), routes=routes))
    text = SequenceKey(b"m", "seven")
    with pytest.raises(RequestRefused) as refusal:
        parts.place(parts.step(start=True, key=text, protocol=protocol))
    reason = refusal.value.reason
    assert (http_status(reason), grpc_status(reason)) == (400, GrpcStatus.INVALID_ARGUMENT)
    assert 'sequence "seven" of model m' in refusal.value.detail
    assert parts.run(parts.step(start=True, protocol=protocol)) in parts.backends
    assert [backend.in_flight for backend in parts.backends] == [0, 0]


def test_a_failed_attempt_names_the_sequence() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    step = parts.step()
    parts.dispatcher.attempt_ended(parts.place(step), Outcome.LOST)
    reason, text = parts.dispatcher.steps.failure(step, Outcome.LOST)
    assert reason is Reason.UPSTREAM_LOST
    assert text.startswith(f"sequence 7 of model m: backend {home.name} (grpc) closed")
    home.died()
    reason, text = parts.dispatcher.steps.failure(step, Outcome.LOST)
    assert reason is Reason.SEQUENCE_LOST
    assert "start it again" in text


def test_any_other_failed_attempt_reads_as_before() -> None:
    parts = two()
    plain = Exchange(AppProtocol.HTTP, INFER, "client", 1.0)
    plain.backend = parts.backends[0]
    assert parts.dispatcher.steps.failure(plain, Outcome.CONNECT_REFUSED) == (
        Reason.CONNECT_REFUSED,
        "backend a (http) refused the connection",
    )


def test_a_full_backend_refuses_the_steps_of_its_sequences() -> None:
    parts = Parts(make_backend("a", max_in_flight=1), make_backend("b"))
    while parts.run(parts.step(start=True)).name != "a":
        parts.run(parts.step(end=True))
    parts.backends[0].in_flight = 1
    with pytest.raises(RequestRefused) as refusal:
        parts.place(parts.step())
    assert refusal.value.reason is Reason.BACKENDS_FULL
    assert "sequence 7 of model m runs on backend a" in refusal.value.detail
    parts.backends[0].in_flight = 0
    assert parts.run(parts.step()).name == "a"


def test_a_step_over_a_protocol_that_its_backend_lacks_is_refused() -> None:
    parts = Parts(make_backend("a"))
    parts.run(parts.step(start=True))
    parts.backends[0].ports = (None, parts.backends[0].ports[1])
    with pytest.raises(RequestRefused) as refusal:
        parts.place(parts.step(protocol=AppProtocol.HTTP))
    assert "has no http port" in refusal.value.detail


def test_a_sequence_that_its_backend_does_not_know_is_closed() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    step = parts.step()
    attempt = parts.place(step)
    assert not parts.dispatcher.goes_elsewhere(step, Meaning.NO_SEQUENCE, body_retained=True)
    parts.dispatcher.attempt_ended(attempt, Outcome.ANSWERED)
    assert home.open_sequences == 0
    assert len(parts.dispatcher.steps.table) == 0


def test_a_sequence_that_another_replica_began_is_searched_for() -> None:
    parts = Parts(*(make_backend(name) for name in "abcd"))
    parts.dispatcher.steps.table.affinity = Affinity.RENDEZVOUS
    step = parts.step()
    for left in (True, True, False):
        attempt = parts.place(step)
        found = parts.dispatcher.goes_elsewhere(step, Meaning.NO_SEQUENCE, body_retained=True)
        assert found is left
        assert len(parts.dispatcher.steps.table) == 0
        parts.dispatcher.attempt_ended(attempt, Outcome.NOT_HERE)
    assert len(set(step.tried)) == 3
    start = parts.step(start=True)
    parts.place(start)
    assert not parts.dispatcher.goes_elsewhere(start, Meaning.NO_SEQUENCE, body_retained=True)
    other = parts.step()
    parts.place(other)
    assert not parts.dispatcher.goes_elsewhere(other, Meaning.NO_SEQUENCE, body_retained=False)


@pytest.mark.parametrize("meaning", [Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY])
def test_a_sequence_of_a_model_that_is_not_there_is_none(meaning: Meaning) -> None:
    parts = two()
    start = parts.step(start=True)
    attempt = parts.place(start)
    home = attempt.backend
    assert not parts.dispatcher.goes_elsewhere(start, meaning, body_retained=False)
    parts.dispatcher.attempt_ended(attempt, Outcome.ANSWERED)
    assert home.open_sequences == 0
    assert len(parts.dispatcher.steps.table) == 0


def test_a_model_that_nobody_knows_gets_a_minute() -> None:
    assert idle_of(None) == idle_of(ModelFacts(idle_s=3.0)) == UNKNOWN_IDLE_S
    assert idle_of(ModelFacts(is_stateful=True, idle_s=3.0)) == 3.0


def test_slots_are_those_of_the_model() -> None:
    assert slots_of(None) == 0
    assert slots_of(ModelFacts(is_stateful=True, slots=8)) == 8


def test_what_open_sequences_take_is_told_until_they_take_nothing() -> None:
    backends = (make_backend("a"), make_backend("b"))
    parts = Parts(*backends)
    table = parts.dispatcher.steps.table
    told: list[tuple[str, float]] = []

    def tell(at: float) -> None:
        parts.dispatcher.steps.tell(
            lambda backend, part, now: told.append((backend.name, part)), backends, at
        )

    now = 100.0
    tell(now)
    assert told == []
    start = SequenceStep(KEY, is_start=True)
    placement = parts.ref.current.placement(AppProtocol.GRPC)
    for number in range(40):
        step = start if not number else SequenceStep(KEY)
        home, pin = table.place(step, placement, 60.0, now)
        assert pin is not None
        now += 0.02
        table.ended(step, pin, pin.starts, now, began_at=now - 0.02)
    assert home is not None
    tell(now)
    ((name, part),) = told
    assert (name, part) == (home.name, home.spoken_for)
    assert 0.05 < part < 0.1  # 40 steps of 20 ms within the last ten seconds
    table.forget(KEY, home)
    tell(now)
    tell(now)
    assert told[1:] == [(home.name, 0.0)]


def test_a_good_answer_to_a_step_teaches_and_a_bad_one_does_not() -> None:
    parts = Parts(make_backend())
    table = parts.dispatcher.steps.table
    for code in (0, 0, 13):
        attempt = parts.place(parts.step(start=True))
        parts.dispatcher.attempt_ended(attempt, Outcome.ANSWERED, code)
    cost = table.cost(KEY.model, parts.backends[0])
    assert cost is not None
    assert cost.count == 2
