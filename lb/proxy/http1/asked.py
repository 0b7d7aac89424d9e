"""Requests that concern all backends: collected whole, put to the fan-out, answered once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from lb.domain.operation import OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.kserve.gate import REFUSED, RegistrationWatch, masked
from lb.net.threads import computed
from lb.proxy.fan_out.question import QUESTION_BYTES, Departure, FanOut, FanOutRequest
from lb.proxy.http1.answers import Answer
from lb.proxy.http1.exchange import Http1Exchange
from lb.wire.http1.body import Payload
from lb.wire.http1.grammar import CRLF, trimmed

_HOP_BY_HOP: Final = frozenset({
    b"connection", b"content-length", b"expect", b"host", b"te", b"trailer", b"transfer-encoding",
})  # fmt: skip
"""Fields that each of our own requests has anew."""
_LARGE_READ: Final = 128 * 1024
"""Bytes in one read. libuv reads up to 32 times in a row from who sends fast: 8 MB in one turn."""
_LARGE_JOIN: Final = 2**20
"""Bytes from which on CPython joins without holding the interpreter."""


class AskedRequest:
    """Collects a request that goes to no backend of its own, and has it put to all."""

    __slots__ = (
        "_ask", "_is_resting", "_watch", "collects", "departure", "exchange", "fan_out", "head",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Http1Exchange,
        fan_out: FanOut,
        ask: Callable[[AskedRequest, bytes], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            exchange: whose request it is.
            fan_out: puts questions to all backends.
            ask: has the request answered, given its body; otherwise it is put as it came.
        """
        self.exchange = exchange
        self.fan_out = fan_out
        self._ask = ask or put
        self.collects = True
        self.departure = Departure()
        """Happens when the client leaves."""
        self.head = b""
        """As a backend would get it."""
        self._is_resting = False
        """Much of the body came just now: what comes next has to wait for an iteration of the
        loop."""
        self._watch = RegistrationWatch() if exchange.plan.route.is_registration else None

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self.exchange
        exchange.expect_parts()
        self.head = head
        exchange.relay.accounts.begin()
        server = exchange.server
        if self._collect(pieces, ended=ended) and server is not None:
            exchange.invite_body(server)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        if self._collect(pieces, ended=ended) and sum(map(len, pieces)) > _LARGE_READ:
            self._is_resting = True
            self.exchange.relay.loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        if self.exchange.server is not None:
            self.exchange.server.update_reading()

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return self._is_resting

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        return True

    def close(self) -> None:
        """See `RequestHandler`."""
        self.departure.happen()

    def _cut_if_too_large(self, pieces: list[Payload]) -> bool:
        """End the exchange if its body passes a limit with `pieces`. Returns whether it does."""
        exchange = self.exchange
        size = exchange.bytes_in + sum(map(len, pieces))
        if exchange.operation.kind is OperationKind.READ and size > QUESTION_BYTES:
            exchange.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, "request body too large")
            return True
        return exchange.cut_if_too_large(pieces)

    def _collect(self, pieces: list[Payload], *, ended: bool) -> bool:
        """Keep a part of the body. False when that was all, or the exchange is over."""
        exchange = self.exchange
        if exchange.server is None or self._cut_if_too_large(pieces):
            return False
        watch = self._watch
        if watch is not None and any(watch.feed(bytes(piece)) for piece in pieces):
            exchange.cut(Outcome.CANCELLED, Reason.BAD_REQUEST, REFUSED)
            return False
        size = sum(map(len, pieces))
        exchange.bytes_in += size
        kept = exchange.body.collect(pieces, size, ended=ended)
        if kept is None:
            return False
        if ended:
            name = f"ask:{exchange.operation.name}"
            exchange.relay.parts.tasks.spawn(self._join_and_ask(kept), name=name)
        return not ended

    async def _join_and_ask(self, kept: list[Payload]) -> None:
        # Elsewhere, where it takes milliseconds: the joining of bytes lets others run meanwhile.
        is_long = self.exchange.bytes_in > _LARGE_JOIN
        body = await computed(b"".join, kept) if is_long else b"".join(kept)
        kept.clear()  # a body of hundreds of megabytes is held once
        await self._ask(self, body)


async def put(request: AskedRequest, body: bytes) -> None:
    """Put a request to all backends as it came, and answer it."""
    exchange = request.exchange
    plan = exchange.plan
    question = FanOutRequest(
        protocol=exchange.protocol,
        operation=plan.operation,
        model=plan.model,
        method=plan.method,
        target=plan.path,
        fields=end_to_end(request.head),
        client=exchange.client_key,
        body=body,
        departure=request.departure,
    )
    exchange.body.forget()  # the fan-out counts the body from here on
    reply = await request.fan_out.ask(question)
    if exchange.server is None:
        return  # nobody waits any more
    exchange.attempts = len(reply.backends)
    body = masked(reply.body) if reply.status >= HTTPStatus.BAD_REQUEST else reply.body
    exchange.answer(
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
