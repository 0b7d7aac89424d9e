"""Whose fault it is that a request was reset: its own, or that of the backend that had it.

A Triton that cannot read the head of a request resets its stream, or closes the connection over
HTTP/1.1, without an answer; a Triton that is broken does so, too. Another backend tells which:
what it answers well was not the request's fault, and what it resets as well was.
"""

from __future__ import annotations

from typing import Final

from lb.domain.fault import Fault
from lb.proxy.exchange import Attempt, Exchange, Suspicion

_REMEMBERED_S: Final = 10.0
"""A client that sends requests which no backend takes will send others."""
_MAX_MODELS: Final = 1000
_THE_REQUEST: Final = Suspicion(None, None, 0.0, 0)


class Blame:
    """What is known of the requests of one process."""

    __slots__ = ("_culprits",)

    def __init__(self) -> None:
        self._culprits: dict[bytes, float] = {}
        """When a request was last found to be at fault, by the name of its model."""

    def suspect(self, attempt: Attempt, fault: Fault | None, took_s: float, now: float) -> None:
        """An attempt was reset.

        Args:
            attempt: that one.
            fault: what that is if it was the backend; None where it would be no fault.
            took_s: how long the attempt took.
            now: monotonic seconds.
        """
        exchange = attempt.exchange
        found = exchange.suspicion
        if found is None or found.backend is attempt.backend:
            number = exchange.attempts if attempt is exchange.attempt else 0
            exchange.suspicion = Suspicion(attempt.backend, fault, took_s, number)
            return
        exchange.suspicion = _THE_REQUEST
        if len(self._culprits) >= _MAX_MODELS:
            self._culprits.clear()
        self._culprits[exchange.model] = now

    def of_answered(self, exchange: Exchange) -> Suspicion | None:
        """The attempt whose backend is to blame, since another one answers the same request
        well."""
        found = exchange.suspicion
        if found is None:
            return None
        exchange.suspicion = _THE_REQUEST
        return found if found.fault is not None else None

    def of_failed(self, exchange: Exchange, now: float) -> Suspicion | None:
        """The attempt whose backend may be to blame, since no other one is asked: not while there
        are requests for the same model that no backend takes."""
        found = exchange.suspicion
        if found is None or found.fault is None or found.attempt != exchange.attempts:
            return None
        if now < self._culprits.get(exchange.model, -_REMEMBERED_S) + _REMEMBERED_S:
            return None
        return found
