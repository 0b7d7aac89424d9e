"""An HTTP batch that runs as several: it is held whole, its parts are requests to backends without
a client of their own, and it is answered once they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, TypeVar

from lb.domain.outcome import Outcome, Reason
from lb.kserve.errors import http_error_text
from lb.kserve.inflation import inflated_in_steps
from lb.kserve.inspect import Findings
from lb.kserve.merge.steps import Steps
from lb.kserve.regions import http_regions
from lb.kserve.split.bodies import ALL_JSON, Body, BodyCut, cut_body, join_bodies
from lb.kserve.split.tensors import NotSplit
from lb.kserve.work import json_priority, json_rows
from lb.net.sockets import peer_end
from lb.proxy.exchange import Exchange
from lb.proxy.failure import http_body, http_status
from lb.proxy.findings import note_findings
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import RequestPlan, json_size_of
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.sides import ClientSide
from lb.proxy.split import (
    TOO_LARGE,
    HeldBytes,
    Part,
    SplitPlan,
    part_hints,
    take_over_marks,
)
from lb.proxy.split_batch import SplitBatch
from lb.wire.grpc.compression import inflated_start
from lb.wire.http1.body import Payload
from lb.wire.http1.forwarded import add_field, drop_fields
from lb.wire.http1.request import RequestHead
from lb.wire.http1.response import ResponseHead
from lb.wire.rope import Held, in_memory

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

_LOOKED_AT: Final = 16 * 1024
"""Bytes of a body that are looked at for its rows."""
_OF_THE_WHOLE: Final = frozenset({
    b"accept-encoding", b"content-encoding", b"content-length", b"expect",
    b"inference-header-content-length", b"te", b"trailer", b"transfer-encoding",
})  # fmt: skip
"""Fields that say how a body is framed, or may be: parts have their own, and no compressed
answers."""
_JSON_SIZE: Final = b"Inference-Header-Content-Length"
_ERRORS: Final = 400


def stays_whole(exchange: Http1Exchange, data: bytes, at: int) -> bool:
    """Whether an inference goes on as it comes: its batch need not even be planned.

    Args:
        exchange: of a model whose batches may be cut.
        data: what was read.
        at: where in it the body begins, which is complete.
    """
    # What the last request of the kind said is looked up by how its JSON begins, as in
    # `inspect_whole`.
    plan = exchange.plan
    if plan.is_compressed:
        return False
    if plan.origin is not None:
        plan = plan.origin
    known = plan.known_rows
    if known is not None and data.startswith(known.head, at):
        rows = known.hints.rows
    else:
        rows, _ = json_rows(data[at : at + _LOOKED_AT])
    return exchange.relay.dispatcher.splits.stays_whole(exchange.model, rows)


def split_request(exchange: Http1Exchange, pieces: list[Payload]) -> SplitRequest | None:
    """What holds an inference until it is known how its batch is cut, or that it is not. None where
    it goes on as it comes, as far as the first read of its body tells.

    Args:
        exchange: of a model whose batches may be cut.
        pieces: what has come of its body.
    """
    plan = exchange.plan
    if plan.is_compressed or plan.length < 0 or not pieces:
        return SplitRequest(exchange, None)
    first = bytes(pieces[0][:_LOOKED_AT])
    rows, end = json_rows(first)
    if not end and len(first) < min(plan.length, _LOOKED_AT):
        return SplitRequest(exchange, None)
    splits = exchange.relay.dispatcher.splits
    if splits.stays_whole(exchange.model, rows):
        return None
    found = splits.plan(exchange, rows, plan.length)
    return None if found is None else SplitRequest(exchange, found)


def _with_version(head: bytes, version: bytes) -> bytes:
    """The head of an inference that asks for a version of its model.

    Args:
        head: that asks for none.
        version: of the model.
    """
    target = head[: head.index(b" ", head.index(b" ") + 1)]
    at = target.partition(b"?")[0].rindex(b"/infer")
    return b"%b/versions/%b%b" % (head[:at], version, head[at:])


class PartSide(ClientSide):
    """Stands in the place of a client for a part: takes answers of ours, and is told of the end of
    a backend's."""

    __slots__ = (
        "client", "held", "is_full", "is_leaving", "is_plain", "is_reading", "options", "part",
        "transport",
    )  # fmt: skip

    def __init__(self, server: ClientSide) -> None:
        self.client = server.client
        self.options: Http1Options = server.options
        self.transport = None
        self.held = 0
        self.is_full = self.is_leaving = self.is_plain = False
        self.is_reading = True
        self.part: Http1Part | None = None
        """None once it has ended."""

    def write(self, pieces: list[Payload]) -> None:
        """See `ClientSide`: `PartForm` has taken it."""

    def send_answer(self, answer: Answer, plan: RequestPlan) -> None:
        """See `ClientSide`."""
        part, self.part = self.part, None
        if part is not None:
            part.request.part_failed(part, answer)

    def exchange_over(self, *, keep_alive: bool) -> None:
        """See `ClientSide`."""
        part, self.part = self.part, None
        if part is not None:
            part.request.part_answered(part)

    def truncate(self, *, reset: bool) -> None:
        """See `ClientSide`: an answer goes on once it is complete, so none is cut."""

    def update_reading(self) -> None:
        """See `ClientSide`: all of the part is there."""

    def end_pump(self) -> None:
        """See `ClientSide`."""

    def evict(self) -> None:
        """See `ClientSide`: it holds nothing."""

    @property
    def charged_to(self) -> None:
        """See `ClientSide`: it holds nothing."""
        return None

    def charge(self, size: int) -> bool:
        """See `ClientSide`: the whole is in the memory budget."""
        return True


class PartForm:
    """The answer of a backend to a part, held until it is complete."""

    __slots__ = ("changes_all", "head", "held")

    def __init__(self, held: HeldBytes) -> None:
        self.changes_all = True
        self.held = held
        self.head: ResponseHead | None = None

    def take(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        """See `AnswerForm`."""
        if head is not None:
            self.head = head
            self.held.drop()  # of an attempt that failed
        if not all(map(self.held.add, pieces)) or not ended:
            return None
        return self.head, [*self.held.rope().views(0, self.held.size)]

    def rewrite(self, head: ResponseHead, message: bytes) -> tuple[int, bytes]:
        """See `AnswerForm`."""
        return head.status, message


class Http1Part:
    """Some rows of a batch, and the exchange by which they are placed, counted and retried."""

    __slots__ = ("count", "exchange", "first", "form", "request")

    def __init__(self, request: SplitRequest, side: PartSide, first: int, count: int) -> None:
        """
        Args:
            request: the whole batch.
            side: takes its answer.
            first: row of the batch.
            count: rows of the part.
        """
        whole = request.exchange
        self.request = request
        self.first = first
        self.count = count
        self.form = PartForm(HeldBytes(request.batch.memory))
        plan = _plan_of_part(whole.plan)
        self.exchange = Http1Exchange(whole.relay, side, plan, whole.started_at)
        self.exchange.be_part(whole)
        self.exchange.token = whole.token
        self.exchange.form = self.form

    def begin(self) -> None:
        """See `Part`."""
        request, exchange = self.request, self.exchange
        body = request.body_of(self)
        head = request.head_of(body)
        size = body.size
        batch = request.batch
        exchange.hints = part_hints(batch.hints, batch.plan, self.count, size)
        exchange.plan.length = size
        exchange.expect_parts()
        trace = request.exchange.trace
        if trace is not None:
            head = trace.retell(head, exchange.first_span)
        if exchange.hold(head, body.pieces):
            exchange.place()

    def cancel(self) -> None:
        """See `Part`: what a Triton computes it computes, and it counts until then."""
        exchange = self.exchange
        if not exchange.finished:
            exchange.client_gone(Reason.CLIENT_GONE)
            take_over_marks(self.request.exchange, exchange)
        self.form.held.drop()

    def drop_answer(self) -> None:
        """See `Part`. What still runs on a backend is still a request of its client."""
        self.form.held.drop()
        whole, exchange = self.request.exchange, self.exchange
        if whole.permit is not None and exchange.is_under_way:
            exchange.permit, whole.permit = whole.permit, None


def _plan_of_part(whole: RequestPlan) -> RequestPlan:
    """What is done with a part, whose length is not known yet."""
    head = RequestHead(whole.method, whole.path, is_http10=False)
    head.request_id = whole.request_id
    head.length = 0
    plan = RequestPlan(head, whole.route, fits=False)
    plan.noted, plan.timeout_s = whole.noted, whole.timeout_s
    return plan


class SplitRequest:
    """Holds an inference whose batch may be cut, and has it answered or goes out of its way.
    Implements `BatchSide`."""

    __slots__ = ("_look_at", "batch", "collects", "exchange", "head")

    def __init__(self, exchange: Http1Exchange, plan: SplitPlan | None) -> None:
        """
        Args:
            exchange: whose request it is.
            plan: how it is cut, as far as that is known.
        """
        self.exchange = exchange
        self.collects = True
        self.head = b""
        """As a backend would get it."""
        self._look_at = 0
        """Bytes of the body that must have come before they are looked at again."""
        self.batch: SplitBatch[BodyCut, tuple[Body, str]] = SplitBatch(
            self, exchange, exchange.relay.parts, self, plan
        )

    # The request

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self.exchange
        exchange.expect_parts()
        exchange.relay.accounts.begin()
        self.head = head
        server = exchange.server
        self.add(pieces, ended=ended)
        self.batch.age()
        if server is not None and exchange.handler is self and not ended:
            exchange.invite_body(server)

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        return True

    def add(self, pieces: Sequence[Held], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange, batch = self.exchange, self.batch
        if exchange.cut_if_too_large(pieces):
            return
        exchange.bytes_in += sum(map(len, pieces))
        exchange.body.ended = ended
        if not all(map(batch.held.add, pieces)):
            return
        if not batch.is_planned and not self._decides(is_all=ended):
            return
        plan = batch.plan
        if max(exchange.plan.length, batch.held.size) > plan.rule.max_bytes:
            if not plan.must:
                self.pass_on()
                return
            exchange.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, TOO_LARGE)
        elif ended:
            self._begin(plan)

    def _decides(self, *, is_all: bool) -> bool:
        """Whether the batch is to be cut. If not, more of it is needed to tell, or it has gone on
        as it came."""
        exchange, batch = self.exchange, self.batch
        if batch.held.size < self._look_at and not is_all:
            return False
        # Crumbs must not cost the square of the size.
        self._look_at = min(2 * batch.held.size, _LOOKED_AT)
        text = batch.held.rope().read(0, _LOOKED_AT)
        if exchange.plan.is_compressed:
            text, _ = inflated_start(text, _LOOKED_AT)
        rows, end = json_rows(text)
        if not (end or is_all or batch.held.size >= _LOOKED_AT):
            return False
        splits = exchange.relay.dispatcher.splits
        plan = None
        if not splits.stays_whole(exchange.model, rows):
            size = max(exchange.plan.length, batch.held.size)
            plan = splits.plan(exchange, rows, size)
        if plan is None:
            self.pass_on()
            return False
        batch.use(plan)
        return True

    def _begin(self, plan: SplitPlan) -> None:
        """The request is complete."""
        if not plan.must and self._is_left():
            self.pass_on()
            return
        json_size = self.exchange.plan.json_size
        self.batch.begin(self.batch.held.size if json_size < 0 else json_size)

    def _is_left(self) -> bool:
        """Whether the client has ended its connection, or its half of it, behind the request. Most
        that do are gone: parts that nobody waits for would each cost as much as a request. Nothing
        is read from the connection meanwhile, so nobody else notices."""
        server = self.exchange.server
        transport = None if server is None else server.transport
        return transport is not None and peer_end(transport) is not None

    # What its protocol does of a batch

    def read(self) -> Steps[BodyCut]:
        """See `BatchSide`."""
        request = self.exchange.plan
        data = self.batch.held.rope()
        if request.is_compressed:
            limit = self.batch.plan.rule.max_bytes
            text = yield from inflated_in_steps(data, limit, self.batch.held.charge)
            if text is None:
                raise NotSplit("it cannot be inflated, or is too long")
            data = text
        cut = yield from cut_body(data, request.json_size)
        return cut

    def note(self, cut: BodyCut) -> bool:
        """See `BatchSide`: the JSON of the batch says where it goes."""
        exchange, text = self.exchange, cut.text
        snapshot = exchange.relay.dispatcher.pool.current
        found = Findings(exchange.plan.route.version)
        found.rows = cut.rows
        if b'"priority"' in text:
            found.priority = json_priority(text)
        if snapshot.regions:
            found.regions = http_regions(text)
        route = snapshot.routes.get(exchange.model)
        note_findings(exchange, found, route, snapshot.regions, exchange.bytes_in)
        return True

    def pass_on(self) -> None:
        """See `BatchSide`."""
        exchange = self.exchange
        ended = exchange.body.ended
        exchange.handler = None
        data = self.batch.give_back()
        exchange.bytes_in = 0
        if ended and exchange.plan.length >= 0:
            exchange.pass_on_held(self.head, data.pieces(0, len(data)))
        else:
            exchange.pass_on(self.head, [*data.views(0, len(data))], ended=ended)

    def make_part(self, first: int, count: int) -> Http1Part:
        """See `BatchSide`."""
        server = self.exchange.server
        assert server is not None
        side = PartSide(server)
        side.part = part = Http1Part(self, side, first, count)
        return part

    def join(self, parts: Sequence[Part]) -> tuple[Steps[tuple[Body, str]], int]:
        """See `BatchSide`."""
        forms = [part.form for part in parts if isinstance(part, Http1Part)]
        answers = [
            (json_size_of(form.head.head.lower()), form.held.rope())
            for form in forms
            if form.head is not None
        ]
        size = sum(len(body) for _, body in answers)
        return join_bodies(answers, self.batch.plan.parts), size

    def answer(self, joined: tuple[Body, str]) -> ClientSide | None:
        """See `BatchSide`."""
        body, _ = joined
        pieces = in_memory(body.pieces)
        is_json = body.json_size == ALL_JSON
        answer = Answer(
            200,
            bytes(pieces[0]),
            content_type=b"application/json" if is_json else b"application/octet-stream",
            is_relayed=True,
        )
        answer.rest = pieces[1:]
        if not is_json:
            answer.lines = b"%b: %d\r\n" % (_JSON_SIZE, body.json_size)
        server = self.exchange.server
        self.exchange.answer(answer)
        return server

    def not_joined(self, text: str, *, is_of_model: bool) -> None:
        """See `BatchSide`."""
        status = http_status(Reason.NOT_MERGED) if is_of_model else 503
        self.exchange.answer(Answer(status, http_body(text), Reason.NOT_MERGED))

    def pin(self, cut: BodyCut, version: bytes) -> None:
        """See `BatchSide`."""
        self.head = _with_version(self.head, version)

    def fail(self) -> None:
        """See `BatchSide`."""
        self.exchange.cut(Outcome.CANCELLED, Reason.INTERNAL, "internal error")

    def wake(self) -> None:
        """See `BatchSide`: whoever needs the time asks the clock."""

    # The parts

    def body_of(self, part: Http1Part) -> Body:
        """What a backend gets of the batch."""
        cut = self.batch.cut
        assert cut is not None
        return cut.part(part.first, part.count)

    def head_of(self, body: Body) -> bytes:
        """The head of a part."""
        head = drop_fields(self.head, _OF_THE_WHOLE)
        head = add_field(head, b"Content-Length", b"%d" % body.size)
        if body.json_size == ALL_JSON:
            return head
        return add_field(head, _JSON_SIZE, b"%d" % body.json_size)

    def part_answered(self, part: Http1Part) -> None:
        """A backend has answered a part."""
        exchange = self.exchange
        take_over_marks(exchange, part.exchange)
        form = part.form
        head = form.head
        if exchange.server is None or head is None:
            return
        if head.status < _ERRORS:
            self.batch.part_answered(part.count, form.held.size)
            return
        data = form.held.rope().joined()
        text = http_error_text(data) or data[:_LOOKED_AT].decode("utf-8", "replace")
        if self.batch.lacks_version(text):
            self._fail(part, Answer(503, http_body(text), Reason.NOT_MERGED), text)
            return
        self._fail(part, Answer(head.status, http_body(text), is_relayed=True), text)

    def part_failed(self, part: Http1Part, answer: Answer) -> None:
        """There is no answer to a part but this one of ours."""
        take_over_marks(self.exchange, part.exchange)
        self._fail(part, answer, http_error_text(answer.body))

    def _fail(self, part: Http1Part, answer: Answer, text: str) -> None:
        """Answer the batch as a part was answered."""
        exchange = self.exchange
        if exchange.server is None:
            return
        exchange.answer(
            Answer(
                answer.status,
                http_body(self.batch.error_text(part.first, part.count, text)),
                answer.reason,
                retry_after_s=answer.retry_after_s,
                is_relayed=answer.is_relayed,
            )
        )

    # What the exchange asks of it

    @property
    def is_decided(self) -> bool:
        """Whether all of the body will be held, to be cut."""
        return self.batch.is_planned

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return False

    def close(self) -> None:
        """See `RequestHandler`."""
        self.batch.close()

    def evict(self) -> None:
        """The memory budget wants the bytes of the request, or of an answer, back."""
        self.exchange.cut(Outcome.CANCELLED, Reason.MEMORY, "out of memory for requests")

    @property
    def charged_to(self) -> Exchange:
        """See `MemoryOwner`."""
        return self.exchange
