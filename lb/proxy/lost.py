"""Requests that a backend never answers: how long they are waited for, counted and logged."""

from __future__ import annotations

import logging
from typing import Final

from lb.balancing.unanswered import overdue_after_s
from lb.domain.backend import Backend
from lb.domain.names import readable
from lb.domain.schedule import Ticket
from lb.proxy.exchange import Attempt

_log = logging.getLogger(__name__)

UNSCHEDULED_S: Final = 60.0
"""How long an answer that nobody waits for may take where nothing was learnt of the model: as long
as reverse proxies wait for an answer by default."""


def report_lost(ticket: Ticket, now: float) -> None:
    """Count and log a request whose backend has answered later ones, but not this one."""
    if ticket.backend is not None:
        _report(ticket.backend, ticket.model, now - ticket.began_at)


def report_abandoned(attempt: Attempt, now: float) -> None:
    """Count and log an attempt that is ended because no client and no answer is left of it."""
    ticket = attempt.ticket
    if ticket is None or ticket.model_backend is not None:
        _report(attempt.backend, attempt.exchange.model, attempt.took_s(now))


def abandoned_until(attempt: Attempt) -> float:
    """When an attempt whose exchange has no client any more is ended, if it is not answered
    before."""
    ticket = attempt.ticket
    wait_s = UNSCHEDULED_S if ticket is None else overdue_after_s(ticket.expected_s)
    return attempt.awaited_since() + wait_s


def executed_until(attempt: Attempt) -> float:
    """When a backend is expected to have executed an attempt; when all of it was sent where nobody
    knows."""
    ticket = attempt.ticket
    return attempt.awaited_since() + (0.0 if ticket is None else ticket.expected_s)


def _report(backend: Backend, model: bytes, waited_s: float) -> None:
    backend.lost_requests += 1
    _log.warning(
        "request given up as lost: the backend does not answer it",
        extra={
            "backend": backend.name,
            "model": readable(model),
            "seconds": round(waited_s, 3),
        },
    )
