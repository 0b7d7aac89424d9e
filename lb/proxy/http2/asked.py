"""Calls that concern all backends: collected whole, put to the fan-out, answered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.kserve.gate import REFUSED, REGISTER_BYTES, RESERVED, is_registration, masked
from lb.proxy.fan_out.question import (
    QUESTION_BYTES,
    Departure,
    FanOutReply,
    FanOutRequest,
)
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inflation import CANNOT_BE_INFLATED, inflated_in_turns
from lb.proxy.http2.inspection import frames_of_inflated
from lb.proxy.http2.replies import UNPARSABLE, trailers_only
from lb.wire.grpc.compression import inflated
from lb.wire.grpc.message import PREFIX_SIZE, frame_message, message_prefix
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.fields import FieldCache
from lb.wire.http2.flow import Payload
from lb.wire.pieces import join_short

_MESSAGE_LIMIT: Final = 2**31 - 1
"""What gRPC servers take at most."""
_INFLATED_LIMIT: Final = 64 * 2**20
"""A compressed load, which costs its sender little, may inflate to so much."""
_LOAD: Final = "RepositoryModelLoad"
_QUESTION_FRAMES: Final = 6
"""Frames that take as long as it takes to put a question to the fan-out."""
_LONG_ANSWER: Final = 64 * 1024
"""Bytes of a message above which it is not copied: it may be that of many calls."""
_HOP_BY_HOP: Final = frozenset({
    b"content-length", b"content-type", b"grpc-encoding", b"grpc-timeout", b"host", b"te",
})  # fmt: skip
"""Fields that each of our own calls has anew."""


OwnAnswer: TypeAlias = "Callable[[Collector], None]"
"""Answers a call whose request is complete."""


class Collector(CallPart):
    """Collects the request of a call, which goes to no backend of its own, and has it answered."""

    __slots__ = ("_answer_own", "_departure", "_most", "watch")

    def __init__(
        self, call: Call, answer: OwnAnswer | None = None, most: int = QUESTION_BYTES
    ) -> None:
        """
        Args:
            call: whose request it is.
            answer: answers it here; without one it is put to the fan-out.
            most: bytes of a request that changes nothing, prefix included.
        """
        super().__init__(call)
        call.part = self
        self._departure = Departure()
        self._answer_own = answer
        self._most = most
        self.watch: Callable[[], None] | None = None
        """Ends the subscription of a health watch."""

    @property
    def _limit(self) -> int:
        is_control = self.call.operation.kind is OperationKind.CONTROL
        return _MESSAGE_LIMIT + PREFIX_SIZE if is_control else self._most

    def begin(self, end_stream: bool) -> None:
        """See `CallPart`."""
        if end_stream:
            self._ask()

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        call = self.call
        request = call.request
        if call.finished or request.ended or request.retained is None:
            call.drop_upload(len(payload))
            return
        call.bytes_in += len(payload)
        if call.bytes_in > self._limit:
            call.fail(Reason.BODY_TOO_LARGE, "the message is too large for this call")
            return
        if call.messages is not None and not call.check_message(payload):
            return
        if not request.collect(payload):
            return
        join_short(request.retained)
        if not end_stream:
            call.drop_upload(len(payload))
            return
        request.ended = True
        if call.check_length():
            self._ask()

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers, which no call of this kind has use for."""
        self.call.request.ended = True
        if self.call.check_length():
            self._ask()

    def give_back(self, pieces: list[Payload]) -> None:
        """Have the call placed like any other.

        Args:
            pieces: of its request.
        """
        call = self.call
        call.part, call.request.owner = None, call
        call.request.retained = pieces
        if call.request.rewind():
            call.place_anew()

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        if self.watch is not None:
            self.watch()
            self.watch = None
        self._departure.happen()

    def _ask(self) -> None:
        """The request is complete."""
        if self._answer_own is not None:
            self._answer_own(self)
            return
        try:
            data, is_compressed = self._first_message()
            if not is_compressed:
                self._check(data)
        except RequestRefused as refusal:
            self._refuse(refusal)
            return
        self.call.server.inspected += _QUESTION_FRAMES
        parts = self.call.relay.parts
        answer = self._answer_compressed(data) if is_compressed else self._answer(bytes(data))
        parts.tasks.spawn(answer, name=f"ask:{self.call.operation.name}")

    def take_message(self) -> bytes | None:
        """The message of the request; None where no server could read it: the call is over then."""
        try:
            return self.message()
        except RequestRefused as refusal:
            self._refuse(refusal)
            return None

    def _refuse(self, refusal: RequestRefused) -> None:
        # Triton's code for a registration that it does not allow.
        status = GrpcStatus.INVALID_ARGUMENT if refusal.detail == REFUSED else None
        self.call.fail(refusal.reason, refusal.detail, status=status)

    def message(self) -> bytes:
        """The first message of a short request; others do not count, as with a Triton.

        Raises:
            RequestRefused: there is none.
        """
        data, is_compressed = self._first_message()
        if not is_compressed:
            return bytes(data)
        message = inflated(data, self._most)
        inflated_size = self._most if message is None else len(message)
        self.call.server.inspected += frames_of_inflated(inflated_size)
        if message is None:
            raise RequestRefused(Reason.BAD_REQUEST, CANNOT_BE_INFLATED)
        return message

    def _first_message(self) -> tuple[memoryview, bool]:
        """The first message of the request as it came, and whether it is compressed.

        Raises:
            RequestRefused: there is none.
        """
        pieces = self.call.request.retained or []
        data = b"".join(pieces)
        pieces.clear()  # a message of hundreds of megabytes is held once
        size = int.from_bytes(data[1:PREFIX_SIZE], "big")
        if len(data) < PREFIX_SIZE or len(data) < size + PREFIX_SIZE:
            raise RequestRefused(Reason.BAD_REQUEST, UNPARSABLE)
        message = memoryview(data)[PREFIX_SIZE : PREFIX_SIZE + size]
        return message, bool(size and data[0])

    @property
    def _inflated_limit(self) -> int:
        """Bytes that a message may inflate to. Files come with loads alone."""
        operation = self.call.operation
        if operation.name == _LOAD:
            return _INFLATED_LIMIT
        return REGISTER_BYTES if is_registration(operation) else QUESTION_BYTES

    def _check(self, message: bytes | memoryview) -> None:
        """
        Raises:
            RequestRefused: no backend should see the message.
        """
        if is_registration(self.call.operation) and (
            len(message) > REGISTER_BYTES or RESERVED in bytes(message)
        ):
            raise RequestRefused(Reason.BAD_REQUEST, REFUSED)

    async def _answer_compressed(self, data: memoryview) -> None:
        call = self.call
        parts = call.relay.parts
        limit = self._inflated_limit
        try:
            message = await inflated_in_turns(
                data, limit, parts.iteration, parts.memory_budget, self._departure
            )
            self._check(message)
        except RequestRefused as refusal:
            self._refuse(refusal)
            return
        if not call.finished:
            await self._answer(message)

    async def _answer(self, message: bytes) -> None:
        call = self.call
        fan_out = call.relay.parts.fan_out
        if fan_out is None:
            raise RuntimeError("there is nobody to ask")
        question = FanOutRequest(
            protocol=AppProtocol.GRPC,
            operation=call.operation,
            model=call.model,
            method=call.method,
            target=call.path,
            fields=self._fields(),
            client=call.client_key,
            body=message,
            departure=self._departure,
        )
        call.request.drop_retained()  # the fan-out counts the message from here on, inflated
        reply = await fan_out.ask(question)
        if not call.finished:
            call.relay.now = call.relay.clock()
            call.attempts = len(reply.backends)
            self._give(reply)

    def _give(self, reply: FanOutReply) -> None:
        call = self.call
        if reply.status == GrpcStatus.OK:
            body = reply.body
            if len(body) <= _LONG_ANSWER:
                call.finish_answer(frame_message(body))
            else:
                if reply.shared is not None:
                    call.response.memory_budget = reply.shared
                call.finish_answer(message_prefix(len(body)), rest=[body])
            return
        call.status = 200
        call.grpc_status = status = GrpcStatus(reply.status)
        detail = masked(reply.detail.encode(errors="replace")).decode(errors="replace")
        call.answer_whole(trailers_only(status, detail), reply.reason)

    def _fields(self) -> tuple[tuple[bytes, bytes], ...]:
        """The client's metadata."""
        fields = FieldCache().split(self.call.head.block + self.call.server.extra_fields)
        return tuple(
            (field.name, field.value)
            for field in fields
            if not field.name.startswith(b":") and field.name not in _HOP_BY_HOP
        )
