"""Requests that concern all backends: collected whole, put to the fan-out, answered once."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from lb.domain.operation import OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.kserve.gate import REFUSED, RegistrationWatch, masked
from lb.proxy.fan_out.question import Departure, FanOut, Question
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.exchange import Http1Exchange
from lb.wire.http1.body import Payload
from lb.wire.http1.grammar import CRLF, trimmed
from lb.wire.pieces import join_short

if TYPE_CHECKING:
    from lb.proxy.http1.heads import RequestPlan
    from lb.proxy.http1.relay import Http1Relay
    from lb.proxy.http1.server import ServerConnection

_HOP_BY_HOP: Final = frozenset({
    b"connection", b"content-length", b"expect", b"host", b"te", b"trailer", b"transfer-encoding",
})  # fmt: skip
"""Fields that each of our own requests has anew."""
QUESTION_BYTES: Final = 64 * 1024
"""A question that changes nothing needs hardly a body, and everybody may ask it."""
_LARGE_READ: Final = 128 * 1024
"""Bytes in one read. libuv reads up to 32 times in a row from who sends fast: 8 MB in one turn."""
_LARGE_JOIN: Final = 2**20
"""Bytes from which on CPython joins without holding the interpreter."""


class AskedExchange(Http1Exchange):
    """A request that goes to no backend of its own."""

    __slots__ = ("_departure", "_fan_out", "_head", "_is_resting", "_watch")

    def __init__(
        self,
        relay: Http1Relay,
        server: ServerConnection,
        plan: RequestPlan,
        now: float,
        fan_out: FanOut,
    ) -> None:
        super().__init__(relay, server, plan, now)
        self._fan_out = fan_out
        self._departure = Departure()
        self._head = b""
        self._is_resting = False
        """Much of the body came just now: what comes next has to wait for a turn of the loop."""
        self._watch = RegistrationWatch() if plan.route.is_registration else None

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Take a request whose head is complete, with what there is of its body."""
        self.response_begun = False
        self._was_continued = False
        self._head = head
        self._kept = []
        self.relay.dispatcher.begin(self)
        if ended or self.server is None:
            self._collect(pieces, ended=ended)
            return
        if self._collect(pieces, ended=False):
            self._invite_body(self.server)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """Take a further part of the body."""
        if self._collect(pieces, ended=ended) and sum(map(len, pieces)) > _LARGE_READ:
            self._is_resting = True
            self.relay.loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        if self.server is not None:
            self.server.update_reading()

    @property
    def wants_body(self) -> bool:
        """Whether the client should send more now."""
        return not self._is_resting

    def _is_too_large(self, pieces: list[Payload]) -> bool:
        """Whether the body passes a limit with `pieces`; the exchange is over then."""
        size = self.bytes_in + sum(map(len, pieces))
        if self.operation.kind is OperationKind.READ and size > QUESTION_BYTES:
            self.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, "request body too large")
            return True
        return super()._is_too_large(pieces)

    def _collect(self, pieces: list[Payload], *, ended: bool) -> bool:
        """Keep a part of the body. False when the exchange is over, or will be."""
        if self._is_too_large(pieces):
            return False
        watch = self._watch
        if watch is not None and any(watch.refuses(bytes(piece)) for piece in pieces):
            self.cut(Outcome.CANCELLED, Reason.BAD_REQUEST, REFUSED)
            return False
        kept = self._kept
        if kept is None:
            return False
        size = sum(map(len, pieces))
        self.request_ended = ended
        self.bytes_in += size
        self._kept_size += size
        kept += map(bytes, pieces)
        join_short(kept)
        if not self._settle():
            return False
        if ended:
            self.relay.tasks.spawn(self._join_and_ask(kept), name=f"ask:{self.operation.name}")
            return False
        return True

    def _leave_client(self, reason: Reason | None) -> ServerConnection | None:
        server = super()._leave_client(reason)
        self._departure.happen()
        return server

    async def _join_and_ask(self, kept: list[Payload]) -> None:
        # Elsewhere, where it takes milliseconds: the joining of bytes lets others run meanwhile.
        is_long = self.bytes_in > _LARGE_JOIN
        body = await asyncio.to_thread(b"".join, kept) if is_long else b"".join(kept)
        kept.clear()  # a body of hundreds of megabytes is held once
        await self._ask(body)

    async def _ask(self, body: bytes) -> None:
        plan = self.plan
        question = Question(
            protocol=self.protocol,
            operation=plan.operation,
            model=plan.model,
            method=plan.method,
            target=plan.path,
            fields=end_to_end(self._head),
            body=body,
            departure=self._departure,
        )
        self.forget()  # the fan-out counts the body from here on
        reply = await self._fan_out.ask(question)
        if self.server is None:
            return  # nobody waits any more
        self.attempts = len(reply.backends)
        body = masked(reply.body) if reply.status >= HTTPStatus.BAD_REQUEST else reply.body
        self.answer(
            Answer(
                reply.status,
                body,
                reply.reason,
                content_type=reply.content_type,
                is_relayed=reply.reason is None,
            )
        )


def end_to_end(head: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Name in lower case and value of the fields of a checked head that concern a backend."""
    fields = []
    for line in head.split(CRLF)[1:-2]:
        name, _, value = line.partition(b":")
        if (name := name.lower()) not in _HOP_BY_HOP:
            fields.append((name, trimmed(value)))
    return tuple(fields)
