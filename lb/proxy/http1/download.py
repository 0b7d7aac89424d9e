"""The answer's way to the client: framed again, or passed on as it was read.

Once a byte of it went out there is no other attempt. An error may send the request to another
backend instead.
"""

from __future__ import annotations

from typing import Final

from lb.domain.outcome import Outcome
from lb.kserve.errors import ERROR_BYTES, HTTP_STATUSES, http_error_text, meaning
from lb.kserve.gate import NameMask
from lb.kserve.operations import MODEL_GENERATE_STREAM
from lb.proxy.http1.upload import Upload
from lb.wire.http1.body import (
    LAST_CHUNK,
    BodyDecoder,
    ChunkedDecoder,
    LengthDecoder,
    Payload,
    few,
    forwardable_trailers,
)
from lb.wire.http1.grammar import CRLF
from lb.wire.http1.response import ResponseHead

_ANSWERED: Final = Outcome.ANSWERED
_OK: Final = 200
_INTERNAL: Final = 500
_UNUSABLE: Final = "status 200 without a body"


class HeldError:
    """An error that a backend answers, as far as it has come; nothing of it has gone on."""

    __slots__ = ("head", "pieces", "size")

    def __init__(self, head: ResponseHead, pieces: list[Payload]) -> None:
        self.head = head
        self.pieces: list[Payload] = []
        self.size = 0
        self.add(pieces)

    def add(self, pieces: list[Payload]) -> None:
        """More of its body."""
        self.pieces += pieces
        self.size += sum(map(len, pieces))


class Download(Upload):
    """The answer side of an exchange."""

    __slots__ = (
        "_backend_keeps", "_client_keeps", "_held_error", "_mask", "_sends_chunks",
        "response_begun",
    )  # fmt: skip

    _held_error: HeldError
    """Set with the first, since nearly none has one."""
    _mask: NameMask | None

    def attempt_failed(self, outcome: Outcome, detail: str) -> None:
        """The attempt under way ended without a complete answer; its connection is closed."""
        raise NotImplementedError

    def _may_retry(self, outcome: Outcome) -> bool:
        raise NotImplementedError

    def stop_abandoned(self) -> None:
        """The attempt is over: no time-out is left of one that nobody waited for."""
        raise NotImplementedError

    def _go_again(self, outcome: Outcome) -> None:
        raise NotImplementedError

    def on_whole_answer(self, head: ResponseHead, data: bytes, end: int) -> None:
        """Relay an answer that came in one read, `data`, with its body from `end` on."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Does for the common case what `on_answer`
        # does for all; the bytes go out as they came where the head needs no change.
        server = self.server
        plan = self.plan
        if (
            server is None
            or not plan.is_plain
            or not self.request_ended
            or server.is_leaving
            or (not head.length and plan.is_inference)
        ):
            self._on_answer_slowly(head, data, end)
            return
        now = self.relay.clock()
        self.first_byte_at = now
        self.status = head.status
        self.bytes_out = size = head.length
        port = self.port
        if port is not None:
            port.last_byte_at = now
            port.bytes_received += size
        if self._charged:
            self.forget()
        if server.transport is not None:
            server.transport.write(data if head.is_clean else head.plain + data[end:])
        self._client_keeps = True
        self._backend_keeps = head.keep_alive
        self._end(reusable=True)

    def _on_answer_slowly(self, head: ResponseHead, data: bytes, end: int) -> None:
        pieces: list[Payload] = []
        decoder = LengthDecoder(head.length)
        decoder.decode(data, end, pieces)
        self.on_answer(head, pieces, decoder, reusable=True)

    def on_interim(self, head: ResponseHead) -> None:
        """Pass a 1xx answer on. 100 (Continue) is ours to give, HTTP/1.0 knows none of them."""
        if self.server is not None and head.status != 100 and not self.plan.is_http10:
            self.server.write([head.plain])

    def on_answer(
        self,
        head: ResponseHead | None,
        pieces: list[Payload],
        decoder: BodyDecoder,
        *,
        reusable: bool,
    ) -> None:
        """Relay a part of the answer as it was read.

        Args:
            head: the final head, with the first part.
            pieces: payload.
            decoder: says whether this was the end, and holds the trailers.
            reusable: nothing came behind the end.
        """
        if not self.response_begun and (head is None or head.is_error):
            held = self._hold(head, pieces)
            if self._waits(held, decoder) or self._errs(held, decoder, reusable=reusable):
                return
            head, pieces = held.head, held.pieces
        if head is not None and self._is_unusable(head, pieces, decoder):
            return
        now = self.relay.clock()
        size = sum(map(len, pieces))
        port = self.port
        if port is not None:
            port.last_byte_at = now
            port.bytes_received += size
        message: list[Payload] = []
        if head is not None:
            self._begin_answer(head, now, message)
        server = self.server
        if server is not None:
            self.bytes_out += size
            mask = self._mask
            if mask is not None:
                pieces = [mask.feed(bytes(piece)) for piece in pieces]
            self._frame(message, pieces, size, decoder)
            if message:
                server.write(message)
        if decoder.ended:
            self._tell_of_last(pieces)
            self._end(reusable=reusable)

    def _is_unusable(self, head: ResponseHead, pieces: list[Payload], decoder: BodyDecoder) -> bool:
        """Whether an answer to an inference says that all is well and is empty: then nothing of it
        goes to the client, and another backend may be asked."""
        if not decoder.ended or head.status != _OK or not self.plan.is_inference or any(pieces):
            return False
        upstream = self.upstream
        if upstream is not None:
            upstream.close()
        self.attempt_failed(Outcome.PROTOCOL_ERROR, _UNUSABLE)
        return True

    def on_middle(self, data: bytes) -> bool:
        """Relay a read in the middle of a body of known length. False as `on_whole_chunk`."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The most of a large answer, without a list.
        server = self.server
        if server is None or server.transport is None or self._mask is not None:
            return False
        size = len(data)
        port = self.port
        if port is not None:
            port.last_byte_at = self.relay.clock()
            port.bytes_received += size
        self.bytes_out += size
        server.transport.write(data)
        return True

    @property
    def answer_passes(self) -> bool:
        """Whether what is left of the answer may pass unseen."""
        return self._mask is None

    def count_answer(self, size: int) -> None:
        """Some of the body of an answer has come."""
        port = self.port
        if port is not None:
            port.last_byte_at = self.relay.clock()
            port.bytes_received += size
        self.bytes_out += size

    def on_whole_chunk(self, data: bytes, start: int) -> bool:
        """Relay a part of the answer that was read as one chunk, `data`, with its payload from
        `start` on. False when it cannot go on as it is, and `on_answer` is to relay it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). One event of a stream: does what `on_answer`
        # does for it, without taking it apart and putting it together again.
        server = self.server
        if server is None or server.transport is None or not self._sends_chunks:
            return False
        size = len(data) - start - 2
        port = self.port
        if port is not None:
            port.last_byte_at = self.relay.clock()
            port.bytes_received += size
        self.bytes_out += size
        mask = self._mask
        if mask is not None and not mask.passes(data, len(data) - 2):
            text = data[start:-2]
            shown = mask.feed(text)
            if shown is not text:
                data = data[:start] + shown + CRLF
        server.transport.write(data)
        return True

    def on_lines(self, data: bytes, size: int) -> bool:
        """Relay a part of the answer that was read as whole chunks of whole lines, with so much
        payload. False as `on_whole_chunk`."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Several events in one read go on as they
        # came. No name of a region goes on from one line to the next.
        server = self.server
        mask = self._mask
        if (
            server is None
            or server.transport is None
            or not self._sends_chunks
            or (mask is not None and not mask.passes(data, len(data) - 2))
        ):
            return False
        port = self.port
        if port is not None:
            port.last_byte_at = self.relay.clock()
            port.bytes_received += size
        self.bytes_out += size
        server.transport.write(data)
        return True

    def _hold(self, head: ResponseHead | None, pieces: list[Payload]) -> HeldError:
        """An error, or more of it, has come."""
        if head is not None:
            return HeldError(head, pieces)
        self._held_error.add(pieces)
        return self._held_error

    def _waits(self, held: HeldError, decoder: BodyDecoder) -> bool:
        """Whether the rest of an error is awaited: it may send the request elsewhere."""
        if (
            decoder.ended
            or held.size > ERROR_BYTES
            or self.server is None
            or not (self.request_ended and self.is_retained)
        ):
            return False
        self._held_error = held
        # So that nothing of it takes a shortcut to the client.
        self._mask = NameMask()
        self._sends_chunks = False
        return True

    def _errs(self, held: HeldError, decoder: BodyDecoder, *, reusable: bool) -> bool:
        """A backend answers with an error. Whether the request goes elsewhere because of it."""
        head = held.head
        text = http_error_text(b"".join(held.pieces)) if decoder.ended else ""
        is_broken = self.relay.dispatcher.answered_with_error(self, head.status, text)
        return bool(text) and self._goes_elsewhere(
            head, text, is_broken=is_broken, reusable=reusable
        )

    def _tell_of_last(self, pieces: list[Payload]) -> None:
        """A stream of events may end with one that is an error."""
        if pieces and self.plan.operation is MODEL_GENERATE_STREAM and self.status == _OK:
            text = http_error_text(bytes(pieces[-1][: ERROR_BYTES + 1]))
            if text:
                self.relay.dispatcher.answered_with_error(self, _INTERNAL, text)

    def _goes_elsewhere(
        self, head: ResponseHead, text: str, *, is_broken: bool, reusable: bool
    ) -> bool:
        """Whether the request goes to another backend, since this one says it cannot serve it."""
        if self.server is None or not self.request_ended:
            return False
        dispatcher = self.relay.dispatcher
        known = meaning(text) if head.status in HTTP_STATUSES else None
        if known is None:
            outcome = Outcome.BROKEN
            if not is_broken or not self._may_retry(outcome):
                return False
        else:
            outcome = Outcome.NOT_HERE
            if not dispatcher.goes_elsewhere(self, known, body_retained=self.is_retained):
                return False
        upstream = self.upstream
        self.upstream = None
        if upstream is not None:
            upstream.release(reusable=reusable and head.keep_alive)
        if known is not None:
            self.attempt_failed(outcome, known.value)
            return True
        dispatcher.attempt_ended(self, outcome)
        self._go_again(outcome)
        return True

    def _begin_answer(self, head: ResponseHead, now: float, message: list[Payload]) -> None:
        self.forget()
        self.first_byte_at = now
        self.status = head.status
        self.response_begun = True
        self._backend_keeps = head.keep_alive
        plan = self.plan
        may_tell = head.is_error or plan.operation is MODEL_GENERATE_STREAM
        self._mask = NameMask() if may_tell else None
        # A client that is still sending may never end; one of HTTP/1.0 takes the end of the
        # connection for the end of a body without a length.
        self._client_keeps = (
            plan.keep_alive
            and self.request_ended
            and not (self.server is not None and self.server.is_leaving)
            and (head.length >= 0 or not plan.is_http10)
        )
        self._sends_chunks = head.length < 0 and not plan.is_http10
        message.append(head.downstream(to_http10=plan.is_http10, keep_alive=self._client_keeps))

    def _frame(
        self, message: list[Payload], pieces: list[Payload], size: int, decoder: BodyDecoder
    ) -> None:
        """Add a part of the body as the client gets it: all of one read is one chunk."""
        if not self._sends_chunks:
            message += few(pieces)
            return
        if size:
            message.append(b"%x\r\n" % size)
            message += few(pieces)
            message.append(CRLF)
        if decoder.ended:
            trailers = b""
            if isinstance(decoder, ChunkedDecoder) and decoder.trailers:
                trailers = forwardable_trailers(decoder.trailers)
            message.append(b"0\r\n%b\r\n" % trailers if trailers else LAST_CHUNK)

    def _end(self, *, reusable: bool) -> None:
        """The answer is complete."""
        # HOT PATH (benchmarks/bench_http1_relay.py).
        if self._charged or not self.request_ended:
            self.end_upload()
        upstream = self.upstream
        server = self.server
        self.upstream = self.server = None
        if upstream is not None:
            upstream.release(reusable=reusable and self._backend_keeps and self.request_ended)
        dispatcher = self.relay.dispatcher
        dispatcher.attempt_ended(self, _ANSWERED, self.status)
        if server is not None:
            dispatcher.finish(self)
            server.exchange_over(keep_alive=self._client_keeps)
        else:
            self.stop_abandoned()

    # Pressure

    def pause_answer(self) -> None:
        """The client is slow: let the backend wait."""
        if self.upstream is not None:
            self.upstream.set_reading(False)

    def resume_answer(self) -> None:
        """The client has caught up."""
        if self.upstream is not None:
            self.upstream.set_reading(True)
