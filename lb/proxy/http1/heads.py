"""What heads mean, remembered: equal bytes mean equal requests, on every connection.

Clients repeat themselves, so nearly every head is found by its bytes in one dictionary look-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle, repeat
from math import inf
from typing import Final, NamedTuple

from lb.access.disclosure import NO_DISCLOSURE, Disclosure
from lb.access.gate import Credentials, FieldLine, Gate
from lb.domain.operation import Operation, OperationKind
from lb.kserve.control import METHOD_OVERRIDES, HttpControl, http_control
from lb.kserve.operations import HTTP_MODEL_READY, UNKNOWN, Route, http_route
from lb.payloads.log import PayloadRules
from lb.proxy.exchange import RoutingHints
from lb.proxy.http1.cors import REQUEST_FIELDS, CrossOrigin, cross_origin, requested_method
from lb.proxy.urgency_headers import duration_of
from lb.wire.cache import HeadCache
from lb.wire.hops import HOPS, loop_in, passed
from lb.wire.http1.errors import MessageError
from lb.wire.http1.forwarded import drop_fields
from lb.wire.http1.grammar import CRLF, trimmed
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import RequestHead, parse_request_head
from lb.wire.http1.response import ResponseHead, leads_elsewhere, parse_response_head
from lb.wire.http1.trace_fields import (
    LINE_BYTES,
    TRACEPARENT_LINE,
    has_trace_field,
    has_traceparent,
    value_at,
    with_context,
    with_line,
)
from lb.wire.trace_context import (
    SAMPLED,
    TRACE_FIELDS,
    TraceContext,
    Traces,
    parse_traceparent,
    read_context,
)

ORDINARY_HEAD: Final = 1024
"""Bytes. What reading a longer head costs counts against the budget of the iteration."""
_BYTES_PER_UNIT: Final = 32
"""Bytes of a head that are read in a unit of `IterationBudget`."""
_SPELLED_PER_UNIT: Final = 16
"""Bytes of a request line with escapes, or with UTF-8 that is to be escaped, that take one more."""
_LEARNT_ONE_IN: Final = 100
"""Among so many heads with a new `traceparent`, one is learnt without it. Not each, since in some
all else is new as well, and to read a head twice costs more than a request of a known one."""
_CAPITALISED: Final = TRACEPARENT_LINE.title()
_INFER: Final = "ModelInfer"
_ALL_JSON: Final = -1
_JSON_SIZE: Final = b"\r\ninference-header-content-length:"
_ENCODING: Final = b"\r\ncontent-encoding:"
_ENCODINGS: Final = frozenset({b"gzip", b"deflate"})
_NUMBER: Final = re.compile(rb"[ \t]*\+?(\d{1,10})")
"""As Triton reads it: what follows the digits does not matter."""


class KnownRows:
    """The rows of an inference by how its JSON begins."""

    __slots__ = ("head", "hints", "misses")

    def __init__(self, head: bytes, hints: RoutingHints) -> None:
        self.head = head
        self.hints = hints
        """The hints of what begins with all of `head` and names no priority."""
        self.misses = 0
        """Bodies that began otherwise."""


_BLANK: Final = RequestHead(b"", b"", is_http10=False)
"""For a plan of which all is set afterwards: compiled classes have no other way to make one."""


class RequestPlan:
    """A request head, and what we do with such a request."""

    __slots__ = (
        "context",
        "credentials",
        "cross_origin",
        "discloses",
        "expects_continue",
        "has_variants",
        "hops",
        "host",
        "is_compressed",
        "is_head",
        "is_http10",
        "is_inference",
        "is_plain",
        "is_plain_whole",
        "is_sampled",
        "json_size",
        "keep_alive",
        "known_rows",
        "length",
        "loop",
        "may_split",
        "method",
        "model",
        "noted",
        "operation",
        "origin",
        "path",
        "request_id",
        "route",
        "sampled",
        "share",
        "state",
        "timeout_s",
        "upstream",
    )  # fmt: skip

    def __init__(
        self,
        request: RequestHead,
        route: Route,
        *,
        fits: bool,
        credentials: Credentials | None = None,
    ) -> None:
        # Once per head that was not seen lately: a docstring between these lines would cost an
        # instruction each time.
        self.method = request.method
        self.path = request.target.partition(b"?")[0]
        self.model = route.model
        self.operation = route.operation
        self.route = route
        self.credentials = credentials
        self.discloses = self.has_variants = False
        self.cross_origin = self.sampled = self.known_rows = None
        self.request_id = request.request_id
        self.host = request.host or b""
        self.length = request.length
        self.upstream = request.upstream
        self.is_head = request.method == b"HEAD"
        self.is_http10 = request.is_http10
        self.keep_alive = request.keep_alive
        self.expects_continue = request.expects_continue
        self.is_plain = (
            request.keep_alive
            and not request.is_http10
            and not request.expects_continue
            and not self.is_head
            and request.length >= 0
            and fits
            and credentials is None
            and not route.is_ours
            and not route.is_asked
            and route.operation is not HTTP_MODEL_READY
        )
        self.is_inference = route.operation.name == _INFER
        self.json_size = _ALL_JSON
        self.is_compressed = self.is_sampled = self.may_split = self.is_plain_whole = False
        self.share = 0.0
        self.noted = self.hops = ()
        self.timeout_s = inf
        self.loop = ""
        self.context = self.origin = None
        self.state = b""

    path: bytes
    """For the log. Queries may hold secrets."""
    operation: Operation
    credentials: Credentials | None
    """What the gate goes by; None where it asks nothing."""
    discloses: bool
    """Its client may learn how it was served."""
    has_variants: bool
    """Variants serve its name."""
    cross_origin: CrossOrigin | None
    """What a browser gets."""
    upstream: bytes
    """The head for the backend."""
    is_plain: bool
    """Nothing about it needs a second look."""
    is_inference: bool
    """A Triton computes it to the end even when its client leaves."""
    json_size: int
    """How much of an inference's body, not compressed, is JSON; -1 is all of it."""
    is_compressed: bool
    """The body of an inference is, in a way that Triton knows."""
    is_sampled: bool
    """The payload log records it."""
    sampled: RequestPlan | None
    """Stands for those requests with this head that it records."""
    share: float
    """How many these are of all, 0 to 1. Where it is more than 0, a plan must not be looked up
    twice for one request."""
    may_split: bool
    """It is an inference of a model whose batches may be cut."""
    is_plain_whole: bool
    """It may be cut, and nothing else about it needs a second look."""
    known_rows: KnownRows | None
    """What was read of the bodies of such requests."""
    noted: tuple[FieldLine, ...]
    """Fields that the queue goes by."""
    timeout_s: float
    """How long the client gives the request."""
    hops: tuple[bytes, ...]
    """Identities of the balancers that it has passed."""
    loop: str
    """Why it must go no further: it goes in a circle. Empty where it may."""
    state: bytes
    """Value of the `tracestate` of all such heads, which may have a `traceparent` or not."""
    context: TraceContext | None
    """The context of the trace that the request belongs to; kept only while tracing is on."""
    origin: RequestPlan | None
    """The plan of equal heads without a trace context, which learns for all of them; None: this
    one."""

    def within(self, context: TraceContext | None, upstream: bytes) -> RequestPlan:
        """The plan of the same head with a trace context.

        Args:
            context: to be kept.
            upstream: the head for the backend.
        """
        # Once per request of a traced client: set one by one, which is the cheapest way.
        plan = RequestPlan(_BLANK, self.route, fits=True)
        plan.method = self.method
        plan.path = self.path
        plan.model = self.model
        plan.operation = self.operation
        plan.route = self.route
        plan.credentials = self.credentials
        plan.discloses = self.discloses
        plan.cross_origin = self.cross_origin
        plan.request_id = self.request_id
        plan.host = self.host
        plan.length = self.length
        plan.upstream = upstream
        plan.is_head = self.is_head
        plan.is_http10 = self.is_http10
        plan.keep_alive = self.keep_alive
        plan.expects_continue = self.expects_continue
        plan.is_plain = self.is_plain
        plan.is_inference = self.is_inference
        plan.json_size = self.json_size
        plan.is_compressed = self.is_compressed
        plan.known_rows = None
        plan.noted = self.noted
        plan.timeout_s = self.timeout_s
        plan.hops = self.hops
        plan.loop = self.loop
        plan.has_variants = self.has_variants
        plan.may_split = self.may_split
        plan.is_plain_whole = self.is_plain_whole
        plan.share = self.share
        plan.is_sampled = self.is_sampled
        sampled = self.sampled
        plan.sampled = None if sampled is None else sampled.within(context, upstream)
        plan.context = context
        plan.origin = self
        return plan

    def take_hops(self, hops: bytes, identity: bytes) -> None:
        """Find out whether the request goes in a circle.

        Args:
            hops: values of the hop marker that it came with.
            identity: of this balancer.
        """
        self.hops = passed(hops)
        self.loop = loop_in(self.hops, identity)
        self.is_plain = self.is_plain and not self.loop


class _Line(NamedTuple):
    """What a request line means."""

    route: Route
    control: HttpControl


def _never(_share: float) -> bool:
    return False


class HeadReader:
    """Reads heads through the caches that all connections share."""

    __slots__ = (
        "_body_size", "_cors_origins", "_deadline", "_disclosure", "_draws", "_errors", "_find",
        "_gate", "_identity", "_is_due", "_is_tracing", "_limits", "_lines", "_looks_further",
        "_marker", "_noted",
        "_payloads", "_requests", "_responses", "_spend", "_split_models", "_traces", "_unlearnt",
        "_variant_names", "known_request", "known_response",
    )  # fmt: skip

    def __init__(
        self,
        limits: HeadLimits,
        *,
        body_size: int = 0,
        gate: Gate | None = None,
        noted: frozenset[bytes] = frozenset(),
        deadline: bytes = b"",
        identity: bytes = b"",
        disclosure: Disclosure = NO_DISCLOSURE,
        cors_origins: frozenset[bytes] = frozenset(),
        traces: Traces = Traces.OFF,
        payloads: PayloadRules | None = None,
        draws: Callable[[float], bool] = _never,
        variant_names: frozenset[bytes] = frozenset(),
        split_models: frozenset[bytes] = frozenset(),
        spend: Callable[[int], None] | None = None,
    ) -> None:
        self._traces = traces
        """What becomes of trace contexts."""
        self._is_tracing = traces is not Traces.OFF
        self._is_due = cycle((*repeat(False, _LEARNT_ONE_IN - 1), True)).__next__
        """Whether a head with a new `traceparent` is learnt without it; to be asked for each."""
        self._variant_names = variant_names
        """Names of models that variants serve."""
        self._spend = spend
        """Is told what reading a head costs that is not an `ORDINARY_HEAD`."""
        self._split_models = split_models
        """Models whose batches may be cut."""
        self._gate = gate or Gate()
        self._disclosure = NO_DISCLOSURE if disclosure == NO_DISCLOSURE else disclosure
        self._cors_origins = cors_origins
        self._payloads = payloads
        """What the payload log samples."""
        self._draws = draws
        """Decides whether one more of a share is in its sample."""
        self._noted = noted
        """Names, in lower case, of fields that plans keep."""
        self._deadline = deadline
        """The name of the field with the time that a request may take; empty: there is none."""
        self._looks_further = bool(
            noted or deadline or cors_origins or variant_names or split_models
        )
        self._identity = identity
        """Ours, in hop markers; empty: requests get none."""
        self._marker = b"%b: %b\r\n\r\n" % (HOPS, identity)
        """The last line of heads for backends, and the empty line."""
        self._limits = limits
        self._body_size = body_size
        """Longest body; 0 is no limit."""
        self._requests: HeadCache[RequestPlan] = HeadCache()
        self._find = self._requests.get
        self._responses: HeadCache[ResponseHead] = HeadCache()
        self._errors: HeadCache[ResponseHead] = HeadCache()
        """Heads of errors, and of what may be no answer: their bodies need a second look."""
        self._lines: HeadCache[_Line] = HeadCache()
        """By request line: heads with a field that differs each time repeat at least that."""
        self.known_request: Callable[[bytes], RequestPlan | None] = (
            self._requests.get if payloads is None else self._known_drawn
        )
        """Look up the request heads used last; hot."""
        self.known_response = self._responses.get
        """Look up the response heads used last, none of which is an error, foreign, interim or
        answers HEAD; hot."""

    def parse(self, head: bytes) -> RequestHead:
        """Read a request head.

        Raises:
            MessageError: it must not be relayed; says whether its answer may have a body.
        """
        if len(head) > ORDINARY_HEAD and self._spend is not None:
            self._spend(_cost_of(head))
        try:
            return parse_request_head(head, self._limits)
        except MessageError as fault:
            fault.to_head = head.startswith(b"HEAD ")
            raise

    def request(self, head: bytes) -> RequestPlan:
        """What the next request with a head means.

        Raises:
            MessageError: it must not be relayed.
        """
        plan = self._find(head) or self._requests.revive(head) or self._make_plan(head)
        return plan if plan.sampled is None else self.drawn(plan)

    def base_plan(self, head: bytes) -> RequestPlan:
        """What a request head means, for all requests that have it.

        Raises:
            MessageError: they must not be relayed.
        """
        return self._find(head) or self._requests.revive(head) or self._make_plan(head)

    def drawn(self, plan: RequestPlan) -> RequestPlan:
        """The plan of the next request, which may be in the sample of the payload log. To be asked
        once for each request."""
        sampled = plan.sampled
        return sampled if sampled is not None and self._draws(plan.share) else plan

    def _known_drawn(self, head: bytes) -> RequestPlan | None:
        """As `known_request`, where the payload log takes a sample."""
        plan = self._find(head)
        return plan if plan is None or plan.sampled is None else self.drawn(plan)

    def _make_plan(self, head: bytes, share: float = 0.0) -> RequestPlan:
        """Read a head that was not seen lately.

        Args:
            head: to be read.
            share: where the plan is for the sample of the payload log, how many these are of all.
        """
        at = -1
        if not share and (
            (at := head.find(TRACEPARENT_LINE)) >= 0 or (at := head.find(_CAPITALISED)) >= 0
        ):
            # The rest of the head may repeat, and nothing else of it is kept.
            bare = head[:at] + head[at + LINE_BYTES :]
            known = self._find(bare)
            if known is not None or (self._is_due() and (known := self._learn(bare)) is not None):
                found = self._within(known, head, at)
                if found is not None:
                    return found
        request = self.parse(head)
        line = self._line(head[: head.index(CRLF)], request)
        fits = not self._body_size or request.length <= self._body_size
        plan = RequestPlan(
            request, line.route, fits=fits, credentials=self._credentials(head, line)
        )
        if plan.is_inference:
            plan.json_size = request.json_length
            plan.is_compressed = _is_compressed(head)
        if self._identity:
            plan.upstream = request.upstream[:-2] + self._marker
            if request.hops:
                plan.take_hops(request.hops, self._identity)
        if self._disclosure is not NO_DISCLOSURE:
            plan.discloses = self._disclosure.may_concern(plan.credentials)
            if plan.discloses or (self._disclosure.request_ids and not plan.request_id):
                plan.is_plain = False
        if self._looks_further:
            self._look_further(plan, head, request, line)
        if share:
            plan.share, plan.is_sampled = share, True
            plan.is_plain = plan.is_plain_whole = False
            return plan
        if self._payloads is not None and plan.operation.kind is OperationKind.INFERENCE:
            plan.share = self._payloads.share_of(plan.model)
            if plan.share:
                plan.sampled = self._make_plan(head, plan.share)
        if self._is_tracing and has_trace_field(head):
            self._take_context(plan, head)
        elif at < 0:
            self._requests.put(head, plan)
        return plan

    def _look_further(
        self, plan: RequestPlan, head: bytes, request: RequestHead, line: _Line
    ) -> None:
        """Note what only some configurations ask for."""
        if self._noted or self._deadline:
            self._note(plan, head)
        if self._cors_origins:
            self._note_origin(plan, head, request, line)
        route = line.route
        plan.may_split = plan.is_inference and plan.model in self._split_models
        plan.has_variants = (
            route.model in self._variant_names
            and not (route.version or route.is_asked or route.is_ours)
            and request.target.startswith(b"/v2/models/")
        )
        if plan.may_split or plan.has_variants:
            plan.is_plain_whole = plan.is_plain and not plan.has_variants
            plan.is_plain = False

    def _is_ordinary(self, head: bytes) -> bool:
        """Whether a head is within the limits as it stands, however it is read."""
        size = len(head)
        return (
            size <= ORDINARY_HEAD
            and size <= self._limits.line_bytes
            and head.count(CRLF) - 2 <= self._limits.fields
        )

    def _learn(self, bare: bytes) -> RequestPlan | None:
        """Read a head without the `traceparent` that it came with, and keep it; None if it has
        another one.

        Raises:
            MessageError: it must not be relayed.
        """
        if has_traceparent(bare):
            return None
        plan = self._make_plan(bare)
        if self._traces is not Traces.OFF and has_trace_field(bare):
            plan.state = b",".join(value for _, value in _fields(bare, TRACE_FIELDS))
            plan.upstream = drop_fields(plan.upstream, TRACE_FIELDS)
        self._requests.put(bare, plan)
        return plan

    def _within(self, plan: RequestPlan, head: bytes, at: int) -> RequestPlan | None:
        """The plan of a head that has a `traceparent` at `at`, by that of the rest; None where the
        head is to be read as a whole."""
        value = value_at(head, at)
        if value is None or not self._is_ordinary(head):
            return None
        if self._traces is Traces.OFF:
            return plan.within(None, with_line(plan.upstream, head, at))
        context = parse_traceparent(value, plan.state)
        if context is None:
            return None
        upstream = plan.upstream
        if self._traces is Traces.PASS and not context.flags & SAMPLED:
            upstream = with_context(upstream, context)
        return plan.within(context, upstream)

    def _take_context(self, plan: RequestPlan, head: bytes) -> None:
        """Keep the trace context of a head, as `_within` for any spelling. What is malformed goes
        no further."""
        context = plan.context = read_context(_fields(head, TRACE_FIELDS))
        if context is None or context.is_sampled or self._traces is Traces.STRIP:
            plan.upstream = drop_fields(plan.upstream, TRACE_FIELDS)
        if plan.sampled is not None:
            plan.sampled.context, plan.sampled.upstream = context, plan.upstream

    def _note(self, plan: RequestPlan, head: bytes) -> None:
        """Keep what the head says of how urgent the request is."""
        plan.noted = tuple(_fields(head, self._noted))
        if self._deadline:
            said = [duration_of(value) for _, value in _fields(head, frozenset({self._deadline}))]
            plan.timeout_s = min((each for each in said if each is not None), default=inf)
            plan.is_plain = plan.is_plain and plan.timeout_s == inf

    def _note_origin(
        self, plan: RequestPlan, head: bytes, request: RequestHead, line: _Line
    ) -> None:
        """Keep what a browser gets, if the head is one's."""
        fields = _fields(head, REQUEST_FIELDS)
        control = line.control.plain or line.control.overridden
        if request.method == b"OPTIONS":
            control = http_control(requested_method(fields) or b"GET", request.target).plain
        else:
            fields = [field for field in fields if field[0] == b"origin"]
        found = cross_origin(fields, self._cors_origins, is_control=control is not None)
        plan.cross_origin = found
        plan.is_plain = plan.is_plain and found is None

    def _line(self, text: bytes, request: RequestHead) -> _Line:
        line = self._lines.get(text) or self._lines.revive(text)
        if line is None:
            method, target = request.method, request.target
            line = _Line(http_route(method, target), http_control(method, target))
            self._lines.put(text, line)
        return line

    def _credentials(self, head: bytes, line: _Line) -> Credentials | None:
        gate = self._gate
        control, overridden = line.control
        if control is overridden is None and not gate.asks_all:
            return None
        if control is not overridden and _fields(head, METHOD_OVERRIDES):
            control = overridden
        return gate.credentials(
            control or line.route.operation,
            _fields(head, gate.noted) if gate.noted else (),
            is_control=control is not None,
        )

    def plan(self, head: bytes) -> RequestPlan | None:
        """As `request`; None where that raises."""
        try:
            return self.request(head)
        except MessageError:
            return None

    def response(self, head: bytes, *, to_head: bool) -> ResponseHead:
        """What a response head means.

        Args:
            head: with its empty line.
            to_head: it answers a HEAD request.

        Raises:
            MessageError: it must not be relayed.
        """
        if to_head:
            return parse_response_head(head, self._limits, to_head=True)
        response = self._responses.get(head) or self._responses.revive(head)
        if response is None:
            response = self._errors.get(head) or self._errors.revive(head)
        if response is None:
            response = parse_response_head(head, self._limits, to_head=False)
            response.is_foreign = leads_elsewhere(response)
            if response.is_error or response.is_foreign:
                self._errors.put(head, response)
            elif not response.is_interim:
                self._responses.put(head, response)
        return response


def _cost_of(head: bytes) -> int:
    """What reading a head costs, in units of `IterationBudget`."""
    cost = len(head) // _BYTES_PER_UNIT
    line = head[: head.find(CRLF)]
    if b"%" in line or not line.isascii():
        cost += len(line) // _SPELLED_PER_UNIT
    return cost


def _fields(head: bytes, names: frozenset[bytes]) -> list[FieldLine]:
    """Name in lower case and value of the fields of a checked head that have these names."""
    found = []
    for line in head.split(CRLF)[1:-2]:
        name, _, value = line.partition(b":")
        if (name := name.lower()) in names:
            found.append((name, trimmed(value)))
    return found


def _is_compressed(head: bytes) -> bool:
    """Whether a body is, in a way that Triton knows. Of repeated fields the first counts."""
    head = head.lower()
    at = head.find(_ENCODING)
    if at < 0:
        return False
    at += len(_ENCODING)
    return head[at : head.index(CRLF, at)].strip() in _ENCODINGS


def json_size_of(head: bytes) -> int:
    """How much of a body is JSON, by its head in lower case; -1 is all of it."""
    at = head.find(_JSON_SIZE)
    if at < 0:
        return _ALL_JSON
    match = _NUMBER.match(head, at + len(_JSON_SIZE))
    return int(match[1]) if match is not None else 0


def _unreadable(method: bytes) -> RequestPlan:
    return RequestPlan(RequestHead(method, b"", is_http10=True), Route(UNKNOWN), fits=True)


UNREADABLE: Final = _unreadable(b"")
"""Stands for a request whose head could not be read."""
UNREADABLE_HEAD: Final = _unreadable(b"HEAD")
"""What is unreadable but for its method, HEAD: its answer has no body."""
