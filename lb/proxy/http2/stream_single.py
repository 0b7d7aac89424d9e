"""A stream of inferences while one backend serves it: what that owes, and requests that go there
unseen.

A request that begins as the one before goes where that went, and is not looked at. Those are
counted now and then. Where accounts are kept of single requests (`stream_work`) each of them is
seen, and goes on unseen only while its backend is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.domain.pool import PoolSnapshot
from lb.domain.schedule import Ticket
from lb.kserve.gate import StreamMask
from lb.kserve.pending_responses import ACCOUNT_BYTES, Due, PendingResponses, StreamMessage
from lb.kserve.stream_answers import AnswerNames
from lb.proxy.http2.call import Call
from lb.proxy.http2.inspection import SEQUENCE_ID
from lb.proxy.http2.prefix_cache import SHORT_NAME
from lb.proxy.http2.stream_message import is_plain
from lb.proxy.http2.stream_work import (
    MAX_UNANSWERED,
    InFlightMessages,
    Work,
    keep_no_accounts,
)
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.flow import Payload
from lb.wire.http2.frames import pack_header

_NAME_TAG: Final = 0x0A
_ID_TAG: Final = 0x1A
_ONE_BYTE: Final = 0x80
"""Lengths below it take one byte."""
_NO_SHAPE: Final = (0, 1)
"""Bytes and rows of a message."""
_COUNT_EVERY: Final = 64
"""Counted requests that are remembered before those that were answered are taken off."""
_FEW: Final = 8
"""As `_COUNT_EVERY`, where accounts are kept. So many of them take less than 4 KiB."""
_NOTHING_DUE: Final = Due()


class SingleBackend:
    """What is known of the one backend of a stream, and of the requests that go there."""

    __slots__ = (
        "_call",
        "_count_at",
        "_counts",
        "_due",
        "_header",
        "_header_size",
        "_is_tied",
        "_keeps",
        "_known",
        "_known_size",
        "_known_stop",
        "_longest",
        "_needs_no_look",
        "_pattern",
        "_pool",
        "_request",
        "_shortest",
        "_snapshot",
        "in_flight",
        "is_between",
        "is_timed",
        "is_uncounted",
        "looks_at_all",
        "mask",
        "pending_responses",
        "told",
    )  # fmt: skip

    def __init__(self, call: Call) -> None:
        self._call = call
        self._request = call.request
        self._pool = call.relay.dispatcher.pool
        self.mask = StreamMask()
        """Masks the answers, and knows how many have come."""
        self.pending_responses = self._new_pending_responses()
        """What the backend owes."""
        self.looks_at_all = False
        """Each request is looked at: one like it may go elsewhere, or all are noted."""
        self.is_timed = False
        """Somebody wants to know when answers come."""
        self.is_uncounted = False
        """There were more requests without answers than are remembered."""
        self.is_between = True
        """No message is under way."""
        self.told = 0
        """How many answers `pending_responses` was told of."""
        self._count_at = _COUNT_EVERY
        """Requests without answers, as far as `pending_responses` knows, until it is told again."""
        self._known = b""
        """How the last message began: messages that begin like it, but for the length, go where
        it went."""
        self._known_stop = 0
        self._known_size = 0
        """How long the last message was, with its prefix."""
        self._snapshot: PoolSnapshot | None = None
        """The pool for which it is known where messages go that begin as the last one did; None
        when nothing is known."""
        self._is_tied = True
        """They stay with their backend, be there a better one or not."""
        self._header = b""
        """The header of the frame in which one of `_header_size` goes to the backend."""
        self._header_size = 0
        self._needs_no_look = False
        """They are not even looked through for a sequence."""
        self._counts = False
        """They have one answer each."""
        self._keeps = False
        """They are kept to be sent again."""
        self._due = _NOTHING_DUE
        """What is known of all of them."""
        self._pattern: Ticket | None = None
        """A ticket like that of the last one, which never begins; None where that had none."""
        self._shortest = self._longest = _NO_SHAPE
        """The shapes of the messages of its model that were looked at."""
        self.in_flight: InFlightMessages | None = None
        """The accounts of single requests, where they are kept."""

    def _new_pending_responses(self) -> PendingResponses:
        relay = self._call.relay
        return PendingResponses(self._call, relay.memory_budget, relay.options.retained_size)

    # Requests that go on unseen

    def take_message(self, payload: bytes, size: int) -> bool:
        """A small frame of the request came. False when it is not a whole message that begins as
        the last one did, and `request_data` of the session is to take it."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `send_unseen` for what nearly always comes,
        # with the header of the last frame. `_begin_alike` is written out.
        request = self._request
        connection = request.sink
        if (
            not self.is_between
            or connection is None
            or self._snapshot is not self._pool.current
            or not (
                (size == self._known_size and payload.startswith(self._known))
                or self._recognize(payload, size)
            )
            or not (self._needs_no_look or SEQUENCE_ID not in payload)
            or not (self._is_tied or self._stays())
        ):
            return False
        if size != self._header_size:
            self._header = pack_header(size << 8, 0, request.sink_id)
            self._header_size = size
        if not connection.send_small(request, payload, self._header, size):
            return False
        call = self._call
        call.bytes_in += size
        if self._counts:
            in_flight = self.in_flight
            if in_flight is not None:
                pattern = self._pattern
                if pattern is not None and pattern.size != size - PREFIX_SIZE:
                    self._see_size(pattern, size - PREFIX_SIZE)
                in_flight.begin_alike(pattern, call.backend, call.relay.now)
            pending_responses = self.pending_responses
            counted = pending_responses.counted
            counted.append(self._due)
            if self._keeps:
                pending_responses.kept.append(payload)
                pending_responses.kept_size += size
                if pending_responses.kept_size > pending_responses.kept_at:
                    self._count_at = 0
            if len(counted) > self._count_at:
                self._count_answers()
        return True

    def take_uncounted(self, payload: bytes, size: int) -> bool:
        """As `take_message`, where requests have any number of answers."""
        if not self.take_message(payload, size):
            return False
        self._expect_any(payload, size)
        return True

    def _expect_any(self, payload: Payload, size: int) -> bool:
        """A request that goes on unseen has any number of answers. False when the call had to give
        way."""
        due = self.due_alike(bytes(payload[: self._known_stop + 2 + _ONE_BYTE]), size)
        return self.pending_responses.expect_any(AnswerNames(due.model, due.id))

    def send_unseen(self, payload: Payload, size: int) -> bool:
        """Send on what begins as the last message did. False when it must be looked at."""
        # HOT PATH (benchmarks/bench_stream_relay.py). The reference is `StreamSession._take`.
        request = self._request
        sink = request.sink
        if (
            not self.is_between
            or sink is None
            or not (
                (size == self._known_size and payload[: self._known_stop] == self._known)
                or self._recognize(payload, size)
            )
            or self._snapshot is not self._pool.current
            or not (self._needs_no_look or (size < COPY_BELOW and SEQUENCE_ID not in payload))
            or not (self._is_tied or self._stays())
        ):
            return False
        self._call.bytes_in += size
        if self._counts:
            if self.in_flight is not None:
                self._begin_alike(self.in_flight, size - PREFIX_SIZE)
            pending_responses = self.pending_responses
            counted = pending_responses.counted
            counted.append(self._due)
            if self._keeps and pending_responses.keep(payload, size):
                self._count_at = 0
            if len(counted) > self._count_at and not self._count_answers():
                return True
        elif not self._expect_any(payload, size):
            return True
        sink.send_data(request, payload)
        return True

    def recognizes(self, payload: bytes, size: int) -> bool:
        """Whether a small frame of the request is a whole message that begins as the last one did,
        where messages go to several backends."""
        # HOT PATH (benchmarks/bench_stream_relay.py).
        return (
            self.is_between
            and self._snapshot is self._pool.current
            and (
                (size == self._known_size and payload.startswith(self._known))
                or self._recognize(payload, size)
            )
            and (self._needs_no_look or SEQUENCE_ID not in payload)
        )

    def pattern_of(self, size: int) -> Ticket | None:
        """A ticket like that of a message of so many bytes that is recognized, which never begins;
        None where the last one of its model had none."""
        # HOT PATH (benchmarks/bench_stream_relay.py).
        pattern = self._pattern
        if pattern is None or pattern.request_class.model != self._due.model:
            return None
        if pattern.size != size:
            self._see_size(pattern, size)
        return pattern

    def due_alike(self, payload: bytes, size: int) -> Due:
        """What is known of the answer to a message that is recognized: its id, if that follows the
        name of the model, as all writers have it."""
        # HOT PATH (benchmarks/bench_stream_relay.py).
        due = self._due
        start = self._known_stop + 2
        if size <= start or payload[start - 2] != _ID_TAG or payload[start - 1] >= _ONE_BYTE:
            return due
        name = payload[start : start + payload[start - 1]]
        return Due(due.model, name, None, 0, due.is_unserved)

    def _recognize(self, payload: Payload, size: int) -> bool:
        """Recognize one whole message of another size that begins as the last one did: it is what
        the next one is compared with. False where it is none."""
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

    def remember(
        self,
        message: StreamMessage,
        data: bytes,
        snapshot: PoolSnapshot,
        taker: Callable[[bytes, int], bool] | None = None,
        *,
        is_kept: bool,
    ) -> None:
        """Note how the next message must begin to go the same way unseen.

        Args:
            message: that went to the backend.
            data: its first bytes.
            snapshot: the pool for which it was found where it goes.
            taker: gets small frames of the request; None is `take_message`.
            is_kept: the message is kept to be sent again, and so are those like it.
        """
        call = self._call
        name = message.model
        size = len(name)
        route = snapshot.routes.get(name)
        start = data[: PREFIX_SIZE + 2 + size]
        self._snapshot = None
        if (
            message.step is None
            and not (message.version or snapshot.regions)
            and (route is None or route.is_uniform)
            and 0 < size < SHORT_NAME
            and start[PREFIX_SIZE:] == bytes((_NAME_TAG, size)) + name
            and not start[0]
            and self._request.retained is None
            and call.messages is None
            and call.guard is None
            and not self.looks_at_all
        ):
            self._known, self._known_stop, self._known_size = start, len(start), 0
            self._header_size = 0
            self._needs_no_look = is_plain(route)
            self._due = Due(name, is_unserved=message.is_unserved)
            self._counts = message.has_one_answer and not self.is_uncounted
            self._request.taker = taker or (
                self.take_message if self._counts else self.take_uncounted
            )
            self._keeps = is_kept and self._counts
            self._snapshot = snapshot
            pattern = self._pattern
            self._is_tied = not message.rows or pattern is None or len(pattern.eligible) == 1

    @property
    def known_model(self) -> bytes:
        """The model of messages that go on unseen, or did; empty before the first."""
        return self._due.model

    def forget(self) -> None:
        """Have every message looked at."""
        self._snapshot = self.in_flight = None
        self._request.taker = self._call.response.taker = None

    # Requests that were looked at

    def note(self, message: StreamMessage, work: Work | None) -> bool:
        """A message goes to the backend. False when the call had to give way.

        Args:
            message: that goes.
            work: what keeps accounts of it, if it has one answer.
        """
        pending_responses = self.pending_responses
        if work is not None:
            self._keep_accounts()
        if not pending_responses.note(message, self._call.relay.now):
            return False
        if message.has_one_answer:
            self._account(work)
        if pending_responses.kept_size > pending_responses.kept_at:
            self._count_at = 0
        if not (message.has_one_answer or pending_responses.follows_answers):
            pending_responses.follow_answers(self.mask.cutter())
            self._call.response.taker = None  # the next answer is looked at, as above
        return len(pending_responses.counted) <= self._count_at or self._count_answers()

    def mixes(self, message: StreamMessage) -> bool:
        """Whether answers that are counted and others would come over one upstream stream: they
        can only be told apart when they are looked at."""
        if message.has_one_answer:
            return bool(self.pending_responses.free_models)
        self.take_off_answered()
        return bool(self.pending_responses.counted)

    def begin_anew(self) -> None:
        """Another attempt begins, which has got nothing yet."""
        self._snapshot = self._pattern = self.in_flight = None
        self.is_timed = False
        completed = self.pending_responses.completed
        self.pending_responses.close()
        self.pending_responses = self._new_pending_responses()
        self.pending_responses.completed = completed
        self._count_at = _COUNT_EVERY
        self.is_between = True

    def leave(self) -> None:
        """The call is over."""
        self._request.taker = self._call.response.taker = None
        self.pending_responses.close()

    # How many answers are to come

    def _count_answers(self) -> bool:
        """Bring `pending_responses` up to date. False when the call had to give way."""
        self.take_off_answered()
        pending_responses = self.pending_responses
        waiting = len(pending_responses.counted)
        if waiting > MAX_UNANSWERED:
            pending_responses.forgive(waiting)
            waiting = 0
            self.is_uncounted = pending_responses.is_unknown = True
            self._snapshot = self.in_flight = None
            keep_no_accounts(self._call.attempt, self._call.relay.now)
        is_accounted = self.in_flight is not None
        self._count_at = min(waiting + (_FEW if is_accounted else _COUNT_EVERY), MAX_UNANSWERED)
        pending_responses.charge_kept()
        return pending_responses.reserve(waiting, 0 if self._pattern is None else ACCOUNT_BYTES)

    def drop_answered(self) -> None:
        """Keep nothing of requests whose answers have come."""
        pending_responses = self.pending_responses
        if pending_responses.kept_size:
            untold = self.mask.completed - self.told
            pending_responses.drop_answered(max(0, len(pending_responses.counted) - untold))

    def take_off_answered(self) -> None:
        """Tell `pending_responses` how many answers have come."""
        completed = self.mask.completed
        if completed != self.told:
            self.pending_responses.answered(completed - self.told)
            self.told = completed

    def answers_came(self, *, is_good: bool) -> None:
        """Some bytes of answers came, and perhaps the end of one. The last one may be an error."""
        in_flight = self.in_flight
        if in_flight is not None and in_flight.told != self.mask.completed:
            count = self.mask.completed - in_flight.told
            in_flight.answered(count, self._call.relay.now, is_good=is_good)

    # Accounts of single requests

    def _keep_accounts(self) -> None:
        """Keep accounts of all requests from the next one on."""
        attempt = self._call.attempt
        if attempt is None or self.in_flight is not None:
            return
        self.take_off_answered()
        attempt.in_flight_messages = self.in_flight = InFlightMessages(
            self._call.relay, len(self.pending_responses.counted), self.mask.completed
        )
        self.is_timed = True
        self._count_at = 0
        self._call.response.taker = None  # the next answer is looked at, and says what takes others

    def _account(self, work: Work | None) -> None:
        """A request that has one answer goes to the backend."""
        self.see(work)
        if self.in_flight is not None and self._call.backend is not None:
            self.in_flight.begin(work, self._call.backend, self._call.relay.now)

    def see(self, work: Work | None) -> None:
        """A request that has one answer was looked at: others are taken to be like it."""
        before, self._pattern = self._pattern, None
        if isinstance(work, Ticket):
            if before is None or before.model != work.model:
                self._shortest = self._longest = work.size, work.rows
            else:
                self._see_shape(work.size, work.rows)
            self._pattern = Ticket(work.request_class, work.arrived_at, work.rows, work.size)

    def _begin_alike(self, in_flight: InFlightMessages, size: int) -> None:
        """A request of so many bytes goes to the backend that begins as the last one that was
        looked at."""
        pattern, call = self._pattern, self._call
        if pattern is not None and pattern.size != size:
            self._see_size(pattern, size)
        in_flight.begin_alike(pattern, call.backend, call.relay.now)

    def _see_size(self, pattern: Ticket, size: int) -> None:
        """A message that is not looked at has another size than the one before: guess its rows.
        The next one is looked at if it is shorter or longer than all that were."""
        pattern.size = size
        pattern.rows = self._rows_of(size)
        if not self._shortest[0] <= size <= self._longest[0]:
            # One look may be enough, at whichever comes next.
            self._see_shape(size, pattern.rows)
            self._snapshot = None

    def _see_shape(self, size: int, rows: int) -> None:
        self._shortest = min((size, rows), self._shortest)
        self._longest = max((size, rows), self._longest)

    def _rows_of(self, size: int) -> int:
        """The rows of a message that was not looked at: tensors of the same model take bytes in
        proportion to their rows, beside what all messages have."""
        (short, few), (long, many) = self._shortest, self._longest
        each = (many - few) / (long - short) if long > short else few / max(1, short)
        return max(1, round(few + (size - short) * each))

    def _stays(self) -> bool:
        """Whether another message like the last one goes to the same backend. Where another one is
        clearly better now it is looked at."""
        pattern, call = self._pattern, self._call
        if pattern is None or call.backend is None:
            return True
        scheduler = call.relay.dispatcher.queue.scheduler
        if scheduler.stays(pattern, call.backend, call.relay.now):
            return True
        self._snapshot = None
        return False
