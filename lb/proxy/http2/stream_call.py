"""`ModelStreamInfer`: a stream whose messages may have to go to several backends.

The first message chooses the backend of the stream, and as long as all others belong there the
call is relayed like any other: messages are told apart by their prefixes and passed on as they
come. The first one that belongs elsewhere turns the call into one of several upstream streams
(`stream_merge`). Errors in the stream are looked into (`lb.kserve.gate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.stream_debts import Debts, Due, StreamMessage
from lb.proxy.exchange import Particulars
from lb.proxy.http2.look import LOOK_BYTES, Inspected
from lb.proxy.http2.replies import trailers_only
from lb.proxy.http2.stream_answer import StreamAttempt
from lb.proxy.http2.stream_count import COUNT_EVERY, CountedStream
from lb.proxy.http2.stream_merge import StreamMerge
from lb.proxy.http2.stream_message import SEQUENCE_ID, is_plain, read_message
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.budget import Spending
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode, pack_header
from lb.wire.http2.heads import RequestHead

if TYPE_CHECKING:
    from lb.domain.pool import PoolSnapshot
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink
    from lb.proxy.http2.stream_branch import Branch

_GRPC: Final = AppProtocol.GRPC
_NAME_TAG: Final = 0x0A
_SHORT_NAME: Final = 0x80
"""Names of fewer bytes have a length of one byte."""
_FIRST_LOOK: Final = 1024
"""Bytes of a message that nearly always tell where it goes; they are copied to be looked at."""
_INSPECTED_AT_ONCE: Final = 64
"""What the messages of one frame may cost, counted in frames, before others have their turn: one or
two milliseconds."""
_TINY_MESSAGE: Final = 16
"""Messages of fewer bytes, prefix included, ask for nothing; one frame may bring 50,000 of them.
The first of a frame is free: who sends a frame for each, pays for that already."""
_CUT_OFF: Final = "the stream ends within a message"
_OF_ONE_MESSAGE: Final = frozenset({Reason.SEQUENCE_LOST, Reason.SEQUENCE_ID})
"""Refusals that say nothing of other messages of a stream."""
_NOTHING_DUE: Final = Due()


class StreamCall(CountedStream):
    """A stream of inferences."""

    __slots__ = (
        "_between", "_counts", "_cutter", "_due", "_head", "_header", "_header_size", "_is_pausing",
        "_known", "_known_stop", "_look_at", "_needs_no_look", "_target",
    )  # fmt: skip

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self._cutter = MessageCutter()
        self._between = True
        """No message is under way."""
        self._head: Pipe[Any] | None = None
        """The first bytes of a message, until it is known where it goes."""
        self._look_at = 0
        """Bytes of it that must have come before it is looked at again."""
        self._target: Branch | None = None
        """Where the message under way goes."""
        self._is_pausing = False
        """An attempt has ended, and another one follows soon."""
        self._known = b""
        """How the last message began: messages that begin like it, but for the length, go where
        it went."""
        self._known_stop = 0
        self._header = b""
        """Of the frame in which one of `_header_size` goes to the backend."""
        self._header_size = 0
        self._needs_no_look = False
        """They are not even looked through for a sequence."""
        self._counts = False
        """They have one answer each."""
        self._due = _NOTHING_DUE
        """What is known of all of them."""

    # The client's side

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        if end_stream:
            self._end_request(b"")

    def take_message(self, payload: bytes, size: int) -> bool:
        """A small frame of the request came. False when it is not a whole message that begins as
        the last one did, and `request_data` is to take it."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `request_data` for what nearly always
        # comes, in two calls instead of four, with the header of the last frame.
        request = self.request
        link = request.sink
        if (
            not self._between
            or link is None
            or self._snapshot is not self._pool.current
            or not (
                (size == self._known_size and payload.startswith(self._known))
                or self._is_alike(payload, size)
            )
            or not (self._needs_no_look or SEQUENCE_ID not in payload)
        ):
            return False
        if size != self._header_size:
            self._header = pack_header(size << 8, 0, request.sink_id)
            self._header_size = size
        if not link.send_small(request, payload, self._header, size):
            return False
        self.bytes_in += size
        if self._counts:
            counted = self.debts.counted
            counted.append(self._due)
            if len(counted) > self._count_at:
                self._count_answers()
        return True

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        # HOT PATH (benchmarks/bench_stream_relay.py). A whole message that begins as the last
        # one did goes on as it is; the reference is `_take`.
        if self.guard is not None and not self.guard.clears(self, payload, end_stream):
            return
        size = len(payload)
        self.bytes_in += size
        request = self.request
        if (
            self._between
            and not end_stream
            and (
                (size == self._known_size and payload[: self._known_stop] == self._known)
                or self._is_alike(payload, size)
            )
            and self._snapshot is self._pool.current
            and (self._needs_no_look or (size < COPY_BELOW and SEQUENCE_ID not in payload))
            and (sink := request.sink) is not None
        ):
            if self._counts:
                counted = self.debts.counted
                counted.append(self._due)
                if len(counted) > self._count_at and not self._count_answers():
                    return
            sink.send_data(request, payload)
            return
        if self.messages is not None and not self._message_fits(payload):
            return
        self.resume_request(payload, end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `Call`: it is counted already, but not inspected where that is still under way."""
        if self.guard is not None and self.guard.is_under_way:
            self.request_data(payload, end_stream)
            return
        request = self.request
        if self._is_answered:
            request.ended = request.ended or bool(end_stream)
            self.drop_upload(len(payload))
            return
        if self._is_waiting:
            if not self._hold(payload):
                return
        elif len(payload):
            stop = self._take(payload, may_stop=True)
            if stop < 0:
                return
            if stop < len(payload):
                self.server.postpone(request, payload[stop:], end_stream)
                return
        if end_stream:
            self._end_request(b"")

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers."""
        if self._is_answered:
            self.request.ended = True
        else:
            self._end_request(block)

    @property
    def _is_answered(self) -> bool:
        """Whether nobody needs more of the request."""
        return self.response.ended or (self.merge is not None and self.merge.is_closing)

    @property
    def _is_waiting(self) -> bool:
        """Whether it waits for a backend: all of it is routed when there is one."""
        return self._is_pausing or (self.backend is None and self.relay.dispatcher.queue.has(self))

    def _hold(self, payload: Payload) -> bool:
        """Keep what comes until there is a backend. False when the call had to give way."""
        head = self._head
        if head is not None and head.queue:
            # The beginning of the message comes first, although it is not known where that goes.
            begun = tuple(head.queue)
            head.clear()
            if not all(self.request.push(piece) for piece in begun):
                return False
        return self.request.push(payload)

    def _end_request(self, trailers: bytes) -> None:
        request = self.request
        request.trailers = trailers
        request.ended = True
        if not self._length_fits() or self._is_waiting:
            return
        if not self._between:
            self.fail(Reason.BAD_REQUEST, _CUT_OFF)
        elif self.merge is not None:
            self.merge.half_close(trailers)
        elif self.backend is None:
            # Not a single message. Some Tritons die of such a stream, so no backend gets it.
            self.grpc_status = GrpcStatus.OK
            self.status = 200
            self.answer_whole(trailers_only(GrpcStatus.OK, ""), None)
        elif request.sink is not None:
            request.sink.end_stream(request)

    # Messages

    def _take(self, payload: Payload, *, may_stop: bool) -> int:
        """Send on what came, message by message.

        Args:
            payload: of any number of messages.
            may_stop: what is left may wait until others had their turn.

        Returns:
            How much of it was taken; -1 when the call is over.
        """
        at, size = 0, len(payload)
        server = self.server
        while at < size:
            is_first = self._between
            cutter = self._cutter
            stop = cutter.advance(payload, at)
            piece = payload if stop - at == size else payload[at:stop]
            self._between = cutter.is_between
            if at and is_first and self._between and len(piece) < _TINY_MESSAGE:
                server.spend(Spending.CRUMB)
            at = stop
            if is_first or self._is_looking:
                self._find_way(piece)
            else:
                self._send(piece)
            if self.finished:
                return -1
            if may_stop and server.inspected >= _INSPECTED_AT_ONCE:
                break
        return at

    @property
    def _is_looking(self) -> bool:
        """Whether it is not known yet where the message under way goes."""
        return self._head is not None and bool(self._head.queue)

    def _find_way(self, piece: Payload) -> None:
        """The beginning of a message, or more of it: find out where it goes."""
        head = self._head
        pieces: tuple[Payload, ...] = (piece,)
        held = len(piece)
        if head is not None and head.queue:
            pieces = (*head.queue, piece)
            held += head.waiting
        message = None
        if held >= self._look_at or self._between:
            # Looked at anew only when there is twice as much: crumbs must not cost its square.
            self._look_at = 2 * held
            snapshot = self._pool.current
            for limit in (_FIRST_LOOK, LOOK_BYTES):
                data = b"".join(part[:limit] for part in pieces)[:limit]
                is_all = self._between and len(data) < limit
                cost = Inspected()
                message = read_message(data, snapshot, is_all=is_all, cost=cost)
                self.server.inspected += 1 + cost.frames
                if message is not None or len(data) < limit:
                    break
        if message is None:
            if head is None:
                head = self._head = Pipe(self, self.relay.ledger, 0, 0)
            head.push(piece)
            return
        self._look_at = 0
        if head is not None:
            head.clear()
        self._route(message, pieces)
        if self.merge is None and not self.finished:
            self._remember(message, data, snapshot)

    def _remember(self, message: StreamMessage, data: bytes, snapshot: PoolSnapshot) -> None:
        """Note how the next message must begin to go the same way unseen."""
        name = message.model
        size = len(name)
        route = snapshot.routes.get(name)
        start = data[: PREFIX_SIZE + 2 + size]
        self._snapshot = self._validity = None
        if (
            message.step is None
            and not (message.version or snapshot.regions)
            and (route is None or route.is_uniform)
            and 0 < size < _SHORT_NAME
            and start[PREFIX_SIZE:] == bytes((_NAME_TAG, size)) + name
            and not start[0]
            and self.request.retained is None
            and self.messages is None
            and self.guard is None
        ):
            self._known, self._known_stop, self._known_size = start, len(start), 0
            self._header_size = 0
            self.request.taker = self.take_message
            self._needs_no_look = is_plain(route)
            self._due = Due(name, is_unserved=message.is_unserved)
            self._counts = message.has_one_answer and not self.is_uncounted
            self._snapshot = self._validity = snapshot
            if message.rows:
                self._see_home()

    def _is_alike(self, payload: Payload, size: int) -> bool:
        """Whether it is one whole message of another size that begins as the last one did."""
        # HOT PATH (benchmarks/bench_stream_relay.py).
        known = self._known
        stop = self._known_stop
        if (
            self._snapshot is None
            or size <= PREFIX_SIZE
            or payload[0]
            or payload[PREFIX_SIZE:stop] != known[PREFIX_SIZE:]
            or int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE != size
        ):
            return False
        self._known = bytes(payload[:stop])
        self._known_size = size
        return True

    def _send(self, piece: Payload) -> None:
        """Some of the message under way."""
        if self._target is not None:
            self._target.send(piece)
            return
        request = self.request
        if request.retained is not None:
            self._retain(piece)
        if request.sink is not None:
            request.sink.send_data(request, piece)
        else:
            request.push(piece)

    # Where messages go

    def _route(self, message: StreamMessage, pieces: tuple[Payload, ...]) -> None:
        """Send a message, or the beginning of it, to where it belongs."""
        try:
            backend = self.backend_for(message)
            if backend is None or (self.merge is None and self.backend is None):
                self._begin(message, pieces, backend)
                return
        except RequestRefused as refusal:
            self._refuse(message, pieces, refusal)
            return
        if self.is_uncounted:
            message = message._replace(has_one_answer=False)
        if self.merge is None and (backend is not self.backend or self._mixes(message)):
            self._fan_out()
        merge = self.merge
        if merge is None:
            if not self._note(message):
                return
            for piece in pieces:
                self._send(piece)
            return
        if self._pool.current.parting:
            merge.leave_parting(but=backend)
        branch = merge.live.get(backend)
        is_new = branch is None
        branch = self._target = branch or merge.new_branch(backend, message.model)
        merge.expect(branch, message, backend)
        for piece in pieces:
            branch.send(piece)
        if is_new and not self.finished:
            branch.open()

    def _begin(
        self, message: StreamMessage, pieces: tuple[Payload, ...], backend: Backend | None
    ) -> None:
        """The first message: choose the backend of the stream, if that is open, and start it."""
        relay = self.relay
        self.model = message.model
        step = message.step
        particulars = None
        route = relay.dispatcher.pool.current.routes.get(message.model)
        if message.version or message.regions or (route is not None and not route.is_uniform):
            particulars = self.particulars = Particulars()
            particulars.version, particulars.regions = message.version, message.regions
        if backend is None:
            attempt = None
            if not self._is_waiting:
                attempt = relay.dispatcher.place(self, StreamAttempt, relay.now)
            if attempt is None:
                for piece in pieces:
                    if not self.request.push(piece):
                        break  # it had to give way
                return
        elif relay.ledger.is_short:
            raise RequestRefused(Reason.MEMORY, "load balancer is out of memory for requests")
        else:
            attempt = relay.dispatcher.begin_attempt(self, StreamAttempt, backend, relay.now)
        if step is not None:
            self.particulars = particulars = particulars or Particulars()
            particulars.step = step
        if not self._note(message):
            return
        for piece in pieces:
            self._send(piece)
        if not (self.finished or self.request.ended):  # else `_place` does, when all is routed
            relay.pool(attempt.backend).start(attempt)

    def _note(self, message: StreamMessage) -> bool:
        """A message goes to the one backend. False when the call had to give way."""
        self._target = None
        self.note_first(message)
        debts = self.debts
        work = self.take_work() if message.has_one_answer else None
        if work is not None:
            self._keep_accounts()
        if not debts.note(message, self.relay.now):
            return False
        if message.has_one_answer:
            self._account(work)
        return len(debts.counted) <= self._count_at or self._count_answers()

    def _mixes(self, message: StreamMessage) -> bool:
        """Whether answers that are counted and others would come over one upstream stream: they
        can only be told apart when they are looked at."""
        if message.has_one_answer:
            return bool(self.debts.free_models)
        self._take_off_answered()
        return bool(self.debts.counted)

    def _refuse(
        self, message: StreamMessage, pieces: tuple[Payload, ...], refusal: RequestRefused
    ) -> None:
        """A message that can go nowhere: the stream goes on, unless this is how it begins."""
        is_first = self.merge is None and self.backend is None
        if is_first and refusal.reason not in _OF_ONE_MESSAGE:
            self.model = message.model
            self.fail(refusal.reason, refusal.detail)
            return
        merge = self.merge or self._fan_out()
        self._target = merge.refuse(message, refusal.detail)
        self.drop_upload(sum(map(len, pieces)))

    # Several upstream streams

    def _fan_out(self) -> StreamMerge:
        """More than one upstream stream from now on."""
        if self.stream_attempt is not None:
            self.stream_attempt.let_go()
        self._take_off_answered()
        self._snapshot = self._validity = None
        self.request.taker = self.response.taker = None
        return StreamMerge(self)

    def leave_parting(self) -> None:
        """See `GrpcAttempt`. What is under way there is answered; only then that ends."""
        backend = self.backend
        parting = self._pool.current.parting
        if self.finished or self.request.ended or not self._between:
            return
        merge = self.merge
        if not set(self.relay.dispatcher.placement(self).eligible) - parting:
            return
        if merge is None:
            if self.request.sink is None or backend is None or backend not in parting:
                return
            if self.has_steps and backend.open_sequences:
                return
            merge = self._fan_out()
        merge.leave_parting()

    @property
    def may_run_twice(self) -> bool:
        """See `Exchange`: nothing was answered yet, and no message must run only once."""
        return self.merge is None and not self.runs_once

    def go_again(self, outcome: Outcome, *, is_unsent: bool) -> None:
        """See `Call`. What comes meanwhile is held."""
        self._is_pausing = True
        self.forget_first()
        super().go_again(outcome, is_unsent=is_unsent)

    def _place(self) -> None:
        """Another attempt: all messages so far are routed anew."""
        self._is_pausing = False
        request = self.request
        for piece in self._begin_anew():
            if self._take(piece, may_stop=False) < 0:
                return
        if not request.ended or self._is_waiting:
            return
        if not self._between:
            self.fail(Reason.BAD_REQUEST, _CUT_OFF)
        elif self.merge is not None:
            self.merge.half_close(request.trailers)
        elif self.backend is not None and self.stream_attempt is not None:
            # Not before: what is sent of an ended request ends the stream.
            self.relay.pool(self.backend).start(self.stream_attempt)

    def _begin_anew(self) -> tuple[Payload, ...]:
        """Forget where the messages so far went; returns them."""
        request = self.request
        pieces = (*(request.queue or ()), *(self._head.queue or () if self._head else ()))
        request.clear()
        request.retained = []
        if self._head is not None:
            self._head.clear()
        self.backend = self._target = self._snapshot = self._validity = self._pattern = None
        self.particulars = None
        self.is_timed = False
        self.forget_first()
        self.debts.close()
        self.debts = Debts(self, self.relay.ledger)
        self._count_at = COUNT_EVERY
        self._cutter = MessageCutter()
        self._between = True
        return pieces

    @property
    def first_byte_at(self) -> float:
        """See `RequestRecord`."""
        begun_at = self.merge.begun_at if self.merge is not None else 0.0
        return begun_at or super().first_byte_at

    # Ends

    def _stop(self, outcome: Outcome) -> None:
        """See `Call`. Attempts whose answers are merged end with the merge."""
        if self.merge is None:
            super()._stop(outcome)

    def _detach(self, code: ErrorCode | None) -> None:
        """See `Call`."""
        super()._detach(code)
        if self.merge is not None:
            self.merge.detach(code)

    def _leave(self, reason: Reason | None, now: float | None = None) -> None:
        """See `Call`."""
        self.request.taker = self.response.taker = None
        if self._head is not None:
            self._head.clear()
            self._head.owner = None
        if self.merge is not None:
            self.merge.leave(Outcome.DEADLINE if reason is Reason.DEADLINE else Outcome.CANCELLED)
        self.debts.close()
        super()._leave(reason, now)
