"""The payload log: samples inferences and keeps their payload until it is written.

An exchange that is sampled has a `Recording`; others have none, and cost one draw. Payload is noted
as it passes; when the exchange is over, the record goes to the writer's thread. Of a stream each
message is a record as soon as it is whole, since streams may be open for days. Whatever is held is
in the memory budget of the process, as long as that has room for what nobody waits for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from lb.domain.backend import AppProtocol
from lb.kserve.gate import ERROR_TAG
from lb.kserve.stream_answers import ANSWER_HEAD_BYTES, answer_names
from lb.payloads.lines import Payload, PayloadRecord
from lb.payloads.writer import PayloadWriter
from lb.settings.reporting import OTHER_MODELS, PayloadLogSettings
from lb.telemetry.record import RequestRecord
from lb.telemetry.sampling import RECORDED, Draw, drawing
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE, model_name
from lb.wire.grpc.status import GrpcStatus
from lb.wire.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

_NEVER: Final = 1.0
"""A draw of which no share is greater."""
_WARN_EVERY_S: Final = 60.0
"""Between two lines of the application log about what was dropped."""


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """What is logged of whom."""

    shares: Mapping[bytes, float]
    """Share of the inferences to log, by model."""
    other_share: float
    """Of models that are not in `shares`."""
    greatest_share: float
    """Of whichever model has the greatest."""
    leave_out: frozenset[str]
    max_payload_bytes: int
    bytes_per_second: int
    memory_bytes: int

    def share_of(self, model: bytes) -> float:
        """Return the share of a model's inferences to log, 0 to 1."""
        return self.shares.get(model, self.other_share)


def payload_rules(settings: PayloadLogSettings) -> PayloadRules | None:
    """Read from settings what is logged; None where nothing is."""
    if not settings.is_on:
        return None
    shares = {name.encode(): share for name, share in settings.models.items()}
    return PayloadRules(
        shares=shares,
        other_share=shares.pop(OTHER_MODELS.encode(), 0.0),
        greatest_share=max(settings.models.values()),
        leave_out=frozenset(settings.leave_out),
        max_payload_bytes=settings.max_payload_bytes,
        bytes_per_second=settings.max_bytes_per_second,
        memory_bytes=settings.memory_bytes,
    )


class _Kept:
    """A request or a response, as far as it has passed."""

    __slots__ = ("head", "pieces", "size")

    def __init__(self, head: bytes = b"") -> None:
        self.head = head
        self.pieces: list[bytes] | None = []
        """None once it is too large to be kept."""
        self.size = 0
        """Bytes of the pieces."""

    def payload(self) -> Payload:
        """Return what is to be logged."""
        return Payload(self.head, None if self.pieces is None else tuple(self.pieces))


class Recorder(Protocol):
    """Has room for what recordings note, or has none."""

    max_payload_bytes: int
    """Of one request or response."""

    def take(self, size: int) -> bool:
        """Put so many bytes more in the memory budget. False where there is no room."""
        ...

    def release(self, size: int) -> None:
        """Take bytes out of the memory budget that are not kept any more."""
        ...

    def drop(self, recording: Recording) -> None:
        """Give a recording up: there is no room for it."""
        ...


class Recording:
    """What is noted of one inference under way, for the payload log or for shadow traffic."""

    __slots__ = ("_log", "draw", "is_dropped", "request", "response")

    def __init__(self, log: Recorder, draw: float, head: bytes) -> None:
        self._log = log
        self.draw = draw
        """It is logged if the share of its model is greater; 0 to 1."""
        self.is_dropped = False
        self.request = _Kept(head)
        self.response = _Kept()

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return self.request.size + self.response.size

    def add_request(self, payload: bytes | memoryview) -> None:
        """Note a part of the request."""
        self._add(self.request, payload)

    def replace_request(self, payload: bytes) -> None:
        """Hold another form of the request's payload instead."""
        self._log.release(self.request.size)
        self.request = _Kept(self.request.head)
        self._add(self.request, payload)

    def begin_response(self, head: bytes = b"") -> None:
        """Note that a response begins. An earlier one did not reach the client."""
        self._log.release(self.response.size)
        self.response = _Kept(head)

    def add_response(self, payload: bytes | memoryview) -> None:
        """Note a part of the response."""
        self._add(self.response, payload)

    def forget(self) -> None:
        """Hold nothing any more, and note nothing."""
        self._log.release(self.size)
        self.is_dropped = True
        self.request, self.response = _Kept(), _Kept()

    def _add(self, kept: _Kept, payload: bytes | memoryview) -> None:
        pieces = kept.pieces
        size = len(payload)
        if pieces is None or self.is_dropped or not size:
            return
        if kept.size + size > self._log.max_payload_bytes:
            self._log.release(kept.size)
            kept.size, kept.pieces = 0, None
        elif self._log.take(size):
            kept.size += size
            pieces.append(bytes(payload))
        else:
            self._log.drop(self)


class StreamRecording(Recording):
    """What is noted of a stream of inferences: the messages under way. Whole ones are logged."""

    __slots__ = ("_answered", "_asked", "_payloads", "exchange", "id", "message_draw")

    def __init__(
        self, payloads: PayloadLog, exchange: RequestRecord, draw: float, number: bytes
    ) -> None:
        """
        Args:
            payloads: takes the messages.
            exchange: the stream.
            draw: a message is logged if the share of its model is greater; 0 to 1.
            number: the id of the stream.
        """
        super().__init__(payloads, _NEVER, b"")  # its messages are logged, and not the whole
        self.exchange = exchange
        self.message_draw = draw
        self.id = number
        self._payloads = payloads
        self._asked, self._answered = MessageCutter(), MessageCutter()

    def add_request(self, payload: bytes | memoryview) -> None:
        """Note a part of the client's messages."""
        at, cutter = 0, self._asked
        while at < len(payload):
            stop = cutter.advance(payload, at)
            self._add(self.request, payload[at:stop])
            at = stop
            if cutter.is_between:
                whole, self.request = self.request, _Kept()
                self._end(whole, is_request=True)

    def add_response(self, payload: bytes | memoryview) -> None:
        """Note a part of the answers, as the client gets them."""
        at, cutter = 0, self._answered
        while at < len(payload):
            stop = cutter.advance(payload, at)
            self._add(self.response, payload[at:stop])
            at = stop
            if cutter.is_between:
                whole, self.response = self.response, _Kept()
                self._end(whole, is_request=False)

    def _end(self, message: _Kept, *, is_request: bool) -> None:
        """Log a message, unless there was no room for it. There may be for the next one."""
        if not self.is_dropped:
            self._payloads.log_message(self, message, is_request=is_request)
        elif self._payloads.recording_of(self.exchange) is self:
            self.is_dropped = False


class PayloadLog:
    """Samples inferences, and hands them to a writer when they are over. A `RequestSink`, and the
    `Holder` of what it keeps. To be used from one event loop."""

    def __init__(
        self,
        memory_budget: MemoryBudget,
        call_soon: Callable[[Callable[[PayloadRecord, bool], None], PayloadRecord, bool], object],
        rng: Random,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,  # noqa: TID251  # lines are read elsewhere
    ) -> None:
        """Log nothing until `configure`.

        Args:
            memory_budget: has the bytes held.
            call_soon: has a function called in the event loop, from any thread; RuntimeError when
                that is closed.
            rng: draws the sample, and makes ids for requests that have none.
            clock: monotonic seconds.
            wall: Unix time in seconds.
        """
        self.held = 0
        """For the memory budget, which writes it."""
        self.max_payload_bytes = 0
        """Of one request or response."""
        self.dropped = 0
        """Inferences that were sampled and are not logged."""
        self._memory_budget = memory_budget
        memory_budget.spares += (self,)
        self._call_soon = call_soon
        self._rng = rng
        self._clock = clock
        self._wall = wall
        self.draw: Draw | None = None
        """Whether the inference at hand may be in the sample, whatever its model; None while
        nothing is logged."""
        self._rules: PayloadRules | None = None
        self._writer: PayloadWriter | None = None
        self._recordings: dict[RequestRecord, Recording] = {}
        """Inferences under way."""
        self._queued: dict[PayloadRecord, int] = {}
        """Records that the writer has, and the bytes held for each."""
        self._warned_at = -_WARN_EVERY_S

    def configure(self, rules: PayloadRules | None, writer: PayloadWriter | None) -> None:
        """Log by these rules from now on. Inferences under way are not logged.

        Args:
            rules: what is logged; None: nothing.
            writer: takes the records; it stays the caller's.
        """
        if rules == self._rules and writer is self._writer:
            return
        for recording in tuple(self._recordings.values()):
            recording.forget()
        self._recordings.clear()
        self._rules = None if writer is None else rules
        self._writer = writer
        self.draw = None
        if rules is not None and writer is not None:
            self.draw = drawing(self._rng, rules.greatest_share, RECORDED)
            self.max_payload_bytes = rules.max_payload_bytes
            writer.bytes_per_second = rules.bytes_per_second

    # The relay

    def draws(self, share: float) -> bool:
        """Decide whether one more of a share is in the sample, 0 to 1."""
        return self._rng.random() < share

    def record(self, exchange: RequestRecord, head: bytes, draw: float = 0.0) -> Recording | None:
        """Begin to record an inference that is in the sample; `finished` is told of its end.

        Args:
            exchange: the inference.
            head: of HTTP; empty for gRPC.
            draw: it is in the sample if its model's share is greater.

        Returns:
            What its payload is to be noted in; None where nothing is logged any more.
        """
        if self._rules is None:
            return None
        recording = self._recordings[exchange] = Recording(self, draw, head)
        return recording

    def sample(self, exchange: RequestRecord) -> Recording | None:
        """Record an inference that was drawn before its model is known, as `record`. Its model's
        share decides at the end whether it is logged."""
        if self._rules is None:
            return None
        return self.record(exchange, b"", self._rng.random() * self._rules.greatest_share)

    def sample_stream(self, exchange: RequestRecord) -> StreamRecording | None:
        """Record a stream that was drawn, as `sample`. The draw holds for all of its messages, so
        sequences are logged as a whole."""
        rules = self._rules
        if rules is None:
            return None
        draw = self._rng.random() * rules.greatest_share
        recording = StreamRecording(self, exchange, draw, self._id_of(exchange))
        self._recordings[exchange] = recording
        return recording

    def log_message(self, recording: StreamRecording, message: _Kept, *, is_request: bool) -> None:
        """Have a message of a stream written.

        Args:
            recording: of the stream.
            message: a whole one.
            is_request: the client sent it.
        """
        rules, writer = self._rules, self._writer
        if rules is None or writer is None:
            return
        exchange = recording.exchange
        start = _start(message.pieces or [])
        if is_request:
            model = model_name(start)
        else:
            names = answer_names(start)
            model = names.model if names is not None else b""
        model = model or exchange.model
        if recording.message_draw >= rules.share_of(model):
            self.release(message.size)
            return
        is_error = start[PREFIX_SIZE : PREFIX_SIZE + 1] == bytes((ERROR_TAG,))
        now = self._wall()
        payload = message.payload()
        made = PayloadRecord(
            id=recording.id.decode("utf-8", "backslashreplace"),
            protocol=exchange.protocol,
            path=exchange.path,
            model=model,
            backend="",
            status=GrpcStatus.UNKNOWN if is_error and not is_request else GrpcStatus.OK,
            reason="",
            started_at=now,
            ended_at=now,
            request=payload if is_request else None,
            response=None if is_request else payload,
            leave_out=rules.leave_out,
            max_bytes=rules.max_payload_bytes,
        )
        self._queued[made] = message.size
        writer.put(made, self._on_written)

    def recording_of(self, exchange: RequestRecord) -> Recording | None:
        """Return that of an inference under way; None for those that are not sampled."""
        return self._recordings.get(exchange)

    def finished(self, record: RequestRecord) -> None:
        """Have an inference written that is over."""
        recording = self._recordings.pop(record, None)
        rules, writer = self._rules, self._writer
        if recording is None or recording.is_dropped or rules is None or writer is None:
            return
        if recording.draw >= rules.share_of(record.model):
            recording.forget()
            return
        made = self._record(record, recording, rules)
        self._queued[made] = recording.size
        writer.put(made, self._on_written)

    def _id_of(self, exchange: RequestRecord) -> bytes:
        """That of the client, or one of ours."""
        return exchange.request_id or b"%032x" % self._rng.getrandbits(128)

    def _record(
        self, record: RequestRecord, recording: Recording, rules: PayloadRules
    ) -> PayloadRecord:
        ended_at = self._wall()
        number = self._id_of(record)
        is_grpc = record.protocol is AppProtocol.GRPC
        return PayloadRecord(
            id=number.decode("utf-8", "backslashreplace"),
            protocol=record.protocol,
            path=record.path,
            model=record.model,
            backend=record.backend.name if record.backend is not None else "",
            status=record.grpc_status if is_grpc else record.status,
            reason=record.reason.value if record.reason is not None else "",
            started_at=ended_at - (record.ended_at - record.started_at),
            ended_at=ended_at,
            request=recording.request.payload(),
            response=recording.response.payload(),
            leave_out=rules.leave_out,
            max_bytes=rules.max_payload_bytes,
        )

    # Memory

    def take(self, size: int) -> bool:
        """Put so many bytes more in the memory budget. False where there is no room."""
        rules, memory_budget = self._rules, self._memory_budget
        return (
            rules is not None
            and self.held + size <= rules.memory_bytes
            and memory_budget.held + size <= memory_budget.keep_up_to
            and memory_budget.take(self, size)
        )

    def release(self, size: int) -> None:
        """Take bytes out of the memory budget that are not kept any more."""
        if size:
            self._memory_budget.release(self, size)

    def drop(self, recording: Recording) -> None:
        """Give a recording up: there is no room for it."""
        recording.forget()
        self._on_dropped("memory", 1)

    def evict(self) -> None:
        """See `Holder`: what nobody waits for goes first."""
        given_up = [each for each in self._recordings.values() if not each.is_dropped]
        for recording in given_up:
            recording.is_dropped = True
            recording.request, recording.response = _Kept(), _Kept()
        if self._writer is not None:
            self._writer.drop_queued()
        count = len(given_up) + len(self._queued)
        self._queued.clear()
        self.release(self.held)
        self._on_dropped("memory", count)

    @property
    def charged_to(self) -> None:
        """See `Holder`: no client waits for it."""
        return None

    # The writer

    def _on_written(self, record: PayloadRecord, is_written: bool) -> None:
        """A record is over. Runs in the writer's thread."""
        try:
            self._call_soon(self.settle, record, is_written)
        except RuntimeError:  # the event loop is closed: the process ends
            return

    def settle(self, record: PayloadRecord, is_written: bool) -> None:
        """Give back what was held of a record, in the event loop."""
        size = self._queued.pop(record, None)
        if size is not None:  # else it was evicted, and counted then
            self.release(size)
            if not is_written:
                self._on_dropped("file", 1)

    def _on_dropped(self, why: str, count: int) -> None:
        self.dropped += count
        now = self._clock()
        if count and now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            extra = {"why": why, "dropped": self.dropped}
            _log.warning("payload log drops inferences", extra=extra)


def _start(pieces: list[bytes]) -> bytes:
    """The beginning of a message, as far as names are looked for there."""
    start = b""
    for piece in pieces:
        start += piece[: ANSWER_HEAD_BYTES - len(start)]
        if len(start) >= ANSWER_HEAD_BYTES:
            break
    return start
