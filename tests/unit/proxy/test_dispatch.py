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
from lb.domain.pool import PoolRef, PoolSnapshot
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Exchange, Particulars
from lb.proxy.reruns import Reruns
from lb.wire.ledger import Ledger
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
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
    ledger: Ledger
    loop: FakeLoop


def make(count: int = 2, *, max_in_flight: int = 0, gate: Gate | None = None) -> Parts:
    backends = tuple(make_backend(f"b{n}", max_in_flight=max_in_flight) for n in range(count))
    outcomes, finished, ledger, loop = Outcomes(), Finished(), Ledger(800), FakeLoop()
    ref = PoolRef(snapshot_of(backends))
    dispatcher = Dispatcher(
        ref, outcomes, finished, clock=loop.time, ledger=ledger, max_attempts=3, gate=gate
    )
    dispatcher.reruns = Reruns(ref, loop.time, schedule=loop.call_later)
    return Parts(dispatcher, backends, outcomes, finished, ledger, loop)


def exchange(operation: Operation = INFER) -> Exchange:
    return Exchange(GRPC, operation, "10.0.0.9:4711", 1.0)


def may_retry(parts: Parts, one: Exchange, outcome: Outcome) -> bool:
    return parts.dispatcher.may_retry(one, outcome, body_retained=True, response_begun=False)


def test_an_attempt_is_counted_from_its_placement_to_its_end() -> None:
    parts = make(1)
    backend, port = parts.backends[0], parts.backends[0].port(GRPC)
    one = exchange()
    assert parts.dispatcher.place(one) is backend
    assert (backend.in_flight, port.in_flight, port.attempts, one.attempts) == (1, 1, 1, 1)
    parts.loop.advance(0.003)
    for _ in range(2):
        parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 5)
    assert (backend.in_flight, port.in_flight, port.attempts) == (0, 0, 1)
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
        parts.dispatcher.begin(one)
        parts.dispatcher.place(one)
        one.bytes_in, one.bytes_out = 7, 9
        parts.loop.advance(0.003)
        now = parts.loop.time()
        if is_whole:
            parts.dispatcher.answered_whole(one, 5, now)
        else:
            port.bytes_sent += 7  # the relay's part
            port.bytes_received += 9
            parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 5, now)
            parts.dispatcher.finish(one, None, now)
        assert parts.finished.records == [one]
        names = ("in_flight", "attempts", "codes", "bytes_sent", "bytes_received", "failures")
        seen.append(
            (
                parts.backends[0].in_flight,
                [getattr(port, name) for name in names],
                (port.latency.sum, port.latency.counts),
                (one.finished, one.ended_at, one.reason, one.port),
                parts.dispatcher.open_exchanges,
            )
        )
    assert seen[0] == seen[1]


def test_a_failed_attempt_is_reported_and_its_backend_avoided() -> None:
    parts = make(2)
    one = exchange()
    first = parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.CONNECT_REFUSED)
    assert parts.outcomes.seen == [(first.name, Outcome.CONNECT_REFUSED)]
    assert first.port(GRPC).failures == {"connect_refused": 1}
    assert first.in_flight == 0
    assert may_retry(parts, one, Outcome.CONNECT_REFUSED)
    second = parts.dispatcher.place(one)
    assert second is not first
    assert one.tried == (first,)


def test_placed_at_is_that_of_the_first_attempt() -> None:
    parts = make(2)
    one = exchange()
    parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.CONNECT_REFUSED)
    parts.loop.advance(1.0)
    parts.dispatcher.place(one)
    assert one.attempt_at == one.placed_at + 1.0


def test_no_backend_means_a_refusal() -> None:
    with pytest.raises(RequestRefused) as caught:
        make(0).dispatcher.place(exchange())
    assert caught.value.reason is Reason.NO_BACKEND


def test_full_backends_mean_a_refusal() -> None:
    parts = make(2, max_in_flight=1)
    for _ in range(2):
        parts.dispatcher.place(exchange())
    with pytest.raises(RequestRefused) as caught:
        parts.dispatcher.place(exchange())
    assert caught.value.reason is Reason.BACKENDS_FULL
    assert [backend.in_flight for backend in parts.backends] == [1, 1]


def test_short_memory_means_a_refusal() -> None:
    parts = make()

    class Hoarder:
        held = 0

        def evict(self) -> None:
            raise AssertionError

    parts.ledger.take(Hoarder(), 700)
    with pytest.raises(RequestRefused) as caught:
        parts.dispatcher.place(exchange())
    assert caught.value.reason is Reason.MEMORY


def test_attempts_are_limited() -> None:
    parts = make(5)
    one = exchange()
    for left in (True, True, False):
        parts.dispatcher.place(one)
        parts.dispatcher.attempt_ended(one, Outcome.CONNECT_REFUSED)
        assert may_retry(parts, one, Outcome.CONNECT_REFUSED) is left


def test_a_refused_connection_needs_another_backend() -> None:
    parts = make(1)
    one = exchange()
    parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.CONNECT_REFUSED)
    assert not may_retry(parts, one, Outcome.CONNECT_REFUSED)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.STALE])
def test_the_same_backend_will_do_for_what_a_new_connection_mends(outcome: Outcome) -> None:
    parts = make(1)
    one = exchange()
    backend = parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, outcome)
    assert may_retry(parts, one, outcome)
    assert parts.dispatcher.place(one) is backend


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.STALE])
def test_a_lost_connection_is_forgiven_once(outcome: Outcome) -> None:
    parts = make(3)
    one = exchange()
    for _ in range(2):
        parts.dispatcher.place(one)
        parts.dispatcher.attempt_ended(one, outcome)
        assert may_retry(parts, one, outcome)
    with pytest.raises(RequestRefused):
        parts.dispatcher.place(one)  # the first server gave no sign of life since


def test_what_may_have_run_needs_another_backend() -> None:
    parts = make(1)
    one = exchange()
    parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.LOST)
    assert not may_retry(parts, one, Outcome.LOST)


def test_what_did_not_run_goes_again_at_once_and_the_rest_a_little_later() -> None:
    parts = make(2)
    placed: list[Outcome] = []
    for outcome in (Outcome.REFUSED, Outcome.LOST):
        parts.dispatcher.go_again(exchange(), outcome, lambda o=outcome: placed.append(o))  # type: ignore[misc]
    assert placed == [Outcome.REFUSED]
    parts.loop.advance(0.1)
    assert placed == [Outcome.REFUSED, Outcome.LOST]


def test_what_must_not_run_twice_goes_again_only_when_it_did_not_run() -> None:
    parts = make(2)
    parts.dispatcher.reruns.never = frozenset({b"orders"})
    one = exchange()
    one.model = b"orders"
    parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.REFUSED)
    assert may_retry(parts, one, Outcome.REFUSED)
    assert not may_retry(parts, one, Outcome.STALE)


def test_what_the_table_forbids_is_not_placed_again() -> None:
    """A control operation after a race, a lost body, a begun response, a lost answer."""
    parts = make(2)
    one = exchange(LOAD)
    parts.dispatcher.place(one)
    parts.dispatcher.attempt_ended(one, Outcome.STALE)
    assert not may_retry(parts, one, Outcome.STALE)
    assert not may_retry(parts, one, Outcome.LOST)
    for retained, begun in ((False, False), (True, True)):
        assert not parts.dispatcher.may_retry(
            one, Outcome.REFUSED, body_retained=retained, response_begun=begun
        )


def test_a_request_is_finished_once() -> None:
    parts = make()
    one = exchange()
    parts.dispatcher.begin(one)
    assert parts.dispatcher.open_exchanges == 1
    parts.loop.advance(2.0)
    parts.dispatcher.finish(one, Reason.CLIENT_GONE)
    parts.dispatcher.finish(one)
    assert parts.dispatcher.open_exchanges == 0
    assert parts.finished.records == [one]
    assert (one.reason, one.ended_at) == (Reason.CLIENT_GONE, parts.loop.time())


def test_the_attempt_outlives_a_client_that_left() -> None:
    parts = make(1)
    one = exchange()
    parts.dispatcher.begin(one)
    backend = parts.dispatcher.place(one)
    parts.dispatcher.finish(one, Reason.CLIENT_GONE)
    assert backend.in_flight == 1
    parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 0)
    assert backend.in_flight == 0


def test_lost_idle_connections_are_reported() -> None:
    parts = make(1)
    parts.dispatcher.connection_lost(parts.backends[0], GRPC)
    assert parts.outcomes.seen == [("b0", Outcome.LOST)]


def test_the_exit_is_announced_to_those_who_watch() -> None:
    parts = make(1)
    seen: list[tuple[PoolSnapshot, bool]] = []
    pool = parts.dispatcher.pool
    pool.subscribe(lambda snapshot: seen.append((snapshot, parts.dispatcher.exiting)))
    parts.dispatcher.announce_exit()
    assert seen == [(pool.current, True)]
    parts.dispatcher.place(exchange())


# Access


@pytest.mark.parametrize("outcome", [Outcome.ANSWERED, Outcome.LOST])
@pytest.mark.parametrize("client_goes_first", [True, False])
def test_limits_are_given_back_once_client_and_backend_are_done(
    client_goes_first: bool, outcome: Outcome
) -> None:
    limit = Limit(concurrent=1)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    parts = make(gate=gate)
    claim = gate.claim(INFER, (), is_control=False)
    assert claim is not None
    one = exchange()
    parts.dispatcher.begin(one)
    parts.dispatcher.admit(one, claim, NOBODY)
    parts.dispatcher.place(one)
    ends = [
        lambda: parts.dispatcher.finish(one),
        lambda: parts.dispatcher.attempt_ended(one, outcome),
    ]
    for count, end in enumerate(ends if client_goes_first else reversed(ends)):
        assert limit.open_of(b"") == 1, count
        end()
        end()
    assert limit.open_of(b"") == 0


def test_a_request_that_never_ran_gives_its_share_back() -> None:
    limit = Limit(concurrent=1)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    parts = make(0, gate=gate)
    claim = gate.claim(INFER, (), is_control=False)
    assert claim is not None
    for _ in range(2):
        one = exchange()
        parts.dispatcher.begin(one)
        parts.dispatcher.admit(one, claim, NOBODY)
        parts.dispatcher.finish(one, Reason.NO_BACKEND)


def test_the_name_of_the_token_is_known_even_of_refused_requests() -> None:
    secret = b"0123456789abcdef"
    book = TokenBook([Token("key", digest_of(secret), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=True), book)
    fields = [(b"authorization", b"Bearer " + secret)]
    claim = gate.claim(LOAD, fields, is_control=True)
    assert claim is not None
    one = exchange(LOAD)
    with pytest.raises(RequestRefused):
        make(gate=gate).dispatcher.admit(one, claim, NOBODY)
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
    claim = gate.claim(INFER, [(b"x-forwarded-for", field)], is_control=False)
    assert claim is not None
    one = exchange()
    one.client = proxy.name
    make(gate=gate).dispatcher.admit(one, claim, proxy)
    assert one.client == name
    stranger = replace(proxy, is_trusted_proxy=False)
    one.client = stranger.name
    make(gate=gate).dispatcher.admit(one, claim, stranger)
    assert one.client == stranger.name


def test_a_further_stream_of_a_call_is_an_attempt_at_the_backend_that_is_named() -> None:
    parts = make()
    backend = parts.backends[1]
    one = exchange()
    parts.dispatcher.start(one, backend, 7.0)
    port = backend.port(GRPC)
    assert (backend.in_flight, port.in_flight, port.attempts) == (1, 1, 1)
    assert (one.backend, one.attempts, one.attempt_at, one.placed_at) == (backend, 1, 7.0, 7.0)
    parts.dispatcher.attempt_ended(one, Outcome.ANSWERED)
    assert (backend.in_flight, port.in_flight, port.codes) == (0, 0, {0: 1})


# How requests fare


class Conduct:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, bytes, object]] = []

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        backend.reports_due -= 1
        self.told.append(("answered", backend.name, model, round(took_s, 3)))

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        self.told.append(("failed", backend.name, model, fault))

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        self.told.append(("abandoned", backend.name, model, round(waited_s, 3)))


def judged(operation: Operation = INFER) -> tuple[Parts, Conduct, Exchange]:
    """A placed exchange for the model m, and who is told of it."""
    parts = make(1)
    conduct = parts.dispatcher.conduct = Conduct()
    one = exchange(operation)
    one.model = b"m"
    parts.dispatcher.begin(one)
    parts.dispatcher.place(one)
    return parts, conduct, one


@pytest.mark.parametrize("is_whole", [True, False])
def test_good_answers_are_told_of_as_long_as_they_are_asked_for(is_whole: bool) -> None:
    parts, conduct, one = judged()
    parts.backends[0].reports_due = 1
    for _ in range(2):
        parts.loop.advance(0.02)
        if is_whole:
            parts.dispatcher.answered_whole(one, 0, parts.loop.time())
        else:
            parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 0)
        one = exchange()
        one.model = b"m"
        parts.dispatcher.place(one)
    assert conduct.told == [("answered", "b0", b"m", 0.02)]


def test_an_answer_took_until_its_first_byte() -> None:
    parts, conduct, one = judged()
    parts.backends[0].reports_due = 1
    parts.loop.advance(0.02)
    one.first_byte_at = parts.loop.time()
    parts.loop.advance(5.0)
    parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 0)
    assert conduct.told == [("answered", "b0", b"m", 0.02)]


def test_errors_are_no_good_answers() -> None:
    parts, conduct, one = judged()
    parts.backends[0].reports_due = 5
    parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 13)
    assert conduct.told == []


def test_errors_that_may_be_the_backends_fault_are_told_of() -> None:
    parts, conduct, one = judged()
    parts.dispatcher.answered_with_error(one, 3, "inference input data-type is 'FP32'")
    parts.dispatcher.answered_with_error(one, 14, "This protocol is restricted, expecting header")
    assert conduct.told == []
    parts.dispatcher.answered_with_error(one, 13, "anything")
    parts.dispatcher.answered_with_error(one, 13, "CUDA error: no kernel image")
    assert conduct.told == [
        ("failed", "b0", b"m", Fault.ERROR),
        ("failed", "b0", b"m", Fault.DEVICE),
    ]
    parts.dispatcher.attempt_ended(one, Outcome.ANSWERED, 13)
    parts.dispatcher.answered_with_error(one, 13, "anything")  # it is over
    assert len(conduct.told) == 2


def test_a_step_of_a_sequence_can_only_tell_of_what_is_certain() -> None:
    parts, conduct, one = judged()
    one.particulars = Particulars()
    one.particulars.regions = (b"region",)
    parts.dispatcher.answered_with_error(one, 13, "anything")
    assert conduct.told == []
    parts.dispatcher.answered_with_error(one, 13, "CUDA error: no kernel image")
    assert conduct.told == [("failed", "b0", b"m", Fault.DEVICE)]


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
    parts, conduct, one = judged()
    parts.loop.advance(0.5)
    parts.dispatcher.attempt_ended(one, outcome)
    assert not parts.dispatcher.may_retry(one, outcome, body_retained=False, response_begun=False)
    assert conduct.told == ([told] if told else [])


def test_nothing_is_told_of_calls_that_change_servers() -> None:
    parts, conduct, one = judged(LOAD)
    parts.backends[0].reports_due = 5
    parts.dispatcher.answered_with_error(one, 13, "CUDA error")
    parts.dispatcher.attempt_ended(one, Outcome.LOST)
    assert conduct.told == []
