"""Steps of sequences in the dispatcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.balancing.sequences import REFUSED_LIFETIME_S, Affinity
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute, PoolRef, PoolSnapshot
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.errors import Meaning
from lb.net.timers import TimerWheel
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Attempt, Exchange, RoutingHints
from lb.proxy.failure import grpc_status, http_status
from lb.wire.grpc.status import GrpcStatus
from lb.wire.memory_budget import MemoryBudget
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
            memory_budget=MemoryBudget(800),
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
        exchange.hints = RoutingHints()
        exchange.hints.step = SequenceStep(key, start, end)
        return exchange

    def place(self, exchange: Exchange) -> Attempt:
        """Begin an attempt."""
        attempt = self.dispatcher.placer.place(exchange, Attempt)
        assert attempt is not None
        return attempt

    def run(self, exchange: Exchange) -> Backend:
        """Place it and answer it."""
        attempt = self.place(exchange)
        self.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED)
        return attempt.backend

    def fail(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Let an attempt fail; whether its exchange may be placed again."""
        self.dispatcher.accounts.attempt_ended(attempt, outcome)
        return self.dispatcher.retry.take_retry(
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


def test_what_nobody_started_is_placed_like_any_request() -> None:
    parts = two()
    parts.backends[0].in_flight = 1
    assert parts.run(parts.step()) is parts.backends[1]


@pytest.mark.parametrize(
    ("protocol", "code", "is_short"),
    [
        (AppProtocol.HTTP, 400, True),
        (AppProtocol.HTTP, 404, True),
        (AppProtocol.HTTP, 200, False),
        (AppProtocol.HTTP, 429, False),
        (AppProtocol.HTTP, 500, False),
        (AppProtocol.GRPC, GrpcStatus.INVALID_ARGUMENT, True),
        (AppProtocol.GRPC, GrpcStatus.NOT_FOUND, True),
        (AppProtocol.GRPC, GrpcStatus.OK, False),
        (AppProtocol.GRPC, GrpcStatus.DEADLINE_EXCEEDED, False),
        (AppProtocol.GRPC, GrpcStatus.INTERNAL, False),
    ],
)
def test_a_start_that_its_backend_refuses_is_soon_forgotten(
    protocol: AppProtocol, code: int, is_short: bool
) -> None:
    parts = two()
    attempt = parts.place(parts.step(start=True, protocol=protocol))
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, code)
    table = parts.dispatcher.steps.table
    table.sweep(parts.loop.time() + REFUSED_LIFETIME_S + 0.1, 10)
    assert attempt.backend.open_sequences == (not is_short)


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
    parts.dispatcher.accounts.attempt_ended(parts.place(step), Outcome.LOST)
    reason, text = parts.dispatcher.retry.failure(step, Outcome.LOST)
    assert reason is Reason.UPSTREAM_LOST
    assert text.startswith(f"sequence 7 of model m: backend {home.name} (grpc) closed")
    home.died()
    reason, text = parts.dispatcher.retry.failure(step, Outcome.LOST)
    assert reason is Reason.SEQUENCE_LOST
    assert "start it again" in text


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


def test_a_sequence_that_its_backend_does_not_know_is_closed() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    step = parts.step()
    attempt = parts.place(step)
    assert not parts.dispatcher.retry.take_failover(step, Meaning.NO_SEQUENCE, body_retained=True)
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED)
    assert home.open_sequences == 0
    assert len(parts.dispatcher.steps.table) == 0


def test_a_sequence_that_another_replica_began_is_searched_for() -> None:
    parts = Parts(*(make_backend(name) for name in "abcd"))
    parts.dispatcher.steps.table.affinity = Affinity.RENDEZVOUS
    step = parts.step()
    for left in (True, True, False):
        attempt = parts.place(step)
        found = parts.dispatcher.retry.take_failover(step, Meaning.NO_SEQUENCE, body_retained=True)
        assert found is left
        assert len(parts.dispatcher.steps.table) == 0
        parts.dispatcher.accounts.attempt_ended(attempt, Outcome.NOT_HERE)
    assert len(set(step.tried)) == 3
    start = parts.step(start=True)
    parts.place(start)
    assert not parts.dispatcher.retry.take_failover(start, Meaning.NO_SEQUENCE, body_retained=True)
    other = parts.step()
    parts.place(other)
    assert not parts.dispatcher.retry.take_failover(other, Meaning.NO_SEQUENCE, body_retained=False)


@pytest.mark.parametrize("meaning", [Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY])
def test_a_sequence_of_a_model_that_is_not_there_is_none(meaning: Meaning) -> None:
    parts = two()
    start = parts.step(start=True)
    attempt = parts.place(start)
    home = attempt.backend
    assert not parts.dispatcher.retry.take_failover(start, meaning, body_retained=False)
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED)
    assert home.open_sequences == 0
    assert len(parts.dispatcher.steps.table) == 0


def test_only_good_answers_tell_how_long_steps_take() -> None:
    parts = two()
    slow, fast = parts.backends
    for backend, code, took_s in ((slow, 13, 0.001), (slow, 0, 0.05), (fast, 0, 0.01)) * 20:
        parts.only(backend)
        attempt = parts.place(parts.step(start=True, end=True))
        parts.loop.advance(took_s)
        parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, code)
    parts.only(slow, fast)
    homes = [
        parts.run(parts.step(start=True, key=SequenceKey(b"m", number))) for number in range(4)
    ]
    assert homes == [fast] * 4


def test_what_was_learnt_of_a_backend_is_forgotten_with_it() -> None:
    parts = two()
    home = parts.run(parts.step(start=True))
    steps = parts.dispatcher.steps
    steps.keep_swept(TimerWheel(parts.loop), parts.loop.time, parts.ref)
    before = steps.table.latency(KEY.model, home)
    rest = tuple(each for each in parts.backends if each is not home)
    parts.ref.publish(snapshot_of(rest, 2))
    parts.loop.advance(1.5)
    assert steps.table.latency(KEY.model, home) is not before
