"""An HTTP batch that runs as several: it is held whole, its parts are requests to backends without
a client of their own, and it is answered once they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from lb.domain.outcome import Outcome, Reason
from lb.kserve.errors import http_error_text, meaning
from lb.kserve.inspect import Findings
from lb.kserve.merge.steps import Steps, finish
from lb.kserve.regions import http_regions
from lb.kserve.split.bodies import ALL_JSON, Body, BodyCut, cut_body, join_bodies
from lb.kserve.split.tensors import NotMerged, NotSplit, VersionsDiffer
from lb.kserve.work import json_priority, json_rows
from lb.net.sockets import peer_end
from lb.net.steps import at_once, in_turns
from lb.proxy.exchange import Exchange, SplitHints
from lb.proxy.failure import http_body, http_status
from lb.proxy.findings import note_findings
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import RequestPlan, json_size_of
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.sides import ClientSide
from lb.proxy.split import (
    JOINED_AT_ONCE,
    TOO_LARGE,
    HeldBytes,
    Parts,
    SplitPlan,
    part_hints,
    pinned,
    rows_text,
    take_over_marks,
    units_at_once,
)
from lb.proxy.split_memory import BatchMemory
from lb.wire.grpc.compression import inflated, inflated_start
from lb.wire.http1.body import Payload
from lb.wire.http1.forwarded import add_field, drop_fields
from lb.wire.http1.request import RequestHead
from lb.wire.http1.response import ResponseHead
from lb.wire.rope import Held, Rope, in_memory

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
        self.form = PartForm(HeldBytes(request.memory))
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
        exchange.hints = part_hints(request.hints, request.plan, self.count, size)
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


def _plan_of_part(whole: RequestPlan) -> RequestPlan:
    """What is done with a part, whose length is not known yet."""
    head = RequestHead(whole.method, whole.path, is_http10=False)
    head.request_id = whole.request_id
    head.length = 0
    plan = RequestPlan(head, whole.route, fits=False)
    plan.noted, plan.timeout_s = whole.noted, whole.timeout_s
    return plan


class SplitRequest:
    """Holds an inference whose batch may be cut, and has it answered or goes out of its way."""

    __slots__ = (
        "_cut", "_held", "_is_fresh", "_is_pinned", "_parts", "_plan", "_work", "collects",
        "exchange", "head", "hints", "memory",
    )  # fmt: skip

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
        self.hints = exchange.hints
        """The hints of the whole batch."""
        self.memory = BatchMemory(exchange.relay.memory_budget, self)
        """What the request and the answers to its parts take."""
        self._held = HeldBytes(self.memory)
        self._plan = plan
        """None while nobody knows whether it is cut."""
        self._is_fresh = True
        """The plan is of this iteration of the event loop."""
        self._is_pinned = False
        """Its parts ask for a version of the model, since several answered before."""
        self._cut: BodyCut | None = None
        self._parts: Parts | None = None
        self._work: asyncio.Task[None] | None = None
        """Reads a long request, or joins long answers."""

    # The request

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self.exchange
        exchange.expect_parts()
        exchange.relay.accounts.begin()
        self.head = head
        server = exchange.server
        self.add(pieces, ended=ended)
        self._is_fresh = False
        if server is not None and exchange.handler is self and not ended:
            exchange.invite_body(server)

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        return True

    def add(self, pieces: Sequence[Held], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self.exchange
        if exchange.cut_if_too_large(pieces):
            return
        exchange.bytes_in += sum(map(len, pieces))
        exchange.body.ended = ended
        if not all(map(self._held.add, pieces)):
            return
        if self._plan is None and not self._decides(is_all=ended):
            return
        plan = self._plan
        assert plan is not None
        if max(exchange.plan.length, self._held.size) > plan.rule.max_bytes:
            if not plan.must:
                self._pass_on()
                return
            exchange.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, TOO_LARGE)
        elif ended:
            self._begin(plan)

    def _decides(self, *, is_all: bool) -> bool:
        """Whether the batch is to be cut. If not, more of it is needed to tell, or it has gone on
        as it came."""
        exchange = self.exchange
        text = self._held.rope().read(0, _LOOKED_AT)
        if exchange.plan.is_compressed:
            text, _ = inflated_start(text, _LOOKED_AT)
        rows, end = json_rows(text)
        if not (end or is_all or self._held.size >= _LOOKED_AT):
            return False
        splits = exchange.relay.dispatcher.splits
        if not splits.stays_whole(exchange.model, rows):
            size = max(exchange.plan.length, self._held.size)
            self._plan = splits.plan(exchange, rows, size)
        if self._plan is None:
            self._pass_on()
        return self._plan is not None

    def _pass_on(self) -> None:
        """Have the request placed like any other, as it came."""
        exchange = self.exchange
        data = self._held.rope()
        ended = exchange.body.ended
        exchange.handler = None
        self._leave_room()
        self._held.drop()
        exchange.bytes_in = 0
        if ended and exchange.plan.length >= 0:
            exchange.pass_on_held(self.head, data.pieces(0, len(data)))
        else:
            exchange.pass_on(self.head, [*data.views(0, len(data))], ended=ended)

    def _begin(self, plan: SplitPlan) -> None:
        """The request is complete."""
        exchange = self.exchange
        if not plan.must and self._is_left():
            self._pass_on()
            return
        size = exchange.plan.json_size
        units = units_at_once(self._held.size if size < 0 else size)
        work = self._read(plan)
        try:
            cut = at_once(work, exchange.relay.iteration, units)
        except NotSplit:
            self._pass_on()
            return
        if cut is None:
            self._do_in_turns("cut", work, partial(self._begin_parts, plan))
        else:
            self._begin_parts(plan, cut)

    def _is_left(self) -> bool:
        """Whether the client has ended its connection, or its half of it, behind the request. Most
        that do are gone: parts that nobody waits for would each cost as much as a request."""
        server = self.exchange.server
        transport = None if server is None else server.transport
        return transport is not None and peer_end(transport) is not None

    def _read(self, plan: SplitPlan) -> Steps[BodyCut]:
        """Read the request.

        Raises:
            NotSplit: it cannot be cut.
        """
        request = self.exchange.plan
        data = self._held.rope()
        if request.is_compressed:
            text = inflated(data.joined(), plan.rule.max_bytes)
            if text is None:
                raise NotSplit("it cannot be inflated, or is too long")
            data = Rope([text])
        cut = yield from cut_body(data, request.json_size)
        if cut.rows != plan.rows:
            raise NotSplit("inputs differ in their batch dimension")
        return cut

    def _do_in_turns(
        self, name: str, work: Steps[ResultT], then: Callable[[ResultT], None]
    ) -> None:
        """Do work while others have their turns. `close` ends it."""
        exchange = self.exchange
        name = f"{name}:{exchange.operation.name}"
        self._work = exchange.relay.parts.tasks.spawn(self._in_turns(work, then), name=name)

    async def _in_turns(self, work: Steps[ResultT], then: Callable[[ResultT], None]) -> None:
        exchange = self.exchange
        try:
            result = await in_turns(work, exchange.relay.iteration)
            self._work = None
            then(result)
        except NotSplit:
            self._work = None
            self._pass_on()
        except NotMerged as error:
            self._work = None
            self._not_merged(error)
        except Exception:  # top frame: a client waits
            _log.exception("a batch cannot be cut, or the answers to its parts not joined")
            self._work = None
            exchange.cut(Outcome.CANCELLED, Reason.INTERNAL, "internal error")

    def _begin_parts(self, plan: SplitPlan, cut: BodyCut) -> None:
        exchange = self.exchange
        self._cut = cut
        self._note(cut.text, plan)
        room = exchange.relay.dispatcher.splits.room
        if room.begin(self.memory, exchange.model, plan.rows, must=plan.must):
            self._go_on(cut)
        elif plan.must:
            self._is_fresh = False
            go_on = partial(self._go_on, cut)
            room.wait(self.memory, exchange.model, plan.rows, go_on, exchange.relay.parts)
        else:
            self._pass_on()

    def _go_on(self, cut: BodyCut) -> None:
        """There is room for the answers to the parts."""
        exchange, plan = self.exchange, self.plan
        splits = exchange.relay.dispatcher.splits
        if not self._is_fresh:
            now_best = splits.plan(exchange, plan.rows, self._held.size)
            if now_best is None:
                self._pass_on()  # others have come since it began
                return
            self._plan = plan = now_best
        splits.counts.batches += 1
        self._run(cut, plan)

    def _run(self, cut: BodyCut, plan: SplitPlan) -> None:
        exchange = self.exchange
        parts = []
        first = 0
        for count in plan.parts:
            parts.append(self._part(first, count))
            first += count
        exchange.relay.dispatcher.splits.counts.parts += len(parts)
        exchange.hints = SplitHints(self.hints, len(parts))
        exchange.may_have_run = True  # some of it, before an error of ours
        budget = exchange.relay.iteration
        self._parts = Parts(parts, plan.rule.at_once, budget, cut.part_units)
        self._parts.begin()

    def _note(self, text: bytes, plan: SplitPlan) -> None:
        """Note what the JSON of the batch says of where it goes."""
        exchange = self.exchange
        snapshot = exchange.relay.dispatcher.pool.current
        found = Findings(exchange.plan.route.version)
        found.rows = plan.rows
        if b'"priority"' in text:
            found.priority = json_priority(text)
        if snapshot.regions:
            found.regions = http_regions(text)
        route = snapshot.routes.get(exchange.model)
        note_findings(exchange, found, route, snapshot.regions, exchange.bytes_in)
        self.hints = exchange.hints

    def _part(self, first: int, count: int) -> Http1Part:
        server = self.exchange.server
        assert server is not None
        side = PartSide(server)
        side.part = part = Http1Part(self, side, first, count)
        return part

    @property
    def plan(self) -> SplitPlan:
        """How the batch is cut."""
        assert self._plan is not None
        return self._plan

    def body_of(self, part: Http1Part) -> Body:
        """What a backend gets of the batch."""
        assert self._cut is not None
        return self._cut.part(part.first, part.count)

    def head_of(self, body: Body) -> bytes:
        """The head of a part."""
        head = drop_fields(self.head, _OF_THE_WHOLE)
        head = add_field(head, b"Content-Length", b"%d" % body.size)
        if body.json_size == ALL_JSON:
            return head
        return add_field(head, _JSON_SIZE, b"%d" % body.json_size)

    # The parts

    def part_answered(self, part: Http1Part) -> None:
        """A backend has answered a part."""
        exchange = self.exchange
        take_over_marks(exchange, part.exchange)
        parts, form = self._parts, part.form
        head = form.head
        if exchange.server is None or parts is None or head is None:
            return
        if head.status >= _ERRORS:
            data = form.held.rope().joined()
            text = http_error_text(data) or data[:_LOOKED_AT].decode("utf-8", "replace")
            if self._is_pinned and meaning(text) is not None:  # nobody has that version any more
                self._fail(part, Answer(503, http_body(text), Reason.NOT_MERGED), text)
                return
            self._fail(part, Answer(head.status, http_body(text), is_relayed=True), text)
            return
        relay = exchange.relay
        room = relay.dispatcher.splits.room
        room.answered(exchange.model, part.count, form.held.size, relay.parts)
        if parts.one_done():
            self._join(parts)

    def _join(self, parts: Parts) -> None:
        exchange, plan = self.exchange, self.plan
        forms = [part.form for part in parts.parts if isinstance(part, Http1Part)]
        try:
            answers = [
                (json_size_of(form.head.head.lower()), form.held.rope())
                for form in forms
                if form.head is not None
            ]
            work = join_bodies(answers, plan.parts)
            size = sum(len(body) for _, body in answers)
            budget = exchange.relay.iteration
            if size > JOINED_AT_ONCE or budget.left <= 0:
                self._do_in_turns("join", work, self._answer)
                return
            budget.spend(units_at_once(size))
            joined = finish(work)
        except NotMerged as error:
            self._not_merged(error)
            return
        self._answer(joined)

    def _answer(self, joined: tuple[Body, str]) -> None:
        exchange, plan = self.exchange, self.plan
        body, _ = joined
        pieces = in_memory(body.pieces)
        exchange.relay.dispatcher.splits.fit(exchange.model, plan)
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
        server, relay = exchange.server, exchange.relay
        exchange.answer(answer)
        if server is not None:
            relay.dispatcher.splits.room.handed_over(server, relay.parts)

    def _not_merged(self, error: NotMerged) -> None:
        exchange, plan = self.exchange, self.plan
        if error.is_of_model:
            exchange.relay.dispatcher.splits.unfit(exchange.model, plan, str(error))
        if not plan.must:
            self._drop_answers()
            exchange.hints = self.hints
            self._pass_on()
            return
        if isinstance(error, VersionsDiffer) and self._try_run_again(error.newest):
            return
        status = http_status(Reason.NOT_MERGED) if error.is_of_model else 503
        text = f"the answers to {len(plan.parts)} parts cannot be joined: {error}"
        exchange.answer(Answer(status, http_body(text), Reason.NOT_MERGED))

    def _try_run_again(self, version: bytes) -> bool:
        """Run the batch once more, on the backends that have a version of the model: others had
        another one. False where it was, or its model cannot be cut any more."""
        exchange, cut, plan = self.exchange, self._cut, self.plan
        splits = exchange.relay.dispatcher.splits
        now_best = splits.plan(exchange, plan.rows, self._held.size)
        if self._is_pinned or not version or cut is None or now_best is None:
            return False
        self._drop_answers()
        self._is_pinned = True
        self._plan = now_best
        self.hints = pinned(self.hints, version)
        self.head = _with_version(self.head, version)
        self._run(cut, now_best)
        return True

    def part_failed(self, part: Http1Part, answer: Answer) -> None:
        """There is no answer to a part but this one of ours."""
        take_over_marks(self.exchange, part.exchange)
        self._fail(part, answer, http_error_text(answer.body))

    def _fail(self, part: Http1Part, answer: Answer, text: str) -> None:
        """Answer the batch as a part was answered."""
        exchange = self.exchange
        if exchange.server is None:
            return
        where = rows_text(part.first, part.count, self.plan.rows)
        exchange.answer(
            Answer(
                answer.status,
                http_body(f"{where}: {text}"),
                answer.reason,
                retry_after_s=answer.retry_after_s,
                is_relayed=answer.is_relayed,
            )
        )

    # What the exchange asks of it

    @property
    def is_decided(self) -> bool:
        """Whether all of the body will be held, to be cut."""
        return self._plan is not None

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return False

    def close(self) -> None:
        """See `RequestHandler`."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        if self._parts is not None:
            self._parts.cancel()
            self._drop_answers()
            self._parts = None
        self._leave_room()
        self._held.drop()
        self._cut = None

    def _leave_room(self) -> None:
        relay = self.exchange.relay
        relay.dispatcher.splits.room.leave(self.memory, relay.parts)

    def _drop_answers(self) -> None:
        for part in () if self._parts is None else self._parts.parts:
            if isinstance(part, Http1Part):
                part.form.held.drop()
                self._hand_permit(part.exchange)

    def _hand_permit(self, part: Http1Exchange) -> None:
        """What still runs on a backend is still a request of its client."""
        exchange = self.exchange
        if exchange.permit is not None and part.is_under_way:
            part.permit, exchange.permit = exchange.permit, None

    def evict(self) -> None:
        """The memory budget wants the bytes of the request, or of an answer, back."""
        self.exchange.cut(Outcome.CANCELLED, Reason.MEMORY, "out of memory for requests")

    @property
    def charged_to(self) -> Exchange:
        """See `MemoryOwner`."""
        return self.exchange
