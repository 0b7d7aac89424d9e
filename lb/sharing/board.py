"""The board: what each worker has in flight and queued, readable by all workers.

The memory is divided into one region per worker. Only that worker writes there, so no operation has
to be atomic. Every entry holds absolute numbers, which are written anew and never incremented in
place. A reader that sees half of a change sees the rest with the next change, or in the next
`tick` of the writer. A dead worker's region is emptied by the process that has waited for it.

A region has a header, a ring of the numbers of changed entries, and the entries. An entry belongs
to a key, a hash of names, so workers agree on keys without numbers that somebody assigns. The ring
only saves readers from reading all entries: a reader that is late by more than the ring reads all.

Why: docs/decisions/0070-what-workers-share.md.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from struct import Struct
from typing import Final

_CELL: Final = 8
"""Bytes of a cell. Cells are aligned, so the processors we run on store each at once."""
_RING: Final = 1024
"""Changes that a reader may be late by: about 20 ms of a busy worker."""
MAX_ENTRIES: Final = 8192
"""Entries per worker: 200 backends with 40 models each. Entries without load are used again."""
_HEADER: Final = 8
_ENTRY: Final = 12
_REGION: Final = _HEADER + _RING + MAX_ENTRIES * _ENTRY
STALE_S: Final = 1.0
"""A worker that has not told for so long that it runs is not counted."""
_MOST: Final = 1 << 20
"""A larger count is half of a number that was being written."""
# Cells of a header:
_POSITION: Final = 0
"""Changes so far; the ring has the last ones. It is the first cell of a region."""
_USED: Final = 1
"""Entries that have ever been used."""
_ALIVE_AT: Final = 2
"""When the worker ran last, in monotonic seconds."""


def size(count: int) -> int:
    """The bytes that a number of workers share."""
    return count * _REGION * _CELL


def key_of(*names: bytes) -> int:
    """The key of what has these names: 63 bits, so that two of them are the same for any pair with
    a probability of 10 to the power of -19. Never 0."""
    hashed = blake2b(digest_size=8)
    for name in names:
        hashed.update(b"%d:" % len(name))
        hashed.update(name)
    return int.from_bytes(hashed.digest()) >> 1 or 1


class Entry:
    """What one worker says of one key. Which fields are used depends on what the key stands for."""

    __slots__ = (
        "count", "ends", "high", "key", "rows", "sample_rows", "sample_size", "samples", "since",
        "took_s", "work_s",
    )  # fmt: skip

    def __init__(self, key: int) -> None:
        self.key = key
        self.count = 0
        """Requests in flight or queued."""
        self.high = 0
        """Those of the highest priority. Of a queue: the level of the next request."""
        self.rows = 0
        """Rows of the requests in flight."""
        self.ends = 0
        """Requests that have ended since the worker began."""
        self.samples = 0
        """Executions that were learnt from since the worker began."""
        self.sample_rows = 0.0
        """Rows of the last of them."""
        self.sample_size = 0.0
        """Bytes of the last of them."""
        self.work_s = 0.0
        """Seconds of execution in flight. Of a queue: the key that sorts its first request."""
        self.since = 0.0
        """When the backend began with what it executes, in monotonic seconds. Of a queue: the key
        that sorts its last request."""
        self.took_s = 0.0
        """Seconds that the last of the samples took."""


Values = tuple[int, int, int, int, int, int, float, float, float, float, float]
"""An entry as readers have it: key, count, high, rows, ends, samples, sample_rows, sample_size,
work_s, since, took_s; see `Entry`."""
_READ: Final = Struct("6q5d").unpack_from


class _Neighbour:
    """Another worker, as far as its region was read."""

    __slots__ = ("base", "index", "is_alive", "seen", "used")

    def __init__(self, index: int) -> None:
        self.index = index
        self.base = index * _REGION
        self.seen = -1
        """Its position when it was read last; -1: read everything."""
        self.used = 0
        """The most entries that were read."""
        self.is_alive = False


class Board:
    """The board as one worker has it: it writes its own region, and reads the others."""

    def __init__(self, memory: memoryview, index: int, count: int) -> None:
        """Empty the own region, where another process may have written that is gone.

        Args:
            memory: of `size(count)` bytes.
            index: of this worker, from 0.
            count: of all workers.
        """
        self.index = index
        self._memory = memory
        self._cells = memory.cast("B").cast("q")
        self._times = memory.cast("B").cast("d")
        self._base = index * _REGION
        self._neighbours = [_Neighbour(each) for each in range(count) if each != index]
        self._numbers: dict[int, int] = {}
        """The number of each own entry, by key."""
        self._free: list[int] = []
        clear(memory, index)
        self._cells[self._base + _USED] = 0

    def tick(self, now: float) -> bool:
        """Say that this worker runs, and find out which others do. To be called ten times a second.

        Returns:
            Whether another worker has come or gone since the last tick. `changes` has its entries.
        """
        self._times[self._base + _ALIVE_AT] = now
        has_changed = False
        for other in self._neighbours:
            is_alive = now - self._times[other.base + _ALIVE_AT] < STALE_S
            if is_alive is not other.is_alive:
                other.is_alive = is_alive
                other.seen = -1
                has_changed = True
        return has_changed

    def write(self, entry: Entry) -> bool:
        """Tell the others what holds for a key now.

        Returns:
            False: all entries are in use, so nobody is told.
        """
        number = self._numbers.get(entry.key)
        if number is None:
            number = self._claim(entry.key)
            if number is None:
                return False
        cells, times = self._cells, self._times
        at = self._base + _HEADER + _RING + number * _ENTRY
        cells[at] = entry.key
        cells[at + 1] = entry.count
        cells[at + 2] = entry.high
        cells[at + 3] = entry.rows
        cells[at + 4] = entry.ends
        times[at + 6] = entry.sample_rows
        times[at + 7] = entry.sample_size
        times[at + 8] = entry.work_s
        times[at + 9] = entry.since
        times[at + 10] = entry.took_s
        cells[at + 5] = entry.samples
        self._changed(number)
        return True

    def _claim(self, key: int) -> int | None:
        """Find an entry for a key that has none."""
        if len(self._numbers) < MAX_ENTRIES and not self._free:
            number = len(self._numbers)
            self._cells[self._base + _USED] = number + 1
        else:
            if not self._free:
                self._reuse()
            if not self._free:
                return None
            number = self._free.pop()
        self._numbers[key] = number
        return number

    def _reuse(self) -> None:
        """Take entries of which nothing is in flight or queued from their keys."""
        for key, number in tuple(self._numbers.items()):
            at = self._base + _HEADER + _RING + number * _ENTRY
            if not self._cells[at + 1]:
                del self._numbers[key]
                self._free.append(number)

    def _changed(self, number: int) -> None:
        cells = self._cells
        position = cells[self._base + _POSITION]
        cells[self._base + _HEADER + position % _RING] = number
        cells[self._base + _POSITION] = position + 1

    def changes(self) -> list[tuple[int, int]]:
        """The worker and the number of each entry of others that may have changed since the last
        call."""
        cells = self._cells
        found: list[tuple[int, int]] = []
        for other in self._neighbours:
            position = cells[other.base]
            if position != other.seen:
                index = other.index
                found += [(index, number) for number in self._changed_by(other, position)]
        return found

    def _changed_by(self, other: _Neighbour, position: int) -> Collection[int]:
        cells = self._cells
        since, other.seen = other.seen, position
        if since < 0 or position - since >= _RING:
            other.used = max(other.used, min(cells[other.base + _USED], MAX_ENTRIES))
            return range(other.used)
        ring = other.base + _HEADER
        numbers = {cells[ring + each % _RING] for each in range(since, position)}
        if cells[other.base + _POSITION] - since >= _RING:
            other.seen = -1  # it has written over what was read: read all the next time
        other.used = max(other.used, max(numbers) + 1)
        return numbers

    def read(self, worker: int, number: int) -> Values:
        """What another worker says now. Of one that does not run: nothing in flight or queued."""
        at = worker * _REGION + _HEADER + _RING + number * _ENTRY
        values: Values = _READ(self._memory, at * _CELL)
        is_alive = self._neighbours[worker if worker < self.index else worker - 1].is_alive
        if (
            is_alive
            and 0 <= values[1] < _MOST
            and 0 <= values[2] < _MOST
            and 0 <= values[3] < _MOST
        ):
            return values
        return (values[0], 0, 0, 0, *values[4:8], 0.0, *values[9:])


def clear(memory: memoryview, index: int) -> None:
    """Take all that a worker has in flight and queued off the counts. To be called by the process
    that has waited for its end."""
    cells = memory.cast("B").cast("q")
    base = index * _REGION
    for number in range(min(cells[base + _USED], MAX_ENTRIES)):
        at = base + _HEADER + _RING + number * _ENTRY
        cells[at + 1] = cells[at + 2] = cells[at + 3] = 0
    # Whoever reads it next reads all of it.
    cells[base + _POSITION] += _RING
