"""Which requests are traced, and what is kept of them (docs/tracing.md).

A caller decides by the flag of its trace context, a ratio decides about requests without one.
Besides, a request becomes a trace late, at its end, if it failed, was tried more than once, or was
slower than nearly all of its model. Here spans are only noted; `lb.telemetry.span_exporter` sends
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Final

from lb.domain.client import Client
from lb.domain.operation import OperationKind, Treatment
from lb.domain.outcome import Outcome, Reason
from lb.domain.schedule import Wait
from lb.domain.server_errors import is_span_error
from lb.domain.why import Why
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.request_trace import RequestTrace
from lb.settings.tracing import SampledBy, TracingSettings, UnsampledMode
from lb.telemetry.access_log import CLIENTS_FAULT
from lb.telemetry.record import RequestRecord, RequestSink
from lb.telemetry.sampling import TRACED, Draw, drawing
from lb.telemetry.spans import RareFacts, SpanQueue, TraceFacts
from lb.wire.trace_context import SAMPLED, TraceContext, Traces

LIMITED: Final = "limited"
"""Why spans were never made: there were too many in a second."""
_USUAL_SPANS: Final = 2
"""Spans of a request: its own, and that of an attempt. Further ones are taken off when they are
made."""
_KEPT_FOR_SAMPLED: Final = 0.5
"""Share of the limit that late decisions leave to the others: when everything fails, everything
would be decided late."""
_ANSWERED: Final = Outcome.ANSWERED
_NO_WAIT: Final = Wait.NONE
_NO_FAILURE: Final = frozenset({Outcome.CANCELLED, Outcome.OVERTAKEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRules:
    """What the settings say of traces, where there are any."""

    ratio: float
    trusts_all: bool
    """Whether the sampled flag of any client counts, not only of trusted proxies."""
    spans_per_s: int


def trace_rules(settings: TracingSettings) -> TraceRules | None:
    """Read the rules from the settings; None where nothing is traced."""
    if not settings.endpoint:
        return None
    return TraceRules(
        ratio=settings.ratio,
        trusts_all=settings.from_ is SampledBy.ANYONE,
        spans_per_s=settings.max_spans_per_second,
    )


def contexts_of(settings: TracingSettings) -> Traces:
    """Read from the settings what becomes of trace contexts."""
    if not settings.endpoint:
        return Traces.OFF
    return Traces.PASS if settings.unsampled is UnsampledMode.PASS else Traces.STRIP


class Tracer:
    """Decides for the requests of one process, and notes spans. To be used from one event loop."""

    __slots__ = (
        "_allowed", "_clock", "_kept", "_limit", "_rng", "_since", "draw", "rules", "slow", "spans",
    )  # fmt: skip

    def __init__(self, rng: Random, spans: SpanQueue, clock: Callable[[], float]) -> None:
        """
        Args:
            rng: makes ids, and decides which requests are traced.
            spans: takes what is to be sent.
            clock: monotonic seconds.
        """
        self._rng = rng
        self.spans = spans
        self._clock = clock
        self.rules: TraceRules | None = None
        self.draw: Draw | None = None
        """Whether the request at hand is traced, if its caller does not say; to be asked once for
        each. None while nothing is traced."""
        self._limit = self._kept = 0.0
        """Spans per second, and how many of them late decisions leave to the others."""
        self._allowed = 0.0
        """Spans that may be made now."""
        self._since = 0.0
        """When those were counted."""
        self.slow: dict[bytes, float] = {}
        """Seconds by model that nearly no request takes longer than; models without a limit are
        not in it. Written by others."""

    def configure(self, rules: TraceRules | None) -> None:
        """Go by these rules from now on; None: trace nothing."""
        if rules == self.rules:
            return
        self.rules = rules
        self.draw = None
        if rules is not None:
            self.draw = drawing(self._rng, rules.ratio, TRACED)
            self._limit = self._allowed = float(rules.spans_per_s)
            self._kept = _KEPT_FOR_SAMPLED * self._limit
            self._since = self._clock()

    def begin(
        self, exchange: Exchange, context: TraceContext | None, client: Client, *, is_drawn: bool
    ) -> RequestTrace | None:
        """Trace a request if it is to be; returns its trace then. Its head is complete.

        Args:
            exchange: the request.
            context: that it came with.
            client: who sent it.
            is_drawn: `draw` says so.
        """
        # HOT PATH (benchmarks/micro). Once per traced request.
        rules = self.rules
        if rules is None:
            return None
        if context is not None and (rules.trusts_all or client.is_trusted_proxy):
            is_drawn = context.flags & SAMPLED != 0
        if (
            not is_drawn
            or exchange.operation.treatment is Treatment.ANSWER
            or (self._allowed < 1.0 and not self._admit(exchange.started_at, 0.0))
        ):
            return None
        self._allowed -= _USUAL_SPANS
        exchange.trace = trace = RequestTrace(self._rng, context)
        return trace

    def _admit(self, now: float, kept: float) -> bool:
        """Admit spans of one more request, by the time since this was asked last. False where there
        are too many, which is counted.

        Args:
            now: monotonic seconds.
            kept: spans that are left to others.
        """
        limit = self._limit
        self._allowed = min(self._allowed + (now - self._since) * limit, limit)
        self._since = now
        if self._allowed < 1.0 + kept:
            self.spans.dropped[LIMITED] += _USUAL_SPANS
            return False
        return True

    # Late decisions

    def _decide_late(self, exchange: Exchange, now: float) -> RequestTrace | None:
        """Trace a request that was not to be; None where there are too many."""
        if self.rules is None or not self._admit(now, self._kept):
            return None
        self._allowed -= _USUAL_SPANS
        trace = exchange.trace = RequestTrace(self._rng, exchange.context, is_late=True)
        return trace

    def hedged(self, exchange: Exchange, hedge: Attempt) -> None:
        """A second attempt was begun beside a slow one."""
        whole = exchange.whole
        trace = whole.trace or self._decide_late(whole, hedge.began_at)
        if trace is not None:
            trace.hedged(exchange.attempt, exchange.first_span, hedge)

    # Ends

    def attempt_ended(self, attempt: Attempt, outcome: Outcome, code: int, now: float) -> None:
        """Note an attempt that is over; see `Accounts.attempt_ended`."""
        exchange = attempt.exchange.whole
        trace = exchange.trace
        if trace is None:
            if outcome in _NO_FAILURE or exchange.finished:
                return
            if outcome is _ANSWERED and not is_span_error(exchange.protocol, code):
                return
            trace = self._decide_late(exchange, now)
            if trace is None:
                return
        self._note_attempt(trace, attempt, outcome, code, now)

    def _note_attempt(
        self, trace: RequestTrace, attempt: Attempt, outcome: Outcome, code: int, now: float
    ) -> None:
        exchange = attempt.exchange
        span, why = trace.ended(attempt, exchange.first_span)
        if why is not Why.FIRST:
            self._allowed -= 1.0
        facts = (
            span, why, attempt.backend.name, attempt.port.address, exchange.attempts or 1,
            attempt.began_at, attempt.connected_at, attempt.first_byte_at, now, outcome, code,
        )  # fmt: skip
        self.spans.add((_trace_facts(trace, exchange.whole), None, None, facts))

    def note(self, exchange: Exchange) -> None:
        """Note a request that is over, if it is traced, or now is."""
        # HOT PATH (benchmarks/micro). Once per traced request: one record of plain values. The
        # span of an attempt that answered at once is made of the same, when it is sent.
        trace = exchange.trace
        attempt = exchange.attempt
        if trace is None:
            if not (_has_failed(exchange.reason) or self._is_slow(exchange)):
                return
            trace = self._decide_late(exchange, exchange.ended_at)
            if trace is None:
                return
        connected_at = 0.0
        is_answered = False
        if attempt is not None:
            connected_at = attempt.connected_at
            if attempt.outcome is _ANSWERED:
                if trace.others is None and not trace.is_first_over and exchange.attempts == 1:
                    is_answered = trace.is_first_over = True
                elif not trace.is_noted(attempt):
                    code = exchange.grpc_status if exchange.protocol else exchange.status
                    self._note_attempt(trace, attempt, _ANSWERED, code, exchange.ended_at)
        ticket, hints = exchange.ticket, exchange.hints
        rare: RareFacts | None = None
        if (
            (ticket is not None and ticket.wait is not _NO_WAIT)
            or exchange.held_until > 0.0
            or (hints is not None and not hints.is_shared)
            or (exchange.variant if trace.is_late or not is_answered else "")
        ):
            rare = self._rare_facts(exchange)
        self.spans.add(
            (
                _trace_facts(trace, exchange),
                (
                    exchange.model, exchange.backend, exchange.attempts, exchange.client,
                    exchange.token, exchange.request_id, exchange.started_at, exchange.placed_at,
                    connected_at, exchange.first_byte_at, exchange.ended_at, exchange.bytes_in,
                    exchange.bytes_out, exchange.status, exchange.grpc_status, exchange.reason,
                    is_answered,
                ),
                rare,
                None,
            )
        )  # fmt: skip

    def _rare_facts(self, exchange: Exchange) -> RareFacts:
        why = exchange.queue_why
        has_waited = bool(why) or exchange.held_until > 0.0
        if has_waited:
            self._allowed -= 1.0
        position = exchange.queue_position
        return exchange.sequence, exchange.variant, exchange.parts, has_waited, position, why

    def _is_slow(self, exchange: Exchange) -> bool:
        """Whether a request took longer than nearly all of its model."""
        took_s = exchange.ended_at - exchange.started_at
        kind = exchange.operation.kind
        return kind is OperationKind.INFERENCE and took_s > self.slow.get(exchange.model, inf)


def _trace_facts(trace: RequestTrace, exchange: Exchange) -> TraceFacts:
    # HOT PATH (benchmarks/micro). Once per traced request.
    return (
        trace.number, trace.context, trace.is_late,
        exchange.protocol, exchange.operation, exchange.method, exchange.path,
    )  # fmt: skip


def _has_failed(reason: Reason | None) -> bool:
    return reason is not None and reason not in CLIENTS_FAULT


class TracedRequests:
    """A `RequestSink` that notes spans before it hands the record on."""

    __slots__ = ("_finished", "_limit_of", "_tracer")

    def __init__(self, tracer: Tracer, sink: RequestSink) -> None:
        self._tracer = tracer
        self._limit_of = tracer.slow.get
        self._finished = sink.finished

    def finished(self, record: RequestRecord) -> None:
        """See `RequestSink`."""
        # HOT PATH (benchmarks/bench_telemetry.py). Once per request while tracing is on.
        exchange: Any = record  # what the relay hands over
        if (
            exchange.trace is not None
            or record.reason is not None
            or record.ended_at - record.started_at > self._limit_of(record.model, inf)
        ):
            self._tracer.note(exchange)
        self._finished(record)
