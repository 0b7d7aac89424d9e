"""How requests fare at backends, told to those who judge backends; and whose fault it is that a
request was reset: its own, or that of the backend that had it.

A Triton that cannot read the head of a request resets its stream, or closes the connection over
HTTP/1.1, without an answer; a Triton that is broken does so, too. Another backend tells which:
what it answers well was not the request's fault, and what it resets as well was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.domain.fault import Fault
from lb.domain.hedge import Durations
from lb.domain.operation import OperationKind
from lb.domain.outcome import Outcome
from lb.domain.pool import PassiveHealthSink
from lb.kserve.faults import fault_of_answer
from lb.proxy.exchange import Attempt, Exchange, Suspicion

_REMEMBERED_S: Final = 10.0
"""A client that sends requests which no backend takes will send others."""
_MAX_MODELS: Final = 1000
_THE_REQUEST: Final = Suspicion(None, None, 0.0, 0)
_JUDGED: Final = frozenset({OperationKind.INFERENCE, OperationKind.OTHER})
"""Requests that tell how a backend fares with a model."""
_ERRING: Final = _JUDGED | {OperationKind.STREAM}
"""Kinds of operations whose errors do."""
_FAULTS: Final = {
    Outcome.CONNECT_TIMEOUT: Fault.CONNECTION,
    Outcome.CONNECT_FAILED: Fault.CONNECTION,
    Outcome.LOST: Fault.CONNECTION,
    Outcome.PROTOCOL_ERROR: Fault.CONNECTION,
    Outcome.STALLED: Fault.CONNECTION,
    Outcome.SILENT: Fault.CONNECTION,
    Outcome.RESET: Fault.ERROR,
    Outcome.HEAD_TOO_LARGE: Fault.ERROR,
}
"""What speaks against a backend. A refused connection takes it out anyway. A request can cause a
head that is too large, since errors repeat what it says."""
_PERHAPS_THE_REQUEST: Final = (
    frozenset({Outcome.STALE, Outcome.LOST}),
    frozenset({Outcome.RESET}),
)
"""By protocol: what ends the attempt of a request that the backend cannot read, and of no other
one. Over gRPC the others on a connection that is lost would be suspects as well."""
_ABANDONED: Final = frozenset({
    Outcome.LATE, Outcome.DEADLINE, Outcome.CANCELLED, Outcome.OVERTAKEN,
})  # fmt: skip


def _is_good(exchange: Exchange, code: int) -> bool:
    """Whether an answer is no error."""
    return not code if exchange.protocol else 200 <= code < 400


def _has_no_choice(exchange: Exchange) -> bool:
    """Whether it could not have gone elsewhere: then nothing can be compared."""
    hints = exchange.hints
    return hints is not None and bool(hints.step or hints.regions)


def _is_judged(exchange: Exchange) -> bool:
    """Whether its end tells how a backend fares."""
    return exchange.operation.kind in _JUDGED and not _has_no_choice(exchange)


class Blame:
    """What is known of the requests of one process."""

    __slots__ = ("_clock", "_culprits", "_passive_health", "durations")

    def __init__(self, passive_health: PassiveHealthSink, clock: Callable[[], float]) -> None:
        """
        Args:
            passive_health: judges backends.
            clock: monotonic seconds.
        """
        self._passive_health = passive_health
        self._clock = clock
        self._culprits: dict[bytes, float] = {}
        """When a request was last found to be at fault, by the name of its model."""
        self.durations = Durations()
        """How long the good answers took that were told of."""

    # What the relays tell

    def answered_with_error(self, attempt: Attempt, code: int, text: str) -> bool:
        """The backend answers with an error. To be called before `Accounts.attempt_ended`.

        Args:
            attempt: that is answered so.
            code: HTTP or gRPC status.
            text: of the error, as far as it is known.

        Returns:
            Whether it says that the backend is broken, so that another one may do better.
        """
        exchange = attempt.exchange
        if attempt.outcome is not None or exchange.operation.kind not in _ERRING:
            return False
        fault = fault_of_answer(exchange.protocol, code, text)
        if fault is None or (fault is Fault.ERROR and _has_no_choice(exchange)):
            return False
        now = self._clock()
        self._passive_health.failed(
            attempt.backend, exchange.model, fault, attempt.took_s(now), now
        )
        attempt.erred = True
        return fault is Fault.DEVICE

    def answered_first(self, attempt: Attempt) -> None:
        """A stream has good answers, the first one or since there was an error."""
        if attempt.backend.reports_due and not _has_no_choice(attempt.exchange):
            self._answered_well(attempt, self._clock())

    def answered_otherwise(self, attempt: Attempt) -> None:
        """The backend answers an inference with a good status and without a result. To be called
        before `Accounts.attempt_ended`, if the client gets that."""
        attempt.erred = True
        self.failed(attempt, Outcome.PROTOCOL_ERROR, self._clock())

    def refused(self, attempt: Attempt) -> None:
        """A backend refuses a request, and says that it did not look at it. One that does so now
        and then is busy; one that refuses most is broken, and who judges backends tells the two
        apart. To be called before `Accounts.attempt_ended`."""
        exchange = attempt.exchange
        if attempt.outcome is None and _is_judged(exchange):
            now = self._clock()
            took = attempt.took_s(now)
            self._passive_health.failed(attempt.backend, exchange.model, Fault.ERROR, took, now)

    # What accounts and retry tell

    def answered(self, attempt: Attempt, code: int, now: float) -> None:
        """An attempt was answered, and somebody wants to know."""
        exchange = attempt.exchange
        if _is_judged(exchange) and _is_good(exchange, code) and not attempt.erred:
            self._answered_well(attempt, now)

    def failed(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended without an answer: who judges backends is told, if that speaks against
        this one."""
        exchange = attempt.exchange
        if not _is_judged(exchange):
            return
        took = attempt.took_s(now)
        fault = _FAULTS.get(outcome)
        if outcome in _PERHAPS_THE_REQUEST[exchange.protocol] and not attempt.first_byte_at:
            self.suspect(attempt, fault, took, now)
        elif fault is not None:
            self._passive_health.failed(attempt.backend, exchange.model, fault, took, now)
        elif (
            outcome in _ABANDONED
            and not attempt.first_byte_at
            and attempt.awaited_since() <= now  # a backend need not answer half of a request
        ):
            self._passive_health.abandoned(attempt.backend, exchange.model, took, now)

    def mended(self, exchange: Exchange, code: int, now: float) -> None:
        """A backend answers what another one has reset, before or beside it."""
        if _is_good(exchange, code):
            self._accuse(exchange, self.of_answered(exchange), now)

    def given_up(self, exchange: Exchange) -> None:
        """No other backend is asked."""
        now = self._clock()
        self._accuse(exchange, self.of_failed(exchange, now), now)

    def _answered_well(self, attempt: Attempt, now: float) -> None:
        model = attempt.exchange.model
        took_s = attempt.took_s(attempt.first_byte_at or now)
        self.durations.add(model, took_s)
        self._passive_health.answered(attempt.backend, model, took_s, now)

    def _accuse(self, exchange: Exchange, found: Suspicion | None, now: float) -> None:
        if found is not None and found.backend is not None and found.fault is not None:
            self._passive_health.failed(
                found.backend, exchange.model, found.fault, found.took_s, now
            )

    # Suspicions

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
