"""Placement and the accounts of every attempt."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import NamedTuple

import pytest

from lb.access.gate import Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.backend import AppProtocol, Backend
from lb.domain.client import NOBODY, Client, TrustedProxies
from lb.domain.errors import RequestRefused
from lb.domain.fault import Fault
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import PassiveHealthSink, PoolRef
from lb.domain.retry import RetryRules
from lb.proxy.dispatch import Dispatcher, DispatchOptions
from lb.proxy.exchange import Attempt, Exchange, RoutingHints
from lb.proxy.reruns import RerunLimits
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.passive_health import Reports
from tests.fakes.records import INFER
from tests.fakes.relay import Finished, Outcomes, snapshot_of

GRPC = AppProtocol.GRPC
LOAD = Operation("RepositoryModelLoad", OperationKind.CONTROL)


class Parts(NamedTuple):
    """A dispatcher and what it works with."""

    dispatcher: Dispatcher
    backends: tuple[Backend, ...]
    outcomes: Outcomes
    finished: Finished
    memory_budget: MemoryBudget
    loop: FakeLoop


def make(
    count: int = 2,
    *,
    max_in_flight: int = 0,
    gate: Gate | None = None,
    rules: RetryRules | None = None,
    passive_health: PassiveHealthSink | None = None,
) -> Parts:
    backends = tuple(make_backend(f"b{n}", max_in_flight=max_in_flight) for n in range(count))
    outcomes, finished, memory_budget, loop = Outcomes(), Finished(), MemoryBudget(800), FakeLoop()
    ref = PoolRef(snapshot_of(backends))
    rules = rules or RetryRules()
    dispatcher = Dispatcher(
        ref,
        outcomes,
        finished,
        clock=loop.time,
        memory_budget=memory_budget,
        options=DispatchOptions(retry=rules),
        gate=gate,
        passive_health=passive_health,
        reruns=RerunLimits(ref, loop.time, rules, schedule=loop.call_later),
    )
    return Parts(dispatcher, backends, outcomes, finished, memory_budget, loop)


def exchange(operation: Operation = INFER) -> Exchange:
    return Exchange(GRPC, operation, "10.0.0.9:4711", 1.0)


def place(parts: Parts, one: Exchange) -> Attempt:
    """Begin an attempt of an exchange that need not wait."""
    attempt = parts.dispatcher.placer.place(one, Attempt)
    assert attempt is not None
    return attempt


def may_retry(parts: Parts, one: Exchange, outcome: Outcome) -> bool:
    return parts.dispatcher.retry.take_retry(one, outcome, body_retained=True, response_begun=False)


def test_an_attempt_is_counted_from_its_placement_to_its_end() -> None:
    parts = make(1)
    backend, port = parts.backends[0], parts.backends[0].port(GRPC)
    one = exchange()
    attempt = place(parts, one)
    assert (attempt.exchange, attempt.backend, attempt.port) == (one, backend, port)
    assert (one.attempt, one.backend, one.is_under_way) == (attempt, backend, True)
    assert (backend.in_flight, port.in_flight, port.attempts, one.attempts) == (1, 1, 1, 1)
    parts.loop.advance(0.003)
    for _ in range(2):
        parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 5)
    assert (backend.in_flight, port.in_flight, port.attempts) == (0, 0, 1)
    assert (attempt.outcome, one.is_under_way) == (Outcome.ANSWERED, False)
    assert port.codes == {5: 1}
    assert port.latency.sum == pytest.approx(0.003)
    assert port.latency.counts[3] == 1
    assert parts.outcomes.seen == []


def test_an_answer_that_is_passed_on_at_once_is_counted_like_any_other() -> None:
    seen = []
    for is_whole in (True, False):
        parts = make(1)
        port = parts.backends[0].port(GRPC)
        one = exchange()
        parts.dispatcher.accounts.begin()
        attempt = place(parts, one)
        one.bytes_in, one.bytes_out = 7, 9
        parts.loop.advance(0.003)
        now = parts.loop.time()
        if is_whole:
            parts.dispatcher.accounts.answered_whole(attempt, 5, now)
        else:
            port.bytes_sent += 7  # the relay's part
            port.bytes_received += 9
            parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 5, now)
            parts.dispatcher.accounts.finish(one, None, now)
        assert [record.record for record in parts.finished.records] == [one]
        names = ("in_flight", "attempts", "codes", "bytes_sent", "bytes_received", "failures")
        seen.append(
            (
                parts.backends[0].in_flight,
                [getattr(port, name) for name in names],
                (port.latency.sum, port.latency.counts),
                (one.finished, one.ended_at, one.reason, one.attempt, attempt.outcome),
                parts.dispatcher.open_exchanges,
            )
        )
    assert seen[0] == seen[1]


def test_placed_at_is_that_of_the_first_attempt() -> None:
    parts = make(2)
    one = exchange()
    parts.dispatcher.accounts.attempt_ended(place(parts, one), Outcome.CONNECT_REFUSED)
    parts.loop.advance(1.0)
    assert place(parts, one).began_at == one.placed_at + 1.0


def test_a_refused_connection_needs_another_backend() -> None:
    parts = make(1)
    one = exchange()
    parts.dispatcher.accounts.attempt_ended(place(parts, one), Outcome.CONNECT_REFUSED)
    assert not may_retry(parts, one, Outcome.CONNECT_REFUSED)


def test_what_must_not_run_twice_goes_again_only_when_it_did_not_run() -> None:
    parts = make(2, rules=RetryRules(never=frozenset({b"orders"})))
    one = exchange()
    one.model = b"orders"
    parts.dispatcher.accounts.attempt_ended(place(parts, one), Outcome.REFUSED)
    assert may_retry(parts, one, Outcome.REFUSED)
    assert not may_retry(parts, one, Outcome.STALE)


def loses(parts: Parts, one: Exchange) -> bool:
    """The connection of a request is lost that has been placed. Whether it goes again."""
    attempt = place(parts, one)
    parts.loop.advance(0.1)
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.LOST)
    return may_retry(parts, one, Outcome.LOST)


@pytest.mark.parametrize(
    ("count", "attempts"), [(2, 3), (3, 2), (3, 3)], ids=["no backend", "no attempt", "both left"]
)
def test_a_model_is_blocked_whose_request_killed_two_servers_wherever_it_could_go(
    count: int, attempts: int
) -> None:
    parts = make(count, rules=RetryRules(max_attempts=attempts))
    one = exchange()
    one.model = b"m"
    assert loses(parts, one)
    assert one.backend is not None
    one.backend.died()
    assert not loses(parts, one)
    reruns = parts.dispatcher.reruns
    assert reruns.refused == {"lost_twice": 1}
    assert reruns.poison_models.blocked(parts.loop.time()) == [b"m"]
    parts.loop.advance(1.0)
    other = exchange()
    other.model = b"m"
    assert not loses(parts, other), "it kills one server and not two"
    assert reruns.refused == {"lost_twice": 1, "deadly_model": 1}


@pytest.mark.parametrize("sign", ["dead", "alive", "none"])
@pytest.mark.parametrize(("count", "attempts"), [(2, 3), (3, 2)], ids=["no backend", "no attempt"])
def test_whether_two_servers_died_of_a_request_is_found_out_after_its_end(
    count: int, attempts: int, sign: str
) -> None:
    parts = make(count, rules=RetryRules(max_attempts=attempts))
    one = exchange()
    one.model = b"m"
    assert loses(parts, one)
    first = one.backend
    assert first is not None
    assert not loses(parts, one)
    reruns = parts.dispatcher.reruns
    assert not reruns.refused, "nobody knows yet whether the first one died"
    if sign == "dead":
        first.died()
    elif sign == "alive":
        first.port(GRPC).probed_at = parts.loop.time()
    parts.loop.advance(0.1 if sign != "none" else 1.6)
    assert reruns.refused == ({} if sign == "alive" else {"lost_twice": 1})
    assert reruns.poison_models.blocked(parts.loop.time()) == ([] if sign == "alive" else [b"m"])
    assert parts.loop.pending == 0


def test_a_server_that_lost_two_connections_of_a_request_has_died_once_at_most() -> None:
    parts = make(1)
    one = exchange()
    parts.dispatcher.accounts.attempt_ended(place(parts, one), Outcome.STALE)
    assert may_retry(parts, one, Outcome.STALE)
    assert not loses(parts, one)
    parts.backends[0].died()
    parts.loop.advance(2.0)
    reruns = parts.dispatcher.reruns
    assert not reruns.refused
    assert not reruns.poison_models.seen


def test_a_backend_that_was_not_left_though_it_was_late_is_lost_only_once() -> None:
    parts = make(2, rules=RetryRules(share=0.0, floor=0.0))
    one = exchange()
    attempt = place(parts, one)
    assert not may_retry(parts, one, Outcome.LATE), "there is no budget"
    parts.loop.advance(0.1)
    attempt.port.left_before = parts.loop.time()
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.LOST)
    assert not may_retry(parts, one, Outcome.LOST)
    assert parts.dispatcher.reruns.refused == {"budget": 2}


def test_a_request_is_finished_once() -> None:
    parts = make()
    one = exchange()
    parts.dispatcher.accounts.begin()
    assert parts.dispatcher.open_exchanges == 1
    parts.loop.advance(2.0)
    parts.dispatcher.accounts.finish(one, Reason.CLIENT_GONE)
    parts.dispatcher.accounts.finish(one)
    assert parts.dispatcher.open_exchanges == 0
    assert [record.record for record in parts.finished.records] == [one]
    assert (one.reason, one.ended_at) == (Reason.CLIENT_GONE, parts.loop.time())


# Access


def test_a_request_that_never_ran_gives_its_share_back() -> None:
    limit = Limit(concurrent=1)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    parts = make(0, gate=gate)
    credentials = gate.credentials(INFER, (), is_control=False)
    assert credentials is not None
    for _ in range(2):
        one = exchange()
        parts.dispatcher.accounts.begin()
        parts.dispatcher.admit(one, credentials, NOBODY)
        parts.dispatcher.accounts.finish(one, Reason.NO_BACKEND)


def test_the_name_of_the_token_is_known_even_of_refused_requests() -> None:
    secret = b"0123456789abcdef"
    book = TokenBook([Token("key", digest_of(secret), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=True), book)
    fields = [(b"authorization", b"Bearer " + secret)]
    credentials = gate.credentials(LOAD, fields, is_control=True)
    assert credentials is not None
    one = exchange(LOAD)
    with pytest.raises(RequestRefused):
        make(gate=gate).dispatcher.admit(one, credentials, NOBODY)
    assert one.token == "key"
    assert one.permit is None


@pytest.mark.parametrize(
    ("field", "name"),
    [(b"203.0.113.7, 10.0.0.2", "203.0.113.7"), (b"10.0.0.1", "10.0.0.1:5"), (b"?", "10.0.0.1:5")],
)
def test_a_request_has_the_name_of_whom_a_trusted_proxy_speaks_for(field: bytes, name: str) -> None:
    gate = Gate(GateRules(proxies=TrustedProxies((ip_network("10.0.0.0/8"),))))
    address = ip_address("10.0.0.1")
    proxy = Client("10.0.0.1:5", address, address, False, False, is_trusted_proxy=True)
    credentials = gate.credentials(INFER, [(b"x-forwarded-for", field)], is_control=False)
    assert credentials is not None
    one = exchange()
    one.client = proxy.name
    make(gate=gate).dispatcher.admit(one, credentials, proxy)
    assert one.client == name
    stranger = replace(proxy, is_trusted_proxy=False)
    one.client = stranger.name
    make(gate=gate).dispatcher.admit(one, credentials, stranger)
    assert one.client == stranger.name


# How requests fare


def judged(operation: Operation = INFER, count: int = 1) -> tuple[Parts, Reports, Attempt]:
    """An attempt for the model m at one of so many backends, and who is told of it."""
    passive_health = Reports()
    parts = make(count, passive_health=passive_health)
    one = exchange(operation)
    one.model = b"m"
    parts.dispatcher.accounts.begin()
    return parts, passive_health, place(parts, one)


@pytest.mark.parametrize("is_whole", [True, False])
def test_good_answers_are_told_of_as_long_as_they_are_asked_for(is_whole: bool) -> None:
    parts, passive_health, attempt = judged()
    parts.backends[0].reports_due = 1
    for _ in range(2):
        parts.loop.advance(0.02)
        if is_whole:
            parts.dispatcher.accounts.answered_whole(attempt, 0, parts.loop.time())
        else:
            parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 0)
        one = exchange()
        one.model = b"m"
        attempt = place(parts, one)
    assert passive_health.told == [("answered", "b0", b"m", 0.02)]


def test_an_answer_took_until_its_first_byte() -> None:
    parts, passive_health, attempt = judged()
    parts.backends[0].reports_due = 1
    parts.loop.advance(0.02)
    attempt.first_byte_at = parts.loop.time()
    parts.loop.advance(5.0)
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 0)
    assert passive_health.told == [("answered", "b0", b"m", 0.02)]


def test_errors_are_no_good_answers() -> None:
    parts, passive_health, attempt = judged()
    parts.backends[0].reports_due = 5
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 13)
    assert passive_health.told == []


def test_errors_that_may_be_the_backends_fault_are_told_of() -> None:
    parts, passive_health, attempt = judged()
    parts.dispatcher.blame.answered_with_error(attempt, 3, "inference input data-type is 'FP32'")
    parts.dispatcher.blame.answered_with_error(
        attempt, 14, "This protocol is restricted, expecting header"
    )
    assert passive_health.told == []
    parts.dispatcher.blame.answered_with_error(attempt, 13, "anything")
    parts.dispatcher.blame.answered_with_error(attempt, 13, "CUDA error: no kernel image")
    assert passive_health.told == [
        ("failed", "b0", b"m", Fault.ERROR),
        ("failed", "b0", b"m", Fault.DEVICE),
    ]
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.ANSWERED, 13)
    parts.dispatcher.blame.answered_with_error(attempt, 13, "anything")  # it is over
    assert len(passive_health.told) == 2


def test_a_step_of_a_sequence_can_only_tell_of_what_is_certain() -> None:
    parts, passive_health, attempt = judged()
    hints = attempt.exchange.hints = RoutingHints()
    hints.regions = (b"region",)
    parts.dispatcher.blame.answered_with_error(attempt, 13, "anything")
    assert passive_health.told == []
    parts.dispatcher.blame.answered_with_error(attempt, 13, "CUDA error: no kernel image")
    assert passive_health.told == [("failed", "b0", b"m", Fault.DEVICE)]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome.LOST, ("failed", "b0", b"m", Fault.CONNECTION)),
        (Outcome.STALLED, ("failed", "b0", b"m", Fault.CONNECTION)),
        (Outcome.RESET, ("failed", "b0", b"m", Fault.ERROR)),
        (Outcome.DEADLINE, ("abandoned", "b0", b"m", 0.5)),
        (Outcome.CANCELLED, ("abandoned", "b0", b"m", 0.5)),
        (Outcome.STALE, None),
        (Outcome.REFUSED, None),
        (Outcome.CONNECT_REFUSED, None),
    ],
)
def test_attempts_without_an_answer_are_told_of(
    outcome: Outcome, told: tuple[str, str, bytes, object] | None
) -> None:
    parts, passive_health, attempt = judged()
    parts.loop.advance(0.5)
    parts.dispatcher.accounts.attempt_ended(attempt, outcome)
    assert not parts.dispatcher.retry.take_retry(
        attempt.exchange, outcome, body_retained=False, response_begun=False
    )
    assert passive_health.told == ([told] if told else [])


@pytest.mark.parametrize("outcome", [Outcome.DEADLINE, Outcome.CANCELLED])
def test_an_attempt_whose_answer_has_begun_is_not_abandoned(outcome: Outcome) -> None:
    parts, passive_health, attempt = judged()
    attempt.first_byte_at = parts.loop.time()
    parts.loop.advance(0.5)
    parts.dispatcher.accounts.attempt_ended(attempt, outcome)
    assert passive_health.told == []


def test_nothing_is_told_of_calls_that_change_servers() -> None:
    parts, passive_health, attempt = judged(LOAD)
    parts.backends[0].reports_due = 5
    parts.dispatcher.blame.answered_with_error(attempt, 13, "CUDA error")
    parts.dispatcher.accounts.attempt_ended(attempt, Outcome.LOST)
    assert passive_health.told == []


# Two attempts beside each other


def beside(parts: Parts, one: Exchange) -> Attempt:
    """A second attempt beside the one under way."""
    return parts.dispatcher.placer.place_beside(one, Attempt, parts.loop.time())


def test_a_second_attempt_begins_at_another_backend_and_is_counted_there() -> None:
    parts = make(3)
    one = exchange()
    first = place(parts, one)
    for backend in parts.backends:
        if backend is not first.backend:
            backend.in_flight = 5  # the policy would rather stay
    parts.loop.advance(0.5)
    hedge = beside(parts, one)
    assert hedge.backend is not first.backend
    assert (hedge.backend.in_flight, hedge.port.in_flight, hedge.port.attempts) == (6, 1, 1)
    assert hedge.began_at == parts.loop.time() == first.began_at + 0.5
    assert (one.attempt, one.hedge, one.backend) == (first, hedge, first.backend)
    assert (one.attempts, one.tried) == (1, ())


@pytest.mark.parametrize(
    ("count", "max_in_flight", "reason"),
    [(1, 0, Reason.NO_BACKEND), (2, 1, Reason.BACKENDS_FULL)],
    ids=["alone", "full"],
)
def test_no_second_attempt_begins_where_no_other_backend_takes_it(
    count: int, max_in_flight: int, reason: Reason
) -> None:
    parts = make(count, max_in_flight=max_in_flight)
    first, *others = [place(parts, exchange()) for _ in range(count)]
    with pytest.raises(RequestRefused) as caught:
        beside(parts, first.exchange)
    assert caught.value.reason is reason
    assert first.exchange.hedge is None
    assert [backend.in_flight for backend in parts.backends] == [1] * count
    assert sum(backend.port(GRPC).attempts for backend in parts.backends) == 1 + len(others)


def test_no_second_attempt_begins_while_memory_is_short() -> None:
    parts = make()
    one = place(parts, exchange()).exchange
    parts.memory_budget.held = parts.memory_budget.short_at
    with pytest.raises(RequestRefused) as caught:
        beside(parts, one)
    assert caught.value.reason is Reason.MEMORY
    assert one.hedge is None


def test_the_second_attempt_takes_the_place_of_the_first_when_it_is_faster() -> None:
    parts = make()
    one = exchange()
    first, hedge = place(parts, one), beside(parts, one)
    first.first_byte_at, hedge.first_byte_at, hedge.connected_at = 0.0, 7.0, 6.0
    parts.dispatcher.accounts.overtake(one)
    assert parts.dispatcher.accounts.overtaken == 1
    assert (one.attempt, one.hedge, one.backend) == (hedge, None, hedge.backend)
    assert (one.connected_at, one.first_byte_at) == (6.0, 7.0)
    assert (one.attempts, one.tried) == (2, (first.backend,))
    assert (first.outcome, first.backend.in_flight) == (None, 1)
    for _ in range(2):
        parts.dispatcher.accounts.attempt_ended(first, Outcome.OVERTAKEN)
    assert (first.backend.in_flight, hedge.backend.in_flight) == (0, 1)
    assert (one.tried, one.is_under_way) == ((first.backend,), True)
    assert parts.outcomes.seen == [(first.backend.name, Outcome.OVERTAKEN)]
    parts.dispatcher.accounts.attempt_ended(hedge, Outcome.ANSWERED, 0)
    assert [backend.in_flight for backend in parts.backends] == [0, 0]


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("is_good", [True, False])
def test_a_reset_of_the_second_attempt_is_its_backends_fault_if_the_first_is_answered_well(
    is_whole: bool, is_good: bool
) -> None:
    parts, passive_health, first = judged(count=2)
    one = first.exchange
    hedge = beside(parts, one)
    parts.dispatcher.accounts.attempt_ended(hedge, Outcome.RESET)
    assert passive_health.told == []
    code = 0 if is_good else 3
    if is_whole:
        parts.dispatcher.accounts.answered_whole(first, code, parts.loop.time())
    else:
        parts.dispatcher.accounts.attempt_ended(first, Outcome.ANSWERED, code)
    told = ("failed", hedge.backend.name, b"m", Fault.ERROR)
    assert passive_health.told == ([told] if is_good else [])


def test_nobody_is_to_blame_where_both_attempts_are_reset() -> None:
    parts, passive_health, first = judged(count=2)
    one = first.exchange
    parts.dispatcher.accounts.attempt_ended(beside(parts, one), Outcome.RESET)
    parts.dispatcher.accounts.attempt_ended(first, Outcome.RESET)
    assert not parts.dispatcher.retry.take_retry(
        one, Outcome.RESET, body_retained=False, response_begun=False
    )
    assert passive_health.told == []


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_limits_are_given_back_with_the_attempt_that_counts(is_overtaken: bool) -> None:
    limit = Limit(concurrent=1)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    parts = make(gate=gate)
    credentials = gate.credentials(INFER, (), is_control=False)
    assert credentials is not None
    one = exchange()
    parts.dispatcher.accounts.begin()
    parts.dispatcher.admit(one, credentials, NOBODY)
    other, counts = place(parts, one), beside(parts, one)
    if is_overtaken:
        parts.dispatcher.accounts.overtake(one)
    else:
        other, counts = counts, other
    parts.dispatcher.accounts.finish(one)
    parts.dispatcher.accounts.attempt_ended(other, Outcome.OVERTAKEN)
    assert limit.open_of(b"") == 1
    parts.dispatcher.accounts.attempt_ended(counts, Outcome.ANSWERED, 0)
    assert limit.open_of(b"") == 0


# What ends an exchange
