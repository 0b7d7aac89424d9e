"""Calls that concern all backends: collected whole, put to the fan-out, answered once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.kserve.gate import REFUSED, REGISTER_BYTES, RESERVED, is_registration, masked
from lb.proxy.fan_out.question import Departure, Question, Reply
from lb.proxy.http2.call import Call
from lb.proxy.http2.replies import trailers_only
from lb.wire.grpc.compression import inflated
from lb.wire.grpc.message import PREFIX_SIZE, frame_message, message_prefix
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.fields import FieldCache
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.pieces import join_short

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink
    from lb.wire.http2.heads import RequestHead

_MESSAGE_LIMIT: Final = 2**31 - 1
"""What gRPC servers take at most."""
_QUESTION_LIMIT: Final = 64 * 1024
"""A question that changes nothing is a name or two, and everybody may ask it."""
_INFLATED_LIMIT: Final = 64 * 2**20
"""Of a compressed message, which costs its sender little."""
_LONG_ANSWER: Final = 64 * 1024
"""Bytes of a message above which it is not copied: it may be that of many calls."""
UNPARSABLE: Final = "Unable to parse request"
"""In a Triton's words."""
_HOP_BY_HOP: Final = frozenset({
    b"content-length", b"content-type", b"grpc-encoding", b"grpc-timeout", b"host", b"te",
})  # fmt: skip
"""Fields that each of our own calls has anew."""


class AskedCall(Call):
    """A call that goes to no backend of its own."""

    __slots__ = ("_departure",)

    limit: ClassVar[int] = _QUESTION_LIMIT
    """Most bytes of a request that changes nothing, prefix included."""

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self._departure = Departure()

    @property
    def _limit(self) -> int:
        is_control = self.operation.kind is OperationKind.CONTROL
        return _MESSAGE_LIMIT + PREFIX_SIZE if is_control else self.limit

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        if end_stream:
            self._ask()

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """See `Call`: all of it is looked at."""
        return False

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        request = self.request
        if self.finished or request.ended or request.retained is None:
            self.drop_upload(len(payload))
            return
        self.bytes_in += len(payload)
        if self.bytes_in > self._limit:
            self.fail(Reason.BODY_TOO_LARGE, "the message is too large for this call")
            return
        if self.messages is not None and not self._message_fits(payload):
            return
        if not request.collect(payload):
            return
        join_short(request.retained)
        if not end_stream:
            self.drop_upload(len(payload))
            return
        request.ended = True
        if self._length_fits():
            self._ask()

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers, which no call of this kind has use for."""
        self.request.ended = True
        if self._length_fits():
            self._ask()

    def _leave(self, reason: Reason | None, now: float | None = None) -> None:
        super()._leave(reason, now)
        self._departure.happen()

    def _ask(self) -> None:
        """The request is complete."""
        message = self.take_message()
        if message is not None:
            name = f"ask:{self.operation.name}"
            self.relay.tasks.spawn(self._answer(message), name=name)

    def take_message(self) -> bytes | None:
        """The message of the request; None where no server could read it: the call is over then."""
        try:
            return self._message()
        except RequestRefused as refusal:
            # Triton's code for a registration that it does not allow.
            status = GrpcStatus.INVALID_ARGUMENT if refusal.detail == REFUSED else None
            self.fail(refusal.reason, refusal.detail, status=status)
            return None

    def _message(self) -> bytes:
        """The first message of the request; others do not count, as with a Triton.

        Raises:
            RequestRefused: there is none, or no backend should see it.
        """
        pieces = self.request.retained or []
        data = b"".join(pieces)
        pieces.clear()  # a message of hundreds of megabytes is held once
        size = int.from_bytes(data[1:PREFIX_SIZE], "big")
        if len(data) < PREFIX_SIZE or len(data) < size + PREFIX_SIZE:
            raise RequestRefused(Reason.BAD_REQUEST, UNPARSABLE)
        limit = REGISTER_BYTES if is_registration(self.operation) else _INFLATED_LIMIT
        limit = min(limit, self._limit)
        message: bytes | None = data[PREFIX_SIZE : PREFIX_SIZE + size]
        if message and data[0]:
            message = inflated(message, limit)
        if message is None:
            raise RequestRefused(Reason.BAD_REQUEST, "the message cannot be inflated")
        if is_registration(self.operation) and (len(message) > limit or RESERVED in message):
            raise RequestRefused(Reason.BAD_REQUEST, REFUSED)
        return message

    async def _answer(self, message: bytes) -> None:
        fan_out = self.relay.fan_out
        if fan_out is None:
            raise RuntimeError("there is nobody to ask")
        question = Question(
            protocol=AppProtocol.GRPC,
            operation=self.operation,
            model=self.model,
            method=self.method,
            target=self.path,
            fields=self._fields(),
            body=message,
            departure=self._departure,
        )
        self.request.drop_retained()  # the fan-out counts the message from here on, inflated
        reply = await fan_out.ask(question)
        if not self.finished:
            self.relay.now = self.relay.clock()
            self.attempts = len(reply.backends)
            self._give(reply)

    def _give(self, reply: Reply) -> None:
        if reply.status == GrpcStatus.OK:
            body = reply.body
            if len(body) <= _LONG_ANSWER:
                self.finish_answer(frame_message(body))
            else:
                self.finish_answer(message_prefix(len(body)), rest=body)
            return
        self.status = 200
        self.grpc_status = status = GrpcStatus(reply.status)
        detail = masked(reply.detail.encode(errors="replace")).decode(errors="replace")
        self.answer_whole(trailers_only(status, detail), reply.reason)

    def _fields(self) -> tuple[tuple[bytes, bytes], ...]:
        """The client's metadata."""
        fields = FieldCache().split(self.head.block + self.server.extra_fields)
        return tuple(
            (field.name, field.value)
            for field in fields
            if not field.name.startswith(b":") and field.name not in _HOP_BY_HOP
        )
