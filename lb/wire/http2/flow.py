"""Windows and credit of one direction of one stream (RFC 9113 section 5.2).

A `Pipe` is what a proxy has of a direction: bytes come in on one connection under a window that
we granted, and go out on another under the window that its peer granted. What cannot go out yet
waits in the pipe. The stream's window is credited only for bytes that went out, so a pipe never
holds more than its window; the connections' windows are credited on receipt and hold nobody up.

No sockets, no frames: the connections on both sides ask a pipe what to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from lb.wire.memory_budget import MemoryBudget, Payer

Payload = bytes | memoryview
UNCOUNTED: Final = 4096
"""Payload up to this many bytes is retained without asking the memory budget: as much as the
objects of its call take."""
_JOINED: Final = 1024
"""Payload that waits, or is retained, is joined to pieces of up to so many bytes: each piece is
routed by itself, and goes out in a frame of its own."""
S = TypeVar("S")
"""The type of the connections at both ends."""


class Pipe(Generic[S]):
    """One direction of one stream. Plain counters: the relay updates them in line."""

    __slots__ = (
        "credit", "ended", "finished", "held", "memory_budget", "opposite", "owed", "owner",
        "queue", "replayed", "retained", "retained_size", "sink", "sink_id", "source",
        "source_id", "taker", "trailers", "window", "window_limit", "window_size",
    )  # fmt: skip

    owner: Any
    """Whatever the stream belongs to."""
    opposite: Pipe[S]
    """The other direction; set once both exist."""
    source: S | None
    sink: S | None
    window: int
    """Bytes that the sender may still send; below zero it broke flow control."""
    window_size: int
    """The window that we let the sender have when everything went out."""
    window_limit: int
    """How far `window_size` may grow."""
    owed: int
    """Bytes that went out and were not credited yet; below zero more were credited than went
    out."""
    credit: int
    """Bytes that the peer of the sink takes on this stream; negative after it shrank."""
    queue: deque[Payload] | None
    """Payload that waits; None and empty mean nothing."""
    held: int
    """Bytes in `queue`, kept by the memory budget."""
    replayed: int
    """Leading bytes of the queue that were credited in an earlier attempt."""
    retained: list[Payload] | None
    """All payload since the beginning, for another attempt; None when not kept."""
    ended: bool
    """The source has sent its last byte."""
    finished: bool
    """END_STREAM has gone out."""
    trailers: bytes
    """Block to send after the last byte."""
    taker: Callable[[bytes, int], bool] | None
    """Gets small payload of whole frames, and its size, before the owner, and says whether that
    was all there is to do; to be cleared with `owner`."""

    def __init__(
        self, owner: Any, memory_budget: MemoryBudget, window: int, window_limit: int
    ) -> None:
        # Twice per call: a docstring between these lines would cost an instruction each time.
        self.owner = owner
        self.memory_budget = memory_budget
        self.source = self.sink = self.queue = self.retained = self.taker = None
        self.window = self.window_size = window
        self.window_limit = window_limit
        self.source_id = self.sink_id = self.owed = self.credit = self.held = 0
        self.replayed = self.retained_size = 0
        self.ended = self.finished = False
        self.trailers = b""

    def evict(self) -> None:
        """The memory budget wants these bytes back: the owner ends."""
        self.owner.evict()

    @property
    def charged_to(self) -> Payer | None:
        """See `lb.wire.memory_budget.Holder`."""
        payer: Payer | None = None if self.owner is None else self.owner.charged_to
        return payer

    def push(self, payload: Payload) -> bool:
        """Let payload wait. False when the memory budget made the owner give way instead."""
        size = len(payload)
        if not size:
            return True
        if not self._take(size):
            return False
        queue = self.queue
        if queue is None:
            self.queue = queue = deque()
        if queue:
            last = queue[-1]
            if len(last) + size <= _JOINED and isinstance(last, bytes):
                queue[-1] = last + payload
                return True
        if isinstance(payload, memoryview) and size * 2 < memoryview(payload.obj).nbytes:
            # A view keeps all that was read with it, which the memory budget does not see.
            payload = bytes(payload)
        queue.append(payload)
        return True

    def push_run(self, pieces: Iterable[Payload]) -> bool:
        """Let all pieces of a long message wait, without a copy of any. False when the memory
        budget made the owner give way instead."""
        pieces = [piece for piece in pieces if len(piece)]
        size = sum(map(len, pieces))
        if not size:
            return True
        if not self._take(size):
            return False
        if self.queue is None:
            self.queue = deque()
        self.queue += pieces
        return True

    def put_back(self, pieces: Sequence[Payload]) -> bool:
        """Let pieces wait before all that does: they do not go out yet. False when the memory
        budget made the owner give way instead."""
        if not pieces:
            return True
        if not self._take(sum(map(len, pieces))):
            return False
        if self.queue is None:
            self.queue = deque()
        self.queue.extendleft(reversed(pieces))
        return True

    def _take(self, size: int) -> bool:
        """Put bytes in the memory budget. False when the owner had to give way."""
        if not self.memory_budget.take(self, size):
            return False
        if self.owner is None:
            # The largest holder was the other direction of the same stream.
            self.memory_budget.release(self, size)
            return False
        return True

    def pull(self, limit: int) -> Payload:
        """Take at most `limit` (> 0) waiting bytes that go out now; views, not copies."""
        queue = self.queue
        assert queue
        payload = queue.popleft()
        size = len(payload)
        if size > limit:
            view = memoryview(payload)
            queue.appendleft(view[limit:])
            payload = view[:limit]
            size = limit
        self.memory_budget.release(self, size)
        return payload

    def clear(self) -> None:
        """Drop what waits and what is retained."""
        if self.queue:
            self.queue.clear()
        self.retained = None
        self.retained_size = 0
        if self.held:
            self.memory_budget.release(self, self.held)

    # Another attempt

    def retain(self, payload: Payload, limit: int) -> None:
        """Keep payload for another attempt, unless that passes `limit` bytes or too much is held:
        then nothing is kept any more."""
        retained = self.retained
        assert retained is not None
        size = len(payload)
        if self._account_retained(size, limit):
            last = retained[-1] if retained else None
            if isinstance(last, bytes) and len(last) + size <= _JOINED:
                retained[-1] = last + payload
                return
            if (
                isinstance(payload, memoryview)
                and size * 2 < len(payload.obj)  # type: ignore[arg-type]  # bytes
                and not (isinstance(last, memoryview) and last.obj is payload.obj)
            ):
                # A view keeps all that was read with it.
                payload = bytes(payload)
            retained.append(payload)

    def retain_run(self, pieces: list[Payload], size: int, limit: int) -> None:
        """As `retain` for pieces of one read, `size` bytes together."""
        retained = self.retained
        assert retained is not None
        if self._account_retained(size, limit):
            first = pieces[0]
            if isinstance(first, memoryview) and size * 2 < len(first.obj):  # type: ignore[arg-type]  # bytes
                retained += [bytes(piece) for piece in pieces]
            else:
                retained += pieces

    def collect(self, payload: Payload) -> bool:
        """Retain payload that is needed whole. False when the memory budget made the owner give
        way."""
        retained = self.retained
        assert retained is not None
        before = self._retained_counted
        self.retained_size += len(payload)
        grown = self._retained_counted - before
        if grown and not self._take(grown):
            return False
        # A view would keep all that was read with it.
        retained.append(bytes(payload))
        return True

    def _account_retained(self, size: int, limit: int) -> bool:
        """Account for bytes that are to be retained. False when nothing is retained any more."""
        before = self.retained_size
        after = before + size
        if after > UNCOUNTED:
            grown = size if before > UNCOUNTED else after
            if after > limit or not self.memory_budget.admit_kept(grown):
                self.drop_retained()
                return False
            self.memory_budget.take(self, grown)  # there is room for it
        elif after > limit:
            self.drop_retained()
            return False
        self.retained_size = after
        return True

    def drop_retained(self) -> None:
        """No other attempt will need the payload."""
        if self._retained_counted:
            self.memory_budget.release(self, self._retained_counted)
        self.retained_size = 0
        self.retained = None

    @property
    def waiting(self) -> int:
        """Bytes that wait to go out."""
        return self.held - self._retained_counted

    @property
    def _retained_counted(self) -> int:
        """Retained bytes that are in the memory budget."""
        return self.retained_size if self.retained_size > UNCOUNTED else 0

    def rewind(self) -> bool:
        """Queue everything since the beginning again. Needs `retained`.

        False when the memory budget made the owner give way.
        """
        assert self.retained is not None
        waiting = self.waiting
        if self.queue:
            self.queue.clear()
            self.memory_budget.release(self, waiting)
        self.replayed = self.retained_size - (waiting - min(self.replayed, waiting))
        self.finished = False
        return self.push_run(self.retained)

    def went_out(self, size: int) -> int:
        """Note bytes that went out. Returns the WINDOW_UPDATE that the sender gets, 0 for none.

        Nothing is credited while the memory budget is short and bytes still wait here: the drain of
        those bytes comes by again, so no sender waits for ever.
        """
        if self.replayed:
            again = min(self.replayed, size)
            self.replayed -= again
            size -= again
        self.owed += size
        if self.ended or self.owed * 2 < self.window_size:
            return 0
        increment = self.owed
        if self.queue:
            if self.memory_budget.is_short:
                return 0
        elif self.window_size < self.window_limit and not self.memory_budget.is_short:
            # All of it went out: the reader keeps up, so the window is what limits it. A very small
            # one comes to size in one step: each costs a round trip.
            wanted = max(self.window_size, self.window_limit // 4 - self.window_size)
            growth = min(wanted, self.window_limit - self.window_size)
            self.window_size += growth
            increment += growth
        self.owed = 0
        self.window += increment
        return increment
