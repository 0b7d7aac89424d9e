"""A request begins with nothing known of its end."""

from __future__ import annotations

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Outcome
from lb.proxy.exchange import Attempt, Exchange
from lb.telemetry.record import RequestRecord
from tests.fakes.backends import make_backend
from tests.fakes.records import INFER


def test_a_new_exchange_has_every_fact_of_a_record() -> None:
    one = Exchange(AppProtocol.GRPC, INFER, "10.0.0.9:4711", 5.0)
    facts = [name for name in dir(RequestRecord) if not name.startswith("_")]
    assert "client" in facts
    for name in facts:
        getattr(one, name)
    assert (one.client, one.started_at, one.attempts) == ("10.0.0.9:4711", 5.0, 0)
    assert (one.status, one.grpc_status, one.reason) == (0, -1, None)
    assert not one.finished


def test_it_shows_what_it_is_and_where() -> None:
    one = Exchange(AppProtocol.GRPC, INFER, "", 0.0)
    assert repr(one) == "<Exchange ModelInfer backend=->"
    one.backend = make_backend("gpu-0")
    assert repr(one) == "<Exchange ModelInfer backend=gpu-0>"


def test_it_is_under_way_while_its_last_attempt_is() -> None:
    one = Exchange(AppProtocol.GRPC, INFER, "", 0.0)
    assert (one.is_under_way, one.connected_at, one.first_byte_at) == (False, 0.0, 0.0)
    backend = make_backend("gpu-0")
    attempt = one.attempt = Attempt(one, backend, backend.port(AppProtocol.GRPC), 5.0)
    attempt.connected_at, attempt.first_byte_at = 6.0, 7.0
    assert (one.is_under_way, one.connected_at, one.first_byte_at) == (True, 6.0, 7.0)
    assert repr(attempt) == "<Attempt gpu-0 under way>"
    attempt.outcome = Outcome.ANSWERED
    assert (one.is_under_way, one.first_byte_at) == (False, 7.0)
    assert repr(attempt) == "<Attempt gpu-0 answered>"
