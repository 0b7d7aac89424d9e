"""The other workers of this machine, as one worker schedules and accepts connections with them.

Its scheduler shares a board with theirs (docs/decisions/0070-what-workers-share.md). Here it gets a
heartbeat, and a bell by which others wake it. The board also tells how many connections each has.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Final

from lb.balancing.shared_scheduler import SharedScheduler
from lb.net.bell import Bell
from lb.sharing.board import Board
from lb.sharing.usage import UsageTable

_LEAD: Final = 8
"""A worker may have more connections than another one by this part, and by one."""


class Neighbours:
    """The other workers. It works from `start` to `close`. Call `tick` ten times a second."""

    def __init__(
        self, memory: memoryview, index: int, count: int, usage: UsageTable | None = None
    ) -> None:
        """
        Args:
            memory: that `lb.sharing.memory.attach` has mapped.
            index: of this worker.
            count: of all workers.
            usage: tells what tenants have had; see `SharedScheduler`.
        """
        self._index = index
        self._bell: Bell | None = None
        self._board = Board(memory, index, count)
        self._connections = 0
        """As it was told last."""
        self.scheduler = SharedScheduler(self._board, usage)
        """Decides for this worker, by what all have in flight."""

    def start(
        self,
        loop: AbstractEventLoop,
        name: str,
        clock: Callable[[], float],
    ) -> None:
        """Hear from now on when others ring.

        Args:
            loop: of the process.
            name: of the service, on this machine.
            clock: monotonic seconds, the same for all processes of the machine.

        Raises:
            OSError: another process has this worker's place.
        """
        scheduler = self.scheduler
        self._bell = bell = Bell(loop, name, self._index, lambda: scheduler.rung(clock()))
        scheduler.ring = bell.ring
        scheduler.on_untold = partial(loop.call_soon, scheduler.tell_untold)

    def tick(self, now: float, connections: int) -> None:
        """Say that this worker runs, and how many connections of clients it has."""
        self.scheduler.tick(now)
        self._connections = connections
        self._board.write_connections(connections)

    def room(self) -> int:
        """Count the connections that this worker may accept before it has more than its part."""
        fewest = self._board.fewest_connections()
        if fewest < 0:
            return self._connections + 1
        return fewest + 1 + self._connections // _LEAD - self._connections

    def accepted(self, count: int) -> None:
        """This worker has accepted so many more connections."""
        self._connections += count
        self._board.write_connections(self._connections)

    def close(self) -> None:
        """Hear nothing any more. Others are told of what ends from now on at once: the event loop
        may have no other iteration."""
        self.scheduler.on_untold = self.scheduler.tell_untold
        if self._bell is not None:
            self._bell.close()
            self._bell = None
