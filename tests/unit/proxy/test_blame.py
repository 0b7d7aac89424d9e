"""Whether a request or a backend is to blame for resets, without a loop."""

from __future__ import annotations

from lb.domain.backend import Address, AppProtocol, Backend, BackendSpec
from lb.domain.fault import Fault
from lb.proxy.blame import Blame
from lb.proxy.dispatch import NoPassiveHealth
from lb.proxy.exchange import Attempt, Exchange
from tests.fakes.records import INFER

ONE, TWO = (
    Backend(BackendSpec(name=name, grpc=Address("127.0.0.1", 1))) for name in ("one", "two")
)


def reset(blame: Blame, exchange: Exchange, backend: Backend, now: float = 1.0) -> None:
    attempt = Attempt(exchange, backend, backend.port(exchange.protocol), now - 0.1)
    exchange.attempt = attempt
    exchange.attempts += 1
    blame.suspect(attempt, Fault.ERROR, 0.1, now)


def request(model: bytes = b"m") -> Exchange:
    exchange = Exchange(AppProtocol.GRPC, INFER, "client", 0.0)
    exchange.model = model
    return exchange


def test_the_same_backend_twice_says_nothing_more() -> None:
    blame, exchange = Blame(NoPassiveHealth(), float), request()
    reset(blame, exchange, ONE)
    reset(blame, exchange, ONE)
    assert blame.of_answered(exchange) is not None


def test_an_attempt_after_it_that_ended_otherwise_tells_nothing() -> None:
    blame, exchange = Blame(NoPassiveHealth(), float), request()
    reset(blame, exchange, ONE)
    exchange.attempts += 1
    assert blame.of_failed(exchange, 1.0) is None


def test_one_beside_another_tells_nothing_when_that_one_fails() -> None:
    blame, exchange = Blame(NoPassiveHealth(), float), request()
    exchange.attempts = 1
    hedge = Attempt(exchange, ONE, ONE.port(exchange.protocol), 1.0)
    blame.suspect(hedge, Fault.ERROR, 0.1, 1.0)
    assert blame.of_failed(exchange, 1.0) is None


def test_no_backend_is_blamed_while_no_backend_takes_requests_of_the_model() -> None:
    blame, culprit, other = Blame(NoPassiveHealth(), float), request(), request()
    reset(blame, culprit, ONE)
    reset(blame, culprit, TWO)
    reset(blame, other, ONE, 2.0)
    assert blame.of_failed(other, 2.0) is None
    assert blame.of_failed(other, 12.0) is not None
    elsewhere = request(b"another")
    reset(blame, elsewhere, ONE, 2.0)
    assert blame.of_failed(elsewhere, 2.0) is not None


def test_models_that_are_remembered_are_bounded() -> None:
    blame = Blame(NoPassiveHealth(), float)
    for number in range(3000):
        exchange = request(b"%d" % number)
        reset(blame, exchange, ONE)
        reset(blame, exchange, TWO)
    assert len(blame._culprits) <= 1000
