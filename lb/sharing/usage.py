"""What clients have used up of limits, told among workers.

Each worker has a table of its own in shared memory, and is the only one that writes there. A slot
of it belongs to one client of one limit. It holds when the client's bucket is empty again
(`lb.access.limits`), and how many of its requests this worker has open. The bucket of all workers
is the latest of these times: who takes something from it adds to the latest time that it has read,
and writes the result into its own slot. So what a dead worker let through still counts. Its open
requests are taken off by the process that has waited for its end.

Why: docs/decisions/0071-limits-over-workers.md.
"""

from __future__ import annotations

from typing import Final

_CELL: Final = 8
_HEADER: Final = 4
_SLOTS: Final = 16384
"""Slots of a worker: more than the clients that it remembers of one limit."""
_SLOT: Final = 4
_REGION: Final = _HEADER + _SLOTS * _SLOT
_PROBES: Final = 8
"""A client is found in one of so many slots beside each other, or it is not told of."""
_MOST_OPEN: Final = 1 << 20
"""A larger number of open requests is none."""
# Cells of a header, and of a slot:
_CLAIMS: Final = 0
"""How often a slot was given to another client."""
_KEY: Final = 0
_DUE: Final = 1
_OPEN: Final = 2


def size(count: int) -> int:
    """The bytes that a number of workers share."""
    return count * _REGION * _CELL


class ClientUsage:
    """What all workers say of one client of one limit."""

    __slots__ = ("_found", "_key", "_own", "_seen_claims", "_table")

    def __init__(self, table: UsageTable, key: int) -> None:
        """
        Args:
            table: of this worker.
            key: of the client and the limit; see `lb.sharing.board.key_of`.
        """
        self._table = table
        self._key = key
        self._own = -1
        """The first cell of its slot in the own region; -1: it has none."""
        self._found = [-1] * table.count
        """The same in the region of each worker."""
        self._seen_claims = [-1] * table.count
        """Claims of each worker when its region was searched last."""

    def due(self) -> float:
        """The latest time that any other worker has for the client's bucket; 0.0: none has."""
        latest = 0.0
        for at in self._others():
            due = self._table.times[at + _DUE]
            # The key is read last: a slot that was given away meanwhile has another one.
            if due > latest and self._table.cells[at + _KEY] == self._key:
                latest = due
        return latest

    def latest(self) -> float:
        """The latest time that any worker has, this one included."""
        due = self.due()
        at = self._table.find(self._table.index, self._key)
        return max(due, self._table.times[at + _DUE]) if at >= 0 else due

    @property
    def slot(self) -> int:
        """The number of its slot in the own region, from 1; 0: it has none."""
        return 0 if self._own < 0 else (self._own - self._table.base) // _SLOT + 1

    def open(self) -> int:
        """Requests of the client that are open at other workers."""
        total = 0
        for at in self._others():
            count = self._table.cells[at + _OPEN]
            if 0 < count < _MOST_OPEN and self._table.cells[at + _KEY] == self._key:
                total += count
        return total

    def tell(self, due: float, count: int, now: float) -> None:
        """Tell the others when the bucket is empty, and how many requests are open here."""
        table = self._table
        at = self._own
        if at < 0 or table.cells[at + _KEY] != self._key:
            at = self._own = table.claim(self._key, now)
            if at < 0:
                return
        table.times[at + _DUE] = due
        table.cells[at + _OPEN] = count

    def _others(self) -> list[int]:
        """The first cells of the client's slots in the regions of others."""
        table = self._table
        places = []
        for worker in table.others:
            at = self._found[worker]
            if at < 0 or table.cells[at + _KEY] != self._key:
                claims = table.cells[worker * _REGION + _CLAIMS]
                if claims == self._seen_claims[worker]:
                    continue
                self._seen_claims[worker] = claims
                at = self._found[worker] = table.find(worker, self._key)
                if at < 0:
                    continue
            places.append(at)
        return places


class UsageTable:
    """The tables of all workers. One of them writes its own, and reads the others."""

    def __init__(self, memory: memoryview, index: int, count: int) -> None:
        """Begin. What the worker before in this place has let through stays counted.

        Args:
            memory: of `size(count)` bytes.
            index: of this worker, from 0.
            count: of all workers.
        """
        self.index = index
        self.count = count
        self.base = index * _REGION + _HEADER
        """The first cell of the own slots."""
        self.others = tuple(each for each in range(count) if each != index)
        self.cells = memory.cast("B").cast("q")
        self.times = memory.cast("B").cast("d")
        clear(memory, index)

    def client(self, key: int) -> ClientUsage:
        """What workers say of the client with a key."""
        return ClientUsage(self, key)

    def client_at(self, worker: int, slot: int) -> ClientUsage | None:
        """The client whose slot has that number in a worker's region; see `ClientUsage.slot`.
        None: nobody has it any more."""
        if not 0 < slot <= _SLOTS:
            return None
        key = self.cells[worker * _REGION + _HEADER + (slot - 1) * _SLOT + _KEY]
        return ClientUsage(self, key) if key else None

    def find(self, worker: int, key: int) -> int:
        """The first cell of a client's slot in a worker's region; -1: it has none."""
        cells = self.cells
        base = worker * _REGION + _HEADER
        for probe in range(_PROBES):
            at = base + (key + probe) % _SLOTS * _SLOT
            if cells[at + _KEY] == key:
                return at
        return -1

    def claim(self, key: int, now: float) -> int:
        """Find or take a slot of the own region for a client.

        Returns:
            Its first cell. -1: all that it may have are in use, so others are not told of it.
        """
        found = self.find(self.index, key)
        if found >= 0:
            return found
        cells, times = self.cells, self.times
        base = self.index * _REGION + _HEADER
        for probe in range(_PROBES):
            at = base + (key + probe) % _SLOTS * _SLOT
            if not cells[at + _KEY] or (times[at + _DUE] <= now and not cells[at + _OPEN]):
                cells[at + _KEY] = 0
                times[at + _DUE] = 0.0
                cells[at + _OPEN] = 0
                cells[at + _KEY] = key
                cells[self.index * _REGION + _CLAIMS] += 1
                return at
        return -1


def clear(memory: memoryview, index: int) -> None:
    """Take all that a worker has open off the counts. To be called by the process that has waited
    for its end. What it let through stays counted."""
    cells = memory.cast("B").cast("q")
    base = index * _REGION + _HEADER
    for at in range(base, base + _SLOTS * _SLOT, _SLOT):
        if cells[at + _KEY]:
            cells[at + _OPEN] = 0
