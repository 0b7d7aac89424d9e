"""Which requests are traced, and what is kept of them (docs/tracing.md).

A caller decides by the flag of its trace context, a ratio decides about requests without one.
Besides, a request becomes a trace late, at its end, if it failed, was tried more than once, or was
slower than nearly all of its model. Here spans are only noted; `lb.telemetry.span_exporter` sends
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from math import inf, log, log1p
from random import Random
from typing import Any, Final

from lb.domain.operation import OperationKind, Treatment
from lb.domain.outcome import Outcome, Reason
from lb.domain.why import Why
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.request_trace import RequestTrace, new_span_id
from lb.settings.tracing import SampledBy, TracingSettings, UnsampledMode
from lb.telemetry.access_log import CLIENTS_FAULT
from lb.telemetry.labels import is_servers_fault
from lb.telemetry.record import RequestRecord, RequestSink
from lb.telemetry.spans import AttemptSpan, RequestSpan, SpanQueue
from lb.wire.trace_context import Traces

Draw = Callable[[], bool]
LIMITED: Final = "limited"
"""Why spans were never made: there were too many in a second."""
_USUAL_SPANS: Final = 2
"""Of a request: its own, and that of an attempt. Further ones are taken off when they are made."""
_KEPT_FOR_SAMPLED: Final = 0.5
"""Share of the limit that late decisions leave to the others: when everything fails, everything
would be decided late."""
_ANSWERED: Final = Outcome.ANSWERED
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

    __slots__ = ("_allowed", "_clock", "_rng", "_since", "draw", "rules", "slow", "spans")

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
            self.draw = self._drawing(rules.ratio)
            self._allowed, self._since = float(rules.spans_per_s), self._clock()

    def _drawing(self, ratio: float) -> Draw:
        if ratio in (0.0, 1.0):
            return repeat(bool(ratio)).__next__
        return chain.from_iterable(self._gaps(ratio)).__next__

    def _gaps(self, ratio: float) -> Iterator[Iterator[bool]]:
        """Requests that are not traced, and one that is, again and again: as many as if each were
        drawn by itself (the geometric distribution), for one draw."""
        while True:
            gap = int(log(1.0 - self._rng.random()) / log1p(-ratio))
            yield chain(repeat(False, gap), (True,))

    def begin(self, exchange: Exchange, *, is_drawn: bool, is_trusted: bool) -> None:
        """Trace a request if it is to be. Its head is complete.

        Args:
            exchange: the request.
            is_drawn: `draw` says so.
            is_trusted: its client is a trusted proxy.
        """
        rules = self.rules
        if rules is None or exchange.operation.treatment is Treatment.ANSWER:
            return
        is_sampled = is_drawn
        context = exchange.context
        if context is not None and (rules.trusts_all or is_trusted):
            is_sampled = context.is_sampled
        if is_sampled and self._may_make(rules, 0.0):
            exchange.trace = RequestTrace(self._rng, context)

    def _may_make(self, rules: TraceRules, kept: float) -> bool:
        """Whether there may be spans of one more request; they are taken off then.

        Args:
            rules: those in force.
            kept: share of the limit that is left untouched.
        """
        now = self._clock()
        limit = rules.spans_per_s
        self._allowed = min(self._allowed + (now - self._since) * limit, float(limit))
        self._since = now
        if self._allowed < 1.0 + kept * limit:
            self.spans.dropped[LIMITED] += _USUAL_SPANS
            return False
        self._allowed -= _USUAL_SPANS
        return True

    # Late decisions

    def _decide_late(self, exchange: Exchange) -> RequestTrace | None:
        """Trace a request that was not to be; None where there are too many."""
        rules = self.rules
        if rules is None or not self._may_make(rules, _KEPT_FOR_SAMPLED):
            return None
        trace = exchange.trace = RequestTrace(self._rng, exchange.context, is_late=True)
        return trace

    def hedged(self, exchange: Exchange, hedge: Attempt) -> None:
        """A second attempt was begun beside a slow one."""
        trace = exchange.trace or self._decide_late(exchange)
        if trace is not None:
            trace.began(hedge, Why.HEDGE)

    # Ends

    def attempt_ended(self, attempt: Attempt, outcome: Outcome, code: int, now: float) -> None:
        """Note an attempt that is over; see `Accounts.attempt_ended`."""
        exchange = attempt.exchange.whole
        trace = exchange.trace
        if trace is None:
            if outcome in _NO_FAILURE or exchange.finished:
                return
            if outcome is _ANSWERED and not is_servers_fault(exchange.protocol, code):
                return
            trace = self._decide_late(exchange)
            if trace is None:
                return
        self._note_attempt(trace, attempt, outcome, code, now)

    def _note_attempt(
        self, trace: RequestTrace, attempt: Attempt, outcome: Outcome, code: int, now: float
    ) -> None:
        exchange = attempt.exchange.whole
        span = AttemptSpan()
        span.trace_id = trace.trace_id
        span.span_id, span.why = trace.ended(attempt)
        span.parent_id = trace.span_id
        span.state = trace.state
        span.is_late = trace.is_late
        span.protocol = exchange.protocol
        span.operation = exchange.operation
        span.method = exchange.method
        span.path = exchange.path
        span.backend = attempt.backend.name
        span.address = attempt.port.address
        span.number = max(attempt.exchange.attempts, 1)
        span.began_at = attempt.began_at
        span.connected_at = attempt.connected_at
        span.first_byte_at = attempt.first_byte_at
        span.ended_at = now
        span.outcome = outcome
        span.code = code
        if span.why is not Why.FIRST:
            self._allowed -= 1.0
        self.spans.add(span)

    def note(self, exchange: Exchange) -> None:
        """Note a request that is over, if it is traced, or now is."""
        trace = exchange.trace
        attempt = exchange.attempt
        is_over = attempt is not None and attempt.outcome is _ANSWERED
        if trace is None:
            if not (_has_failed(exchange.reason) or self._is_slow(exchange)):
                return
            trace = self._decide_late(exchange)
            if trace is None:
                return
        elif attempt is not None:
            is_over = is_over and trace.has(attempt)
        if is_over and attempt is not None:
            code = exchange.grpc_status if exchange.protocol else exchange.status
            self._note_attempt(trace, attempt, _ANSWERED, code, exchange.ended_at)
        waited = bool(exchange.queue_why) or exchange.held_until > 0.0
        if waited:
            self._allowed -= 1.0
        self.spans.add(
            RequestSpan(
                exchange,
                trace.trace_id,
                trace.span_id,
                trace.parent_id,
                trace.state,
                is_late=trace.is_late,
                queue_id=new_span_id(self._rng) if waited else b"",
            )
        )

    def _is_slow(self, exchange: Exchange) -> bool:
        """Whether a request took longer than nearly all of its model."""
        took_s = exchange.ended_at - exchange.started_at
        kind = exchange.operation.kind
        return kind is OperationKind.INFERENCE and took_s > self.slow.get(exchange.model, inf)


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
