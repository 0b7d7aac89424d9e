"""How long an answer that nobody waits for may take, and what is said when it never comes."""

from __future__ import annotations

import logging

import pytest

from lb.balancing.unanswered import overdue_after_s
from lb.domain.backend import AppProtocol
from lb.domain.schedule import QueuePlan, RequestClass, Ticket
from lb.kserve.operations import MODEL_INFER
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.lost import UNSCHEDULED_S, abandoned_until, report_abandoned
from tests.fakes.backends import make_backend


def sent(expected_s: float | None) -> Attempt:
    """An attempt under way since 100 s; scheduled if something is expected of it."""
    exchange = Exchange(AppProtocol.HTTP, MODEL_INFER, "client", 99.0)
    exchange.model = b"m"
    backend = make_backend("b0")
    attempt = Attempt(exchange, backend, backend.port(AppProtocol.HTTP), 100.0)
    if expected_s is not None:
        attempt.ticket = Ticket(RequestClass(b"m", b"", QueuePlan(limits={}), (backend,)), 99.0)
        attempt.ticket.expected_s = expected_s
        attempt.ticket.model_backend = object()
    return attempt


@pytest.mark.parametrize("expected_s", [0.001, 3.0])
def test_what_is_expected_says_how_long_it_is_waited_for(expected_s: float) -> None:
    assert abandoned_until(sent(expected_s)) == 100.0 + overdue_after_s(expected_s)


def test_where_nothing_is_known_it_is_waited_for_a_minute() -> None:
    assert abandoned_until(sent(None)) == 100.0 + UNSCHEDULED_S


def test_a_ticket_of_which_the_attempt_is_not_says_nothing_of_it() -> None:
    attempt = sent(None)
    attempt.exchange.ticket = sent(3.0).ticket
    assert abandoned_until(attempt) == 100.0 + UNSCHEDULED_S


@pytest.mark.parametrize("expected_s", [None, 0.01])
def test_an_attempt_that_is_given_up_is_counted_and_logged(
    expected_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = sent(expected_s)
    with caplog.at_level(logging.WARNING):
        report_abandoned(attempt, 103.0)
    assert attempt.backend.lost_requests == 1
    (record,) = caplog.records
    assert (record.__dict__["backend"], record.__dict__["model"]) == ("b0", "m")
    assert record.__dict__["seconds"] == 3.0
