"""How many answers a stream is owed by its one backend, and what accounts are kept of them.

Messages that go on unseen are counted now and then. Where accounts are kept of single requests
(`stream_work`) each of them is seen, and goes on unseen only while its backend is as good as any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lb.domain.schedule import Ticket
from lb.kserve.stream_debts import ACCOUNT_BYTES
from lb.proxy.http2.stream_answer import StreamAttempt
from lb.proxy.http2.stream_merge import MAX_UNANSWERED
from lb.proxy.http2.stream_way import RoutedStream
from lb.proxy.http2.stream_work import Underway, Work
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.heads import RequestHead

if TYPE_CHECKING:
    from lb.domain.pool import PoolSnapshot
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink

_FEW: Final = 4
"""Requests that the ledger is not told of one by one."""
_NO_SHAPE: Final = (0, 1)
"""Bytes and rows of a message."""
COUNT_EVERY: Final = 64
"""Counted requests that are remembered before those that were answered are taken off."""


class CountedStream(RoutedStream):
    """A stream, and the requests of it that its one backend has not answered."""

    __slots__ = (
        "_answers", "_count_at", "_is_odd", "_known_size", "_longest", "_pattern", "_pool",
        "_reserved", "_shortest", "_snapshot", "_validity", "is_uncounted",
    )  # fmt: skip

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self.is_uncounted = False
        """There were more requests without answers than are remembered."""
        self._answers = 0
        """Those that `debts` knows of."""
        self._count_at = COUNT_EVERY
        """Requests without answers, as far as `debts` knows, until it is told again."""
        self._pool = relay.dispatcher.pool
        self._snapshot: PoolSnapshot | None = None
        """The pool for which it is known where messages go that begin as the last one did; None
        when nothing is known."""
        self._validity: PoolSnapshot | None = None
        """The same, but for a better backend that there may be."""
        self._known_size = 0
        """How long the last message was, with its prefix."""
        self._pattern: Ticket | None = None
        """The last one's, where its model is scheduled."""
        self._shortest = self._longest = _NO_SHAPE
        """Of the messages of its model that were looked at."""
        self._reserved = 0
        """Requests that the ledger was told of last."""
        self._is_odd = False
        """The last one was shorter or longer than these, and was not looked at."""

    def _count_answers(self) -> bool:
        """Bring `debts` up to date. False when the call had to give way."""
        self._take_off_answered()
        debts = self.debts
        waiting = len(debts.counted)
        if waiting > MAX_UNANSWERED:
            debts.forgive(waiting)
            waiting = 0
            self.is_uncounted = True
            self._snapshot = self._validity = None
            self._keep_no_accounts()
        underway = self._underway
        if underway is None:
            self._count_at = min(waiting + COUNT_EVERY, MAX_UNANSWERED)
        else:
            self._count_at = -1
            while len(underway) < waiting:
                self._begin_alike(underway)
            self._see_home()
            if abs(waiting - self._reserved) < _FEW:
                return True
            self._reserved = waiting
        return debts.reserve(waiting, 0 if self._pattern is None else ACCOUNT_BYTES)

    def _take_off_answered(self) -> None:
        completed = self.mask.completed
        if completed != self._answers:
            self.debts.answered(completed - self._answers)
            self._answers = completed

    # Accounts of single requests

    @property
    def stream_attempt(self) -> StreamAttempt | None:
        """Its attempt, as what it is."""
        attempt = self.attempt
        return attempt if isinstance(attempt, StreamAttempt) else None

    @property
    def _underway(self) -> Underway | None:
        """The requests without an answer, where accounts are kept of some."""
        found = self.stream_attempt.underway if self.stream_attempt is not None else None
        return found if isinstance(found, Underway) else None

    def _keep_accounts(self) -> None:
        """Of all requests from the next one on, as long as there is one backend."""
        attempt = self.stream_attempt
        if self._underway is not None or attempt is None:
            return
        self._take_off_answered()
        self._reserved = 0
        attempt.underway = Underway(self.relay.dispatcher.queue, len(self.debts.counted))
        self.is_timed = True
        self._count_at = -1
        if self.response.taker is not None:
            self.response.taker = attempt.take_timed

    def _account(self, work: Work | None) -> None:
        """A request that has one answer goes to the backend."""
        before = self._pattern
        self._pattern = work if isinstance(work, Ticket) else None
        if isinstance(work, Ticket):
            shape = work.size, work.rows
            is_first = before is None or before.model != work.model
            self._shortest = shape if is_first else min(shape, self._shortest)
            self._longest = shape if is_first else max(shape, self._longest)
        self._is_odd = False
        underway = self._underway
        if underway is not None and self.backend is not None:
            underway.begin(work, self.backend, self.relay.now)

    def _keep_no_accounts(self) -> None:
        underway = self._underway
        if underway is not None and self.stream_attempt is not None:
            underway.close(self.relay.now)
            self.stream_attempt.underway = None

    def _begin_alike(self, underway: Underway) -> None:
        """A request went to the backend that began as the last one that was looked at."""
        pattern, backend, now = self._pattern, self.backend, self.relay.now
        assert backend is not None
        ticket = None
        if pattern is not None:
            ticket = Ticket(pattern.model, pattern.version, pattern.plan, pattern.eligible, now)
            ticket.size = size = self._known_size - PREFIX_SIZE
            ticket.rows = self._rows_of(size)
            self._is_odd = not self._shortest[0] <= size <= self._longest[0]
            if self._is_odd:
                # One look may be enough, at whichever comes next.
                shape = size, ticket.rows
                self._shortest = min(shape, self._shortest)
                self._longest = max(shape, self._longest)
        underway.begin(ticket, backend, now)

    def _rows_of(self, size: int) -> int:
        """The rows of a message that was not looked at: tensors of the same model take bytes in
        proportion to their rows, beside what all messages have."""
        (short, few), (long, many) = self._shortest, self._longest
        each = (many - few) / (long - short) if long > short else few / max(1, short)
        return max(1, round(few + (size - short) * each))

    def _see_home(self) -> None:
        """See whether the next request may follow unseen: not where another backend may be better,
        nor when the last one was of a new size."""
        pattern = self._pattern
        is_known = self._validity is not None and self._validity is self._pool.current
        if pattern is not None and is_known and self.backend is not None:
            scheduler = self.relay.dispatcher.queue.scheduler
            is_sure = not self._is_odd and scheduler.stays(pattern, self.backend, self.relay.now)
            self._snapshot = self._validity if is_sure else None

    def answers_came(self, *, is_good: bool) -> None:
        """Some bytes of answers came, and perhaps the end of one. The last one may be an error."""
        if self.merge is not None:
            return
        count = self.mask.completed - self._answers
        underway = self._underway
        if count and underway is not None:
            self._take_off_answered()
            underway.answered(count, self.relay.now, is_good=is_good)
            if self._snapshot is None:
                self._see_home()
