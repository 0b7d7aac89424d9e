"""A `ModelStreamInfer` in which messages may be for names that variants serve.

Names are replaced at the client's side of the stream: what routes messages and merges answers sees
models alone. Which answers get a name back follows from their model. So where a stream also asks
for the model of a variant by its own name, those answers have the name of the variants, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any, Final

from lb.domain.backend import Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.gate import ERROR_TAG, StreamMask
from lb.kserve.names import NAME_BYTES, renamed_inside, renamed_request
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inflation import Inflation
from lb.proxy.http2.inspection import (
    INSPECTED_BYTES,
    SEQUENCE_ID,
    Inspected,
    frames_of_inflated,
    inspect_message,
)
from lb.proxy.http2.stream_session import CUT_OFF, INSPECTED_AT_ONCE, StreamSession
from lb.proxy.http2.variant_call import MAX_COMPRESSED, pinned
from lb.proxy.variants import Variant, VariantSet
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE, model_name
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode

_RESPONSE_FIELD: Final = 2
"""The field of `ModelStreamInferResponse` with the response, whose first field is the name."""
_UNANSWERED: Final = 1024
"""Requests of a variant whose times are remembered until they are answered."""
_TOO_LARGE: Final = f"a compressed message is broken or longer than {MAX_COMPRESSED} bytes"


class StreamVariants:
    """Which variants serve a stream, and the names that it uses for their models."""

    __slots__ = ("_asked", "_call", "_coming", "_drawn", "is_sole", "last", "names")

    def __init__(self, call: Call) -> None:
        self._call = call
        self.names: dict[bytes, bytes] = {}
        """The name that was asked for, by the model that serves it."""
        self._drawn: dict[bytes, Variant] = {}
        """By name: the variant of requests that belong to no sequence."""
        self._asked: dict[bytes, tuple[Variant, deque[float]]] = {}
        """By model: when requests had come that are not answered yet."""
        self._coming: deque[float] | None = None
        """Where the time of a request stands of which more is to come."""
        self.is_sole = True
        """One variant serves all of the stream, so that errors are its errors."""
        self.last: Variant | None = None
        """The variant of the last request."""

    def request(self, data: bytes, size: int) -> bytes | None:
        """A request as it goes on.

        Args:
            data: its first bytes, without its prefix.
            size: of all of it.

        Returns:
            None where more of it is needed to tell.

        Raises:
            RequestRefused: its client names a variant that it may not have, or that does not exist.
        """
        call = self._call
        book = call.relay.dispatcher.variants
        cost = Inspected()
        found = inspect_message(
            data,
            size,
            cost,
            is_compressed=False,
            with_rows=False,
            with_regions=False,
            only_names=len(data) == size and SEQUENCE_ID not in data,
        )
        call.server.inspected += cost.frames
        if not found.is_complete and len(data) < min(size, INSPECTED_BYTES):
            return None
        split = book.sets.get(found.model)
        if split is None or found.version:
            self.is_sole = False
            return data
        variant = None if found.step is not None else self._drawn.get(found.model)
        if (
            variant is None
            or variant not in split.variants
            or not book.may_serve(variant, call.protocol)
        ):
            name = pinned(call)
            variant = book.choose(split, call.protocol, call.hint, call.token, found.step, name)
            if found.step is None:
                self._drawn[found.model] = variant
        self._note(split, variant)
        return renamed_request(data, size, variant.rules.model, variant.rules.version)

    def _note(self, split: VariantSet, variant: Variant) -> None:
        model = variant.rules.model
        self.last = self.last or variant
        if self.last is not variant:
            self.is_sole = False
            self.last = variant
        if model != split.name:
            self.names[model] = split.name
        asked = self._asked.get(model)
        if asked is None or asked[0] is not variant:
            asked = self._asked[model] = (variant, deque(maxlen=_UNANSWERED))
        asked[1].append(self._call.relay.now)
        self._coming = asked[1]

    def request_ended(self) -> None:
        """All of a request has come. Its time begins now, unless it is answered already."""
        if self._coming:
            self._coming[-1] = self._call.relay.now
        self._coming = None

    def to_client(self, model: bytes) -> bytes:
        """The name that the client has for a model whose answer comes."""
        asked = self._asked.get(model)
        if asked is not None:
            variant, times = asked
            route = self._call.relay.dispatcher.pool.current.routes.get(model)
            is_timed = route is not None and route.facts.is_decoupled is False
            if times:  # else it is a further answer to a request
                took_s = self._call.relay.now - times.popleft()
                variant.count(took_s if is_timed else None, is_error=False)
        return self.names.get(model, model)

    def failed(self) -> None:
        """An error came."""
        variant = self.last
        if variant is not None and self.is_sole:
            asked = self._asked.get(variant.rules.model)
            if asked is not None and asked[1]:
                asked[1].popleft()
            variant.count(None, is_error=True)

    @property
    def is_used(self) -> bool:
        """Whether a variant serves any of the stream."""
        return self.last is not None


class NamedMask(StreamMask):
    """A mask that also puts the names into answers that were asked for. Bytes of a message are held
    back until its name is there."""

    __slots__ = ("_begun", "_call", "_cutter", "_variants")

    def __init__(self, call: Call, variants: StreamVariants) -> None:
        super().__init__()
        self._call = call
        self._variants = variants
        self._cutter: MessageCutter | None = None
        """At the first byte that was not put out; None as long as no variant serves the stream."""
        self._begun = b""
        """The first bytes of a message, which are held back."""

    def begin(self) -> None:
        """A variant serves the stream from now on."""
        if self._cutter is None:
            self._cutter = self.cutter()

    def feed(self, payload: bytes | memoryview) -> bytes | memoryview:
        """See `StreamMask`."""
        masked = super().feed(payload)
        cutter = self._cutter
        if cutter is None:
            return masked
        # Always another object, so that no answer takes a way on which nobody looks at it.
        out = bytearray()
        at = 0
        while at < len(masked):
            is_first = cutter.is_between or bool(self._begun)
            stop = cutter.advance(masked, at)
            if not is_first and stop - at == len(masked):
                return memoryview(masked)
            if is_first:
                self._begun += bytes(masked[at:stop])
                out += self._named(is_whole=cutter.is_between)
            else:
                out += masked[at:stop]
            at = stop
        # What the client gets counts for its window, what came for the backend's.
        self._call.response.owed -= len(out) - len(masked)
        return memoryview(bytes(out))

    def _named(self, *, is_whole: bool) -> bytes:
        """What is known of a message under way, once its name is."""
        text = self._begun
        if not is_whole and len(text) < PREFIX_SIZE + NAME_BYTES:
            return b""
        self._begun = b""
        if len(text) <= PREFIX_SIZE or text[0]:
            return text
        size = int.from_bytes(text[1:PREFIX_SIZE], "big")
        part = text[PREFIX_SIZE:]
        variants = self._variants
        if part[0] == ERROR_TAG:
            variants.failed()
            renamed = renamed_inside(
                part, size, _RESPONSE_FIELD, lambda name: variants.names.get(name, name)
            )
        else:
            renamed = renamed_inside(part, size, _RESPONSE_FIELD, variants.to_client)
        size += len(renamed) - len(part)
        return b"\0" + size.to_bytes(4, "big") + renamed


class VariantStream(CallPart):
    """A stream of inferences where some name has variants: puts models into its requests, which a
    `StreamSession` routes then."""

    __slots__ = (
        "_begun", "_cutter", "_inflation", "_look_at", "_mask", "_rest", "_session", "_variants",
    )  # fmt: skip

    def __init__(self, call: Call) -> None:
        self._session = session = StreamSession(call)
        super().__init__(call)  # from now on the call and its pipe turn here
        call.part = self
        self._variants = StreamVariants(call)
        self._mask = session.single.mask = NamedMask(call, self._variants)
        self._cutter = MessageCutter()
        self._begun: Pipe[Any] = Pipe(call, call.relay.memory_budget, 0, 0)
        """The first bytes of a message, until it is known where it goes."""
        self._look_at = 0
        """Bytes of it that must have come before it is looked at again."""
        self._inflation: Inflation | None = None
        """Inflates the whole compressed message that is held back."""
        self._rest: tuple[Payload, int] | None = None
        """What is put off until others have had their turn, and whether it ends the request."""

    @property
    def variant(self) -> str:
        """See `CallPart`."""
        last = self._variants.last
        return last.label if last is not None else ""

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        session, call, begun = self._session, self.call, self._begun
        out = bytearray()
        at, cutter = 0, self._cutter
        while True:
            if self._inflation is not None:
                try:
                    named = self._inflated(self._inflation)
                except RequestRefused as refused:
                    call.refuse(refused)
                    return
                if named is None:
                    break
                out += named
                begun.clear()
                self._variants.request_ended()
            if at == len(payload) or call.server.inspected >= INSPECTED_AT_ONCE:
                break
            is_first = cutter.is_between or begun.held > 0
            stop = cutter.advance(payload, at)
            if not is_first and stop - at == len(payload):
                if cutter.is_between:
                    self._variants.request_ended()
                session.request_data(payload, end_stream)
                return
            if is_first:
                try:
                    named = self._name(payload[at:stop], is_whole=cutter.is_between)
                except RequestRefused as refused:
                    call.refuse(refused)
                    return
                if named is not None:
                    begun.clear()
                    self._look_at = 0
                    out += named
                elif not begun.push(payload[at:stop]):
                    return
            else:
                out += payload[at:stop]
            at = stop
            if cutter.is_between and self._inflation is None:
                self._variants.request_ended()
        is_all = at == len(payload) and self._inflation is None
        if is_all and end_stream and self._fail_if_cut_off():
            return
        # What the client sent counts for its window, what goes on for the backend's.
        delta = len(out) - at
        call.bytes_in -= delta
        call.request.owed -= delta
        if self._variants.is_used and not session.single.looks_at_all:
            session.single.looks_at_all = True
            session.single.forget()
            self._mask.begin()
        if out or (is_all and end_stream):
            session.request_data(bytes(out), end_stream if is_all else 0)
        if not is_all and not call.finished:
            self._put_off(payload[at:], end_stream)

    def _put_off(self, payload: Payload, end_stream: int) -> None:
        """Go on in the next turn of the connection, after what the session has put off."""
        server = self.call.server
        self._rest = payload, end_stream
        if not server.has_postponed:
            server.postpone(self.call.request, b"", 0)

    def _fail_if_cut_off(self) -> bool:
        """Fail the call if its request ends within bytes that are held back here; where it ends
        within others, the session sees that. Returns whether it failed."""
        if not self._begun.held or self._session.is_answered:
            return False
        self.call.request.ended = True
        self.call.fail(Reason.BAD_REQUEST, CUT_OFF)
        return True

    def _name(self, piece: Payload, *, is_whole: bool) -> bytes | None:
        """Put the model into a message under way.

        Args:
            piece: what came of it just now.
            is_whole: it ends with that.

        Returns:
            What has come of it so far; None where more of it is needed to tell.

        Raises:
            RequestRefused: it is too large, or may go nowhere.
        """
        begun = self._begun
        if begun.held + len(piece) < self._look_at and not is_whole:
            return None
        text = b"".join((*(begun.queue or ()), piece))
        if len(text) < PREFIX_SIZE:
            return None
        size = int.from_bytes(text[1:PREFIX_SIZE], "big")
        if text[0]:
            if size > MAX_COMPRESSED:
                raise RequestRefused(Reason.BODY_TOO_LARGE, _TOO_LARGE)
            if is_whole:
                budget = self.call.relay.memory_budget
                self._inflation = Inflation(text[PREFIX_SIZE:], MAX_COMPRESSED, budget)
                return None
            self._look_at = PREFIX_SIZE + size
            self.call.let_come(PREFIX_SIZE + size - len(text))
            return None
        name = model_name(text)
        if name and name not in self.call.relay.dispatcher.variants:
            self._variants.is_sole = False
            return text
        renamed = self._variants.request(text[PREFIX_SIZE:], size)
        if renamed is None and not is_whole:
            # Its name may come last: crumbs must not cost the square of the size.
            self._look_at = 2 * len(text)
            return None
        if renamed is None:
            return text
        size += len(renamed) - len(text) + PREFIX_SIZE
        return b"\0" + size.to_bytes(4, "big") + renamed

    def _inflated(self, inflation: Inflation) -> bytes | None:
        """A whole compressed message; one for a variant goes on as a plain one. None: it takes
        another turn.

        Raises:
            RequestRefused: it is too large, or may go nowhere, or memory is short.
        """
        if not inflation.go_on():
            return None
        self._inflation = None
        self._look_at = 0
        plain = inflation.message
        inflation.close()
        if plain is None:
            raise RequestRefused(Reason.BODY_TOO_LARGE, _TOO_LARGE)
        self.call.server.inspected += frames_of_inflated(len(plain))
        renamed = self._variants.request(plain, len(plain))
        if renamed is None or renamed is plain:
            return b"".join(self._begun.queue or ())
        return b"\0" + len(renamed).to_bytes(4, "big") + renamed

    # What is the session's alone

    def begin(self, end_stream: bool) -> None:
        """See `CallPart`."""
        self._session.begin(end_stream)

    def place(self) -> None:
        """See `CallPart`."""
        self._session.place()

    def pause(self) -> None:
        """See `CallPart`."""
        self._session.pause()

    def take_resumption(self, has_begun: bool, outcome: Outcome) -> bool | None:
        """See `CallPart`."""
        return self._session.take_resumption(has_begun, outcome)

    def resume(self, outcome: Outcome) -> None:
        """See `CallPart`."""
        self._session.resume(outcome)

    def leave_parting(self) -> None:
        """See `CallPart`."""
        self._session.leave_parting()

    def leave_backend(self, backend: Backend) -> None:
        """See `CallPart`."""
        self._session.leave_backend(backend)

    def models_used(self) -> Collection[bytes]:
        """See `CallPart`."""
        return self._session.models_used()

    def end_attempts(self, code: ErrorCode | None) -> bool:
        """See `CallPart`."""
        return self._session.end_attempts(code)

    def drop_rest(self) -> int:
        """See `CallPart`."""
        return self._session.drop_rest()

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        self._begun.clear()
        self._begun.owner = None
        if self._inflation is not None:
            self._inflation.close()
        self._session.leave(reason)

    @property
    def may_run_twice(self) -> bool:
        """See `CallPart`."""
        return self._session.may_run_twice

    @property
    def is_between(self) -> bool:
        """See `CallPart`."""
        return self._session.is_between

    @property
    def merged_at(self) -> float:
        """See `CallPart`."""
        return self._session.merged_at

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`."""
        if len(payload):
            self._session.resume_request(payload, end_stream)  # models stand in it already
        rest = self._rest
        if rest is not None and not (self.call.finished or self.call.server.has_postponed):
            self._rest = None
            self.request_data(*rest)

    def request_trailers(self, block: bytes) -> None:
        """See `CallPart`."""
        if not self._fail_if_cut_off():
            self._session.request_trailers(block)
