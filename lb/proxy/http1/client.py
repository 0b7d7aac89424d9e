"""A connection to a backend: one request at a time goes out, its answer comes in.

Never pipelined: Triton answers only the first of two pipelined requests. A connection is used
again only when the answer ended exactly where its framing said, and nothing came after it.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, cast

from lb.domain.backend import AppProtocol, Backend, Port
from lb.domain.outcome import Outcome
from lb.net.sockets import acknowledged_bytes, read_rest, unsent_bytes
from lb.net.splice import LEAST, Pump, descriptor, is_plain
from lb.net.timers import Timer
from lb.proxy.http1.pool import Pooled
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.sides import AnswerSink
from lb.wire.http1.body import (
    FEW,
    PIECES_AT_ONCE,
    ChunkedDecoder,
    CloseDecoder,
    LengthDecoder,
    Payload,
    make_decoder,
)
from lb.wire.http1.collect import END, HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import INTERIM_RESPONSES
from lb.wire.http1.response import ResponseHead
from lb.wire.rope import Stored

JOIN_BYTES: Final = 16 * 1024
"""Up to this much is copied into one piece to be written; more is written as a vector."""

LARGE_READ: Final = 16 * 1024
"""Bytes of chunks after which others have their turn: libuv reads from a sender that is so fast up
to 32 times in a row, 8 MB."""
PIECE_COST: Final = 2
"""Units of `IterationBudget` for a chunk."""
_REST_BYTES: Final = 1 << 20
"""Bytes of an answer that is read after writing the request has failed."""
_TOO_LARGE: Final = 431
"""What the codec says of fields, in a head or in trailers, beyond its limits."""
_WAITING_BYTES: Final = 16 * 1024
"""Bytes that are read into the transport of what is not in memory, to wait until the socket takes
more."""


def write_pieces(transport: asyncio.Transport, pieces: list[Payload]) -> None:
    """Write all pieces with one system call."""
    if len(pieces) == 1:
        transport.write(pieces[0])
    elif sum(map(len, pieces)) <= JOIN_BYTES:
        transport.write(b"".join(pieces))
    else:
        transport.writelines(pieces)


class Http1ClientConnection(Pooled):
    """One upstream connection."""

    __slots__ = (
        "_answering", "_collector", "_decoder", "_goes_on", "_held", "_interim", "_known_head",
        "_rest", "_stall_timer", "_taken", "_unsent", "attempt", "is_full", "is_plain",
        "is_reading", "is_reused", "pump", "relay", "transport",
    )  # fmt: skip

    def __init__(self, relay: Http1Shared, backend: Backend, port: Port) -> None:
        super().__init__(backend, port)
        self.relay = relay
        self.transport: asyncio.Transport | None = None
        """None before it is connected and once it is lost."""
        self.attempt: AnswerSink | None = None
        """Whose request is under way."""
        self.is_reused = False
        """It has answered a request before."""
        self.is_full = False
        """More waits to be written than should: the request's sender is to pause."""
        self._collector: HeadCollector | None = None
        self.configured()
        self._answering = False
        """Some of an answer has come."""
        self._decoder: LengthDecoder | ChunkedDecoder | CloseDecoder | None = None
        """Decodes the answer's body, once its head is complete and goes on."""
        self._held: tuple[ResponseHead, ChunkedDecoder | CloseDecoder | LengthDecoder] | None = None
        """The head of an answer that is none without a body, while there is nothing of that."""
        self._interim = 0
        """1xx answers to the request under way."""
        self.is_reading = True
        """The client has room for more of the answer."""
        self._rest = b""
        """What was read of the answer and is decoded in a later iteration of the loop."""
        self._goes_on = False
        """Others have their turn before it is decoded, or before more is read."""
        self._stall_timer: Timer | None = None
        """Runs while more of a request waits to be written than should."""
        self._unsent = 0
        """How much waited when it was set."""
        self._taken = 0
        """How much the backend had taken then, of all requests."""
        self.is_plain = False
        """What passes the transport is what passes its socket."""
        self.pump: Pump | None = None
        """Moves an answer in place of the transport's reading."""

    # Requests

    def write(self, pieces: list[Payload]) -> None:
        """Send a part of the request."""
        if self.transport is not None:
            write_pieces(self.transport, pieces)

    def send_stored(self, piece: Stored) -> int:
        """Send some of a part of the request that is not in memory. Returns how many bytes."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return len(piece)
        if not self.is_plain:
            transport.write(piece.read())
            return len(piece)
        # The transport then reports whatever waits to be written, and that it is gone.
        transport.set_write_buffer_limits(high=0)
        size = 0
        if not transport.get_write_buffer_size():
            size = piece.send(descriptor(transport))
            if size < len(piece):
                # The socket takes no more, or fails: its transport waits for it, or finds out.
                rest = piece.part(size, size + _WAITING_BYTES).read()
                transport.write(rest)
                size += len(rest)
        transport.set_write_buffer_limits(high=self.relay.options.buffer_size)
        return size

    def set_reading(self, wanted: bool) -> None:
        """Read on, or let the backend wait until the client has caught up."""
        if self.transport is not None and wanted is not self.is_reading:
            self.is_reading = wanted
            if self.pump is not None:
                self.pump.set_reading(wanted)
            elif self._goes_on:
                pass  # it is not read from anyway
            elif wanted:
                self._read_on()
            else:
                self.transport.pause_reading()

    def _let_others_go_first(self) -> None:
        """Go on with what was read, and read more, in a later iteration of the loop."""
        if not self._goes_on and self.pump is None and self.transport is not None:
            self._goes_on = True
            if self.is_reading and not self.transport.is_closing():
                self.transport.pause_reading()
            self.relay.iteration.later(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self.is_reading and self.transport is not None:
            self._read_on()

    def _read_on(self) -> None:
        """Decode what was read already before more is read."""
        rest, self._rest = self._rest, b""
        if rest and self.attempt is not None:
            self._read(self.attempt, rest)
        transport = self.transport
        if (
            transport is not None
            and self.is_reading
            and not (self._goes_on or transport.is_closing())
        ):
            transport.resume_reading()

    def release(self, *, reusable: bool) -> None:
        """The attempt is over: keep the connection for the next one, or close it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Resets only what an ordinary attempt sets.
        self.attempt = None
        self._decoder = None
        if not reusable or self.is_full or self.transport is None:
            self.close()
            return
        self._answering = False
        self._interim = 0
        self.is_reused = True
        if not self.is_reading:
            self.set_reading(True)
        self.relay.upstreams.put(self)

    def close(self) -> None:
        """Close without waiting for anything to be sent: it would be of no use any more."""
        self.attempt = None
        self.abort()

    def abort(self) -> None:
        """Close now; an attempt that is under way fails."""
        self.end_pump()
        if self.transport is not None:
            self.transport.abort()

    def configured(self) -> None:
        """The relay has other options: look heads up where it keeps them now, and hold them
        against its limits."""
        self._known_head = self.relay.heads.known_response
        if self._collector is not None:
            self._collector.limits = self.relay.options.head

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self.relay.options.buffer_size)
        self.is_plain = is_plain(self.transport)
        self.relay.upstreams.open.add(self)
        self.port.connections += 1

    def pause_writing(self) -> None:
        """asyncio: the backend takes the request more slowly than the client sends it."""
        self.is_full = True
        if self._stall_timer is None:
            self._watch_stall()
        if self.attempt is not None:
            self.attempt.upload_changed()

    def resume_writing(self) -> None:
        """asyncio: the backend has caught up."""
        self.is_full = False
        if self.attempt is not None:
            self.attempt.upload_changed()

    def _watch_stall(self) -> None:
        if self.transport is not None:
            self._unsent = unsent_bytes(self.transport)
            self._taken = acknowledged_bytes(self.transport)
            timeout_s = self.relay.options.body_timeout_s
            self._stall_timer = self.relay.timers.after(timeout_s, self._look_for_stall)

    def _look_for_stall(self) -> None:
        """The client waits for us and we for the backend: nobody else would notice."""
        self._stall_timer = None
        if not self.is_full or self.transport is None:
            return
        # More may wait than before although much was taken: the client may be faster.
        if (
            unsent_bytes(self.transport) < self._unsent
            or acknowledged_bytes(self.transport) > self._taken
        ):
            self._watch_stall()
        else:
            self._fail(Outcome.STALLED, "no byte of the request was taken in time")

    def eof_received(self) -> None:
        """asyncio: the backend closes. What we have not sent it will not read any more."""
        self._leave_pool()
        self.abort()

    @property
    def owes_since(self) -> float:
        """See `Owing`."""
        attempt = self.attempt
        return inf if attempt is None else attempt.sent_at

    def unheard(self) -> None:
        """See `Owing`. Others to the same backend may be as dead."""
        self.relay.upstreams.renew(self.backend)
        self._fail(Outcome.STALLED, "nothing that was sent was acknowledged")

    def hung(self) -> None:
        """The backend is silent: the request that is under way may leave it."""
        if self.attempt is not None:
            self.attempt.backend_hung()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: closed, by whichever side."""
        transport = self.transport
        self.end_pump()
        self.transport = None
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self.port.connections -= 1
        self.relay.upstreams.open.discard(self)
        self._leave_pool()
        if exc is not None and self.attempt is not None and transport is not None:
            rest = read_rest(transport, _REST_BYTES)
            if rest:
                self.data_received(rest)
        attempt = self.attempt
        if attempt is None:
            return
        head, decoder = self._held or (None, self._decoder)
        if exc is None and isinstance(decoder, CloseDecoder):
            decoder.ended = True
            attempt.on_answer(head, [], decoder, reusable=False)
            return
        never_answered = not self._answering and self.is_reused
        self._fail(Outcome.STALE if never_answered else Outcome.LOST, str(exc or "closed"))

    def _leave_pool(self) -> None:
        """The connection is lost. While it was idle, that says something about its backend."""
        if self.relay.upstreams.discard(self):
            self.relay.accounts.connection_lost(self.backend, AppProtocol.HTTP)

    # Answers

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        # HOT PATH (benchmarks/bench_http1_relay.py). A whole answer with a head that is known,
        # in one read, takes no decoder, nor does a read in the middle of a body, or one of whole
        # chunks. Everything else takes `_read`, which is the plain form; backends repeat
        # their heads, so what is not known is not looked at here.
        attempt = self.attempt
        if attempt is None:
            # Nobody asked: it must not become the answer to the next request.
            self._leave_pool()
            self.abort()
            return
        if not self._answering:
            self._answering = True
            end = data.find(END) + 4
            if end > 3 and not attempt.plan.is_head:
                head = self._known_head(data[:end])
                if head is not None and head.length == len(data) - end:
                    attempt.on_whole_answer(head, data, end)
                    return
        else:
            decoder = self._decoder
            if type(decoder) is LengthDecoder:
                if len(data) < decoder.remaining and attempt.on_middle(data):
                    decoder.remaining -= len(data)
                    if self.is_plain and decoder.remaining >= LEAST:
                        self._start_pump(attempt, decoder)
                    return
            elif type(decoder) is ChunkedDecoder:
                if self._rest:
                    self._rest += data
                    return
                if len(data) > LARGE_READ:
                    self._let_others_go_first()
                size = decoder.whole_chunks(data)
                if size and attempt.on_whole_chunks(data, size):
                    return
        self._read(attempt, data)

    def _read(self, attempt: AnswerSink, data: bytes) -> None:
        try:
            head: ResponseHead | None = None
            decoder = self._decoder
            if decoder is None and self._held is not None:
                head, decoder = self._held
            elif decoder is None:
                found = self._read_head(attempt, data)
                if found is None:
                    return
                head, data = found
                decoder = make_decoder(head.length)
            pieces: list[Payload] = []
            iteration = self.relay.iteration
            most = PIECES_AT_ONCE if iteration.left > 0 else FEW
            end = 0 if decoder.ended else decoder.decode(data, 0, pieces, most)
        except MessageError as error:
            is_large = error.status == _TOO_LARGE
            self._fail(Outcome.HEAD_TOO_LARGE if is_large else Outcome.PROTOCOL_ERROR, error.text)
            return
        if head is not None:
            is_empty = not (decoder.ended or any(pieces))
            if is_empty and attempt.needs_payload(head):
                self._held = head, decoder
                self.port.last_byte_at = self.relay.clock()
                return
            self._held = None
            self._decoder = decoder
        if len(pieces) >= FEW:
            iteration.spend(len(pieces) * PIECE_COST)
            if end < len(data) and not decoder.ended:
                self._rest = data[end:]
                self._let_others_go_first()
        attempt.on_answer(head, pieces, decoder, reusable=end == len(data))
        if self.is_plain and isinstance(decoder, LengthDecoder) and decoder.remaining >= LEAST:
            self._start_pump(attempt, decoder)

    def _read_head(self, attempt: AnswerSink, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """The final head and what follows it; None while it is not complete."""
        if self._collector is None:
            self._collector = HeadCollector(self.relay.options.head, of_request=False)
        collector = self._collector
        while True:
            text = collector.feed(data)
            if text is None:
                return None
            head = self.relay.heads.response(text, to_head=attempt.plan.is_head)
            data = collector.rest
            if not head.is_interim:
                return head, data
            self._interim += 1
            if self._interim > INTERIM_RESPONSES:
                raise MessageError(400, "too many interim responses")
            attempt.on_interim(head)

    def _start_pump(self, attempt: AnswerSink, decoder: LengthDecoder) -> None:
        """Have most of what is left of a long answer moved to the client, if that is possible."""
        client = attempt.client
        if (
            client is None
            or client.transport is None
            or not client.is_plain
            or self.transport is None
            or self.attempt is not attempt
            or not self.is_reading
            or not attempt.answer_passes
        ):
            return
        self.pump = self.relay.pumps.start(
            self.transport,
            client.transport,
            decoder.remaining,
            high=client.options.buffer_size,
            moved=self._moved,
            over=self._pump_over,
        )

    def _moved(self, size: int) -> None:
        if isinstance(self._decoder, LengthDecoder):
            self._decoder.remaining -= size
        if self.attempt is not None:
            self.attempt.count_answer(size)

    def _pump_over(self) -> None:
        self.pump = None

    def end_pump(self) -> None:
        """Whoever the answer was moved to does not want it any more."""
        if self.pump is not None:
            self.pump.end()

    def _fail(self, outcome: Outcome, detail: str) -> None:
        attempt = self.attempt
        self.close()
        if attempt is not None:
            attempt.failed(outcome, detail)
