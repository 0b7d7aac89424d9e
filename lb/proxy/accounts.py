"""The accounts of every exchange and attempt: what is open, what is in flight, how it ended.

Invariants: an attempt leaves the count of its backend and port exactly once, whatever happens to
the client meanwhile; what a request holds of its client's limits is given back once both its
client and its backend are done with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.domain.pool import OutcomeSink
from lb.domain.retry import LOSSES, REPLAY_TABLE, Ran
from lb.proxy.blame import Blame
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.queue import Queue
from lb.proxy.reruns import RerunLimits
from lb.proxy.steps import Steps
from lb.proxy.tracing import TracedRequests, Tracer
from lb.telemetry.record import RequestSink

_ANSWERED: Final = Outcome.ANSWERED


class Accounts:
    """The accounts of one process. To be used from one event loop."""

    __slots__ = (
        "_outcomes", "_reruns", "_steps", "blame", "clock", "open_exchanges", "overtaken", "queue",
        "requests", "tracer",
    )  # fmt: skip

    def __init__(
        self,
        outcomes: OutcomeSink,
        requests: RequestSink,
        clock: Callable[[], float],
        *,
        queue: Queue,
        steps: Steps,
        reruns: RerunLimits,
        blame: Blame,
    ) -> None:
        """
        Args:
            outcomes: is told of attempts that ended without an answer.
            requests: is told of finished requests, until `configure`.
            clock: monotonic seconds.
            queue: is told of attempts of scheduled models.
            steps: is told of attempts at steps of sequences.
            reruns: is told of hedges that were lost.
            blame: is told how attempts fared.
        """
        self._outcomes = outcomes
        self.requests = requests
        self.clock = clock
        self.queue = queue
        self._steps = steps
        self._reruns = reruns
        self.blame = blame
        self.open_exchanges = 0
        """Gauge: exchanges begun and not finished."""
        self.overtaken = 0
        """Attempts that were slower than the one beside them."""
        self.tracer: Tracer | None = None
        """Is told of attempts that ended; None while nothing is traced."""

    def configure(self, requests: RequestSink, tracer: Tracer | None) -> None:
        """Tell others of finished requests from now on, and of attempts that ended."""
        self.tracer = tracer
        self.requests = requests if tracer is None else TracedRequests(tracer, requests)

    # Requests

    def begin(self) -> None:
        """Count an exchange as open. Its head is complete."""
        self.open_exchanges += 1

    def finish(
        self, exchange: Exchange, reason: Reason | None = None, now: float | None = None
    ) -> None:
        """The client's side of an exchange is over: log and count it. Idempotent.

        The attempt may go on (a Triton computes although its client left) and ends by itself.
        """
        if exchange.finished:
            return
        exchange.finished = True
        attempt = exchange.attempt
        is_over = attempt is None or attempt.outcome is not None
        if exchange.is_part:
            if is_over:
                exchange.attempt = None  # they point at each other
            return
        self.open_exchanges -= 1
        # What still runs on a backend is still one of its client's requests.
        if exchange.permit is not None and is_over:
            exchange.permit.release()
        if reason is not None:
            exchange.reason = reason
        exchange.ended_at = self.clock() if now is None else now
        self.requests.finished(exchange)
        if is_over:
            exchange.attempt = None  # they point at each other

    # Attempts

    def attempt_ended(
        self, attempt: Attempt, outcome: Outcome, code: int = 0, now: float | None = None
    ) -> None:
        """Take an attempt off its backend and count how it ended. Idempotent.

        Args:
            attempt: that is over.
            outcome: how it ended.
            code: HTTP or gRPC status when it was answered.
            now: the time, where the caller has it.
        """
        # HOT PATH (benchmarks/load). Same reason as `Placer.place`. For how long it took
        # `Attempt.took_s` is the reference.
        if attempt.outcome is not None:
            return
        attempt.outcome = outcome
        exchange = attempt.exchange
        backend = attempt.backend
        port = attempt.port
        backend.in_flight -= 1
        port.in_flight -= 1
        if attempt.is_set_aside:
            backend.count_again()
        if exchange.finished and attempt is exchange.attempt:
            exchange.attempt = None  # they point at each other
            if exchange.permit is not None:
                exchange.permit.release()
        if now is None:
            now = self.clock()
        if self.tracer is not None:
            self.tracer.attempt_ended(attempt, outcome, code, now)
        hints = exchange.hints
        if hints is not None and hints.step is not None:
            self._steps.ended(attempt, hints, outcome, code, now)
        if attempt.in_flight_messages is not None:
            attempt.in_flight_messages.close(now)
        if attempt.ticket is not None:
            self.queue.ended(attempt, outcome, code, now)
        if outcome is _ANSWERED:
            if exchange.suspicion is not None and not attempt.erred:
                self.blame.mended(exchange, code, now)
            codes = port.codes
            codes[code] = codes.get(code, 0) + 1
            began_at, sent_at = attempt.began_at, exchange.sent_at
            took = now - (sent_at if began_at < sent_at <= now else began_at)
            latency = port.latency
            latency.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
            latency.sum += took
            if backend.reports_due:
                self.blame.answered(attempt, code, now)
            return
        label = OUTCOME_REASONS[outcome].value
        port.failures[label] = port.failures.get(label, 0) + 1
        if attempt is exchange.attempt or outcome is not Outcome.OVERTAKEN:
            exchange.tried = (*exchange.tried, backend)
        if REPLAY_TABLE[outcome].ran is Ran.MAYBE:
            exchange.may_have_run = True
        if attempt is not exchange.attempt and outcome in LOSSES:
            self._reruns.ended_beside(attempt, outcome, now)
        self._outcomes.report(backend, exchange.protocol, outcome, now)
        self.blame.failed(attempt, outcome, now)

    def answered_whole(
        self, attempt: Attempt, status: int, now: float, *, are_bytes_counted: bool = False
    ) -> None:
        """An attempt is answered, and the client has the answer: both at once.

        Args:
            attempt: it is under way, no step of a sequence, and its exchange without permit. If it
                has a ticket, `Scheduler.complete` is to be called after this.
            status: gRPC or HTTP status of the answer.
            now: the time.
            are_bytes_counted: the port has those of request and answer already.
        """
        # HOT PATH (benchmarks/bench_http2_relay.py). `attempt_ended` and `finish` in one for the
        # common unary call; those are the reference.
        exchange = attempt.exchange
        port = attempt.port
        backend = attempt.backend
        attempt.outcome = _ANSWERED
        backend.in_flight -= 1
        port.in_flight -= 1
        if attempt.is_set_aside:
            backend.count_again()
        if not are_bytes_counted:
            port.bytes_sent += exchange.bytes_in
            port.bytes_received += exchange.bytes_out
        if exchange.suspicion is not None:
            self.blame.mended(exchange, status, now)
        codes = port.codes
        codes[status] = codes.get(status, 0) + 1
        took = attempt.took_s(now) if exchange.sent_at else now - attempt.began_at
        latency = port.latency
        latency.counts[bisect_left(LATENCY_BOUNDS_S, took)] += 1
        latency.sum += took
        if backend.reports_due:
            self.blame.answered(attempt, status, now)
        exchange.finished = True
        self.open_exchanges -= 1
        exchange.ended_at = now
        self.requests.finished(exchange)
        exchange.attempt = None

    def stop(self, exchange: Exchange, outcome: Outcome) -> None:
        """Whatever ends an exchange ends its attempt, if one is under way, or else its waiting."""
        attempt = exchange.attempt
        if attempt is not None and attempt.outcome is None:
            self.attempt_ended(attempt, outcome)
        else:
            self.queue.leave(exchange)

    def overtake(self, exchange: Exchange) -> None:
        """The attempt beside the first is the first to answer, and takes its place. The one that
        was overtaken may run on."""
        first = exchange.attempt
        assert first is not None
        exchange.tried = (*exchange.tried, first.backend)
        self.overtaken += 1
        self.promote(exchange)

    def promote(self, exchange: Exchange) -> None:
        """The attempt beside the first takes its place."""
        hedge, ticket = exchange.hedge, exchange.ticket
        assert hedge is not None
        if ticket is not None:
            # The first attempt may run on with its ticket, and the exchange be placed again.
            exchange.ticket = hedge.ticket or ticket.hedge()
        exchange.attempt, exchange.hedge = hedge, None
        exchange.backend = hedge.backend
        exchange.attempts += 1

    def connection_lost(self, backend: Backend, protocol: AppProtocol) -> None:
        """A connection without requests was lost: the control plane may want to know why."""
        self._outcomes.report(backend, protocol, Outcome.LOST, self.clock())
