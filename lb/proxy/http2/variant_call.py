"""A unary call for a name that variants serve: another model in its message, and the name that was
asked for in the answer.

The variant is chosen when enough of the message has come to tell whether it is a step of a
sequence. What concerns a model without running it (metadata, configuration) is about the first
variant. A compressed message goes on as a plain one, which gRPC allows message by message.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from lb.access.gate import Credentials
from lb.domain.backend import Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.names import readable
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.domain.sequence import SequenceStep
from lb.kserve.names import NAME_BYTES, renamed_answer, renamed_inside, renamed_request
from lb.net.ask.client_call import Fields
from lb.proxy.http2.attempt import TO_CLIENT, GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inflation import Inflation
from lb.proxy.http2.inspection import (
    INSPECTED_BYTES,
    SEQUENCE_ID,
    Inspected,
    frames_of_inflated,
    inspect_first,
    inspect_message,
)
from lb.proxy.http2.recorded import RecordedResponse
from lb.proxy.variants import (
    Variant,
    VariantChoice,
    VariantRules,
    VariantSet,
    pinned_by,
)
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.fields import FieldCache, encode_field
from lb.wire.http2.flow import Payload
from lb.wire.http2.heads import NO_LENGTH

MAX_COMPRESSED: Final = 4 * 2**20
"""Bytes that a compressed message may have, and inflate to: it is held twice meanwhile."""
_CONFIG: Final = "ModelConfig"
_CONFIG_FIELD: Final = 1
"""The field of `ModelConfigResponse` with the configuration, whose first field is the name."""


class CountedAnswer(ResponseSink):
    """The response of a call whose variant has the name that was asked for. It passes, but not in
    one step with the end of the call, which is to be counted."""

    __slots__ = ()

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`."""
        attempt.sink = TO_CLIENT
        return payload


_COUNTED: Final = CountedAnswer()


class NamedAnswer(ResponseSink):
    """The response of a call, with the name that was asked for: the first bytes of it are held back
    until that is there, and the rest passes."""

    __slots__ = ("_is_config", "_model", "_name", "_text")

    def __init__(self, name: bytes, model: bytes, *, is_config: bool) -> None:
        self._name = name
        self._model = model
        self._is_config = is_config
        self._text = b""

    def shown(self, attempt: GrpcAttempt, payload: Payload, end_stream: int) -> Payload | None:
        """See `ResponseSink`."""
        self._text += bytes(payload)
        text = self._text
        size = int.from_bytes(text[1:PREFIX_SIZE], "big")
        if len(text) < PREFIX_SIZE + min(size, NAME_BYTES) and not end_stream:
            return None
        attempt.sink = TO_CLIENT
        if len(text) <= PREFIX_SIZE or text[0]:
            return text
        part = text[PREFIX_SIZE : PREFIX_SIZE + size]
        if self._is_config:
            renamed = renamed_inside(part, size, _CONFIG_FIELD, self._to_client)
        else:
            renamed = renamed_answer(part, size, self._to_client)
        size += len(renamed) - len(part)
        return b"\0" + size.to_bytes(4, "big") + renamed + text[PREFIX_SIZE + len(part) :]

    def _to_client(self, name: bytes) -> bytes:
        return self._name if name == self._model else name


class VariantCall(CallPart):
    """Chooses the variant of a call, and has it placed as one for that."""

    __slots__ = ("_asked", "_choice", "_is_looking", "_look_at", "_recording", "_step", "_variant")

    def __init__(self, call: Call, split: VariantSet, step: SequenceStep | None) -> None:
        super().__init__(call)
        call.part = self
        self._asked = split
        self._step = step
        self._variant: Variant | None = None
        self._choice: VariantChoice | None = None
        """None where the variant must not change."""
        self._is_looking = True
        """More of the message is needed to tell where it goes."""
        self._look_at = 0
        self._recording = call.relay.parts.shadows.record(call, split.name)
        """The recording of a call that is to be copied."""

    @property
    def variant(self) -> str:
        """See `CallPart`."""
        return self._variant.label if self._variant is not None else ""

    def start(self, data: bytes, end_stream: int) -> None:
        """Take what has come of the request."""
        call = self.call
        try:
            self._variant = self._choose()
        except RequestRefused as refused:
            call.refuse(refused)
            return
        rules = self._variant.rules
        data = _renamed(data, rules)
        if self._recording is not None:
            self._recording.add_request(data)
        call.model = rules.model
        call.hints = None
        request = call.request
        request.clear()
        request.retained = []
        call.retain(data)
        request.ended = request.ended or bool(end_stream)
        if request.ended:
            call.sent_at = call.relay.now
        else:
            call.expect_rest()
        if request.push(data):
            self._look()

    def _choose(self) -> Variant:
        """
        Raises:
            RequestRefused: its client names a variant that it may not have, or that does not exist.
        """
        call, split = self.call, self._asked
        if call.operation.kind is not OperationKind.INFERENCE:
            return split.variants[0]
        book = call.relay.dispatcher.variants
        name, step = pinned(call), self._step
        variant = book.choose(split, call.protocol, call.hint, call.token, step, name)
        self._choice = book.choice(split, variant, call.protocol, step, name)
        return variant

    def leave_variant(self) -> bool:
        """See `CallPart`."""
        return self._choice is not None and self._choice.leave()

    def _change(self, variant: Variant) -> None:
        """Have another variant serve the call, of which nothing goes to a backend now."""
        call, request = self.call, self.call.request
        self._variant = variant
        retained = request.retained
        first, *rest = retained if retained is not None else request.queue or (b"",)
        request.clear()
        request.retained = None if retained is None else []
        call.model = variant.rules.model
        call.hints = call.ticket = None
        call.tried = ()
        for piece in (_renamed(bytes(first), variant.rules), *rest):
            if request.retained is not None:
                call.retain(piece)
            if not request.push(piece):
                return
        self._is_looking = True
        self._look_at = 0
        self._look()

    def _look(self) -> None:
        """Find out where the request goes, now that there is more of it."""
        call = self.call
        request = call.request
        if request.held < self._look_at and not request.ended:
            return
        self._look_at = 2 * request.held
        data = b"".join(request.queue or ())[: INSPECTED_BYTES + PREFIX_SIZE]
        if inspect_first(call, call.server, data, is_all=request.ended):
            self._is_looking = False
            self.place()

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        if self._recording is not None:
            self._recording.add_request(payload)
        self._take(payload, end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        self._take(payload, end_stream)  # it was noted when it came

    def _take(self, payload: Payload, end_stream: int) -> None:
        call = self.call
        if not self._is_looking:
            call.request_data(payload, end_stream)
            return
        request = call.request
        if call.guard is not None and not call.pass_guard(call.guard, payload, end_stream):
            return
        call.bytes_in += len(payload)
        if call.messages is not None and not call.check_message(payload):
            return
        if request.retained is not None:
            call.retain(payload)
        request.ended = bool(end_stream)
        if request.ended and not call.check_length():
            return
        if request.ended and call.sent_at:
            call.upload_ended()
        if request.push(payload):
            self._look()

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        is_looking, self._is_looking = self._is_looking, False
        self.call.request_trailers(block)
        if is_looking and not self.call.finished:
            self._look()

    def passes(self, _pipe: Any) -> bool:
        """See `Call`. What is to be copied is noted piece by piece."""
        if self._is_looking or self._recording is not None:
            return False
        return self.call.passes(_pipe)

    def place(self) -> None:
        """See `CallPart`."""
        call = self.call
        relay = call.relay
        if self._choice is not None and self._choice.follow():
            self._change(self._choice.variant)
            return
        try:
            attempt = relay.placer.place(call, self._make_attempt, relay.now, call)
        except RequestRefused as refusal:
            call.refuse(refusal)
            return
        if attempt is not None:
            relay.start(attempt)

    def _make_attempt(
        self, call: Call, backend: Backend, port: Port, began_at: float
    ) -> GrpcAttempt:
        attempt = GrpcAttempt(call, backend, port, began_at)
        attempt.sink = call.relay.sink_of(call)
        return attempt

    def new_sink(self) -> ResponseSink:
        """See `CallPart`."""
        variant, name = self._variant, self._asked.name
        sink: ResponseSink = _COUNTED
        if variant is not None and variant.rules.model != name:
            is_config = self.call.operation.name == _CONFIG
            sink = NamedAnswer(name, variant.rules.model, is_config=is_config)
        return sink if self._recording is None else RecordedResponse(self._recording, sink)

    @property
    def may_run_twice(self) -> bool:
        """See `CallPart`."""
        call = self.call
        hints = call.hints
        return call.operation.may_run_twice and (hints is None or hints.step is None)

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        call, variant = self.call, self._variant
        shadows = call.relay.parts.shadows
        if variant is None or call.operation.kind is not OperationKind.INFERENCE:
            shadows.forget(call)
            return
        timeout_s = call.head.facts.timeout_s
        due = inf if timeout_s is None else call.started_at + timeout_s
        now, status = call.relay.clock(), call.grpc_status
        took_s = variant.ended(call, reason, due, now)
        if took_s is not None:
            shadows.answered(self._asked.name, took_s)
        if reason is not None or status < 0:
            shadows.forget(call)
        elif self._recording is not None:
            rules, took_s = variant.rules, call.took_s(now)
            shadows.finished(call, rules.model, rules.version, status, took_s, self._fields)

    def _fields(self) -> Fields:
        """The metadata of the call."""
        call = self.call
        block, known = call.head.block, call.relay.parts.shadows.metadata
        found = known.get(block) or known.revive(block)
        if found is None:
            caches = call.relay.caches(of_trusted_proxy=call.server.client.is_trusted_proxy)
            fields = caches.fields.split(block)
            found = tuple(
                [(field.name, field.value) for field in fields if not field.name.startswith(b":")]
            )
            if not any(field.never_indexed for field in fields):
                known.put(block, found)
        return found


class CompressedCall(CallPart):
    """Waits until the message of a call is inflated, which takes more than one turn: only then a
    variant can serve it."""

    __slots__ = ("_inflation", "_owner", "_split")

    def __init__(self, call: Call, split: VariantSet, inflation: Inflation) -> None:
        """
        Args:
            call: whose message is there.
            split: the variants of its model.
            inflation: of the message, whose first slice is inflated.
        """
        self._owner = owner = call.request.owner
        super().__init__(call)
        call.part = self
        if owner is not call:
            call.request.owner = owner  # notes what comes, and passes it on
        self._split = split
        self._inflation = inflation

    def wait(self, data: bytes, end_stream: int) -> None:
        """Hold what has come of the request, and go on in the next turn of its connection."""
        call, request = self.call, self.call.request
        request.clear()
        request.retained = []
        call.retain(data)
        request.ended = False  # its end comes again with what is postponed
        if request.push(data):
            call.server.postpone(request, b"", end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`: the next turn."""
        call, request = self.call, self.call.request
        try:
            is_inflated = self._inflation.go_on()
        except RequestRefused as refused:
            call.refuse(refused)
            return
        if not is_inflated:
            call.server.postpone(request, payload, end_stream)
            return
        call.part, request.owner = None, self._owner
        request.ended = bool(end_stream)
        if _begin_inflated(call, self._split, self._inflation, end_stream):
            return
        # For a version of that model: it goes on as it came.
        if not end_stream or call.check_length():
            call.place_anew()

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        self._inflation.close()


def _renamed(data: bytes, rules: VariantRules) -> bytes:
    """What has come of a request, with its prefix, as one for the model of a variant."""
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    part = data[PREFIX_SIZE : PREFIX_SIZE + size]
    renamed = renamed_request(part, size, rules.model, rules.version)
    size += len(renamed) - len(part)
    return b"\0" + size.to_bytes(4, "big") + renamed + data[PREFIX_SIZE + len(part) :]


def pinned(call: Call) -> bytes:
    """The variant that the client of a call names; see `pinned_by`."""
    found: Any = call.head.facts.credentials
    credentials = found if isinstance(found, Credentials) else None
    return pinned_by(call, call.relay.dispatcher.gate, credentials, call.server.client)


def _forget_length(call: Call) -> None:
    """Announce no length of a request to backends: it changes with the name. What the client
    sends is to be as long as it said all the same."""
    head = call.head
    if head.facts.content_length == NO_LENGTH:
        return
    block = b"".join(
        encode_field(field.name, field.value)
        for field in FieldCache().split(head.block)
        if field.name != b"content-length"
    )
    call.head = head.with_block(block)


def begin_variant(call: Call, split: VariantSet, data: bytes, end_stream: int) -> bool | None:
    """Have a call served by a variant, if it is for the name and not for a version of that model.

    Args:
        call: whose model is known, and that has no part.
        split: the variants of its model.
        data: what has come of its request, with its prefix.
        end_stream: that is all.

    Returns:
        Whether it was; None where more of the request is needed to tell.
    """
    if call.operation.kind is not OperationKind.INFERENCE and (
        split.variants[0].rules.model == split.name
    ):
        return False
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    if not data[0]:
        return _begin_plain(call, split, data, size, end_stream)
    if size <= MAX_COMPRESSED and len(message) < size:
        if end_stream:
            return False
        call.look_again_at = PREFIX_SIZE + size
        call.let_come(size - len(message))
        return None
    if size > MAX_COMPRESSED:
        _refuse_compressed(call, split)
        return True
    inflation = Inflation(message, MAX_COMPRESSED, call.relay.memory_budget)
    try:
        if inflation.go_on():
            return _begin_inflated(call, split, inflation, end_stream)
    except RequestRefused as refused:
        call.refuse(refused)
    else:
        CompressedCall(call, split, inflation).wait(data, end_stream)
    return True


def _begin_inflated(call: Call, split: VariantSet, inflation: Inflation, end_stream: int) -> bool:
    """Go on with `begin_variant`: the compressed message is inflated."""
    plain = inflation.message
    inflation.close()
    if plain is None:
        _refuse_compressed(call, split)
        return True
    size = len(plain)
    call.server.inspected += frames_of_inflated(size)
    data = b"\0" + size.to_bytes(4, "big") + plain
    return _begin_plain(call, split, data, size, end_stream) is not False


def _refuse_compressed(call: Call, split: VariantSet) -> None:
    name = readable(split.name)
    text = f"the compressed message for {name} is broken or longer than {MAX_COMPRESSED} bytes"
    call.fail(Reason.BODY_TOO_LARGE, text)


def _begin_plain(
    call: Call, split: VariantSet, data: bytes, size: int, end_stream: int
) -> bool | None:
    """Go on with `begin_variant`: `data` is plain, what has come of a message of `size` bytes."""
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    cost = Inspected()
    is_all = len(message) == size or bool(end_stream) or len(data) >= INSPECTED_BYTES
    found = inspect_message(
        message,
        size,
        cost,
        is_compressed=False,
        with_rows=False,
        with_regions=False,
        only_names=SEQUENCE_ID not in message and len(message) == size,
    )
    call.server.inspected += cost.frames
    if not found.is_complete and not is_all:
        return None
    if found.version:
        return False
    if end_stream and not call.check_length():
        return True
    _forget_length(call)
    step = found.step if call.operation.kind is OperationKind.INFERENCE else None
    owner = call.request.owner
    part = VariantCall(call, split, step)
    if owner is not call:
        call.request.owner = owner  # notes what comes, and passes it on
    part.start(data, end_stream)
    return True
