"""A budget of work for each iteration of the event loop, which all connections share.

One read may bring work for a tenth of a second: chunks of one byte, requests in a row, messages of
very many fields. A limit per connection is not enough, since one iteration serves every connection
that has something to read. So costly work is counted here. Once the budget is spent, what is left
waits in a queue, first come, first served, and goes on in later iterations.

Work is counted, not timed: a unit is about a microsecond. Ordinary requests are not counted. Only
the steps of TLS handshakes are timed, since no count tells what a key costs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

ROOM: Final = 4000
"""Units in one iteration. What is begun may exceed them: each part is to take a few hundred."""
_OF_QUEUE: Final = ROOM // 2
"""Units of them for the queue. The others are for what is read meanwhile, which would have to wait
for the whole queue otherwise."""
_UNITS_PER_S: Final = 1_000_000
"""A unit is a microsecond."""


class IterationBudget:
    """What is left of the budget, and the queue of those that go on in a later iteration."""

    __slots__ = ("_is_due", "_loop", "_queue", "cpu_time", "left")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cpu_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            loop: whose iterations they are.
            cpu_time: seconds of the processor that the loop's thread has used so far.
        """
        self.left = ROOM
        """Units; 0 or less: what can wait is to wait, see `later`."""
        self.cpu_time = cpu_time
        self._loop = loop
        self._queue: deque[Callable[[], None]] = deque()
        self._is_due = False

    @property
    def has_turn(self) -> bool:
        """Whether work that may wait can be done at once. It takes nothing but the queue's share,
        and overtakes nothing in the queue."""
        return self.left > ROOM - _OF_QUEUE and not self._queue

    def spend(self, units: int) -> None:
        """Work of so many units was done."""
        self.left -= units
        self._renew_soon()

    def spend_time(self, since: float) -> None:
        """Work was done from `since` on, a time of `cpu_time`. At most the queue's share counts:
        the rest of the iteration stays for what is read meanwhile, even after a longer step."""
        self.spend(min(round((self.cpu_time() - since) * _UNITS_PER_S), _OF_QUEUE))

    def later(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later iteration, after those that are in the queue already."""
        self._queue.append(go_on)
        self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.renew)

    def renew(self) -> None:
        """A new iteration has begun. The loop calls this."""
        self._is_due = False
        self.left = ROOM
        queue = self._queue
        try:
            for _ in range(len(queue)):
                if self.left <= ROOM - _OF_QUEUE:
                    break
                queue.popleft()()
        finally:
            if queue:
                self._renew_soon()
