"""The bytes of a client's stream on their way to one of several backends."""

from __future__ import annotations

from typing import Any

from lb.wire.http2.flow import Pipe


class BackendPipe(Pipe[Any]):
    """The bytes of a client's stream that go to one backend. Their window is the client's."""

    __slots__ = ("whole",)

    def __init__(self, owner: Any, whole: Pipe[Any]) -> None:
        # A window size of 0 has the link ask `went_out` after every write.
        super().__init__(owner, whole.memory_budget, 0, 0)
        self.whole = whole
        self.source = whole.source
        self.source_id = whole.source_id

    def went_out(self, size: int) -> int:
        """See `Pipe`."""
        size += self.owed
        self.owed = 0
        again = min(self.replayed, size)
        self.replayed -= again
        whole = self.whole
        if self.queue and self.memory_budget.is_short:
            whole.owed += size - again
            return 0
        return whole.went_out(size - again)


def move_queue(source: Pipe[Any], target: Pipe[Any]) -> int:
    """Let what waits in one pipe wait in another. Returns how many bytes that is."""
    size = source.waiting
    if size:
        _move_bytes(source, target, size)
        target.queue, source.queue = source.queue, None
    return size


def move_retained(source: Pipe[Any], target: Pipe[Any]) -> None:
    """Let another pipe have what is kept for another attempt; nothing waits in `source`."""
    if source.held:
        _move_bytes(source, target, source.held)
    target.retained, source.retained = source.retained, None
    target.retained_size, source.retained_size = source.retained_size, 0


def _move_bytes(source: Pipe[Any], target: Pipe[Any], size: int) -> None:
    memory_budget = source.memory_budget
    memory_budget.release(source, size)
    memory_budget.take(target, size)  # there was room for them a moment ago
