"""The board: what each worker has in flight and queued, readable by all workers.

The memory is divided into one region per worker. Only that worker writes there, so no operation has
to be atomic. Every entry holds absolute numbers, which are written anew and never incremented in
place. A reader that sees half of a change sees the rest with the next change, or in its own next
tick. A dead worker's region is emptied by the process that has waited for it.

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
_ENTRY: Final = 13
_SAMPLE_AT: Final = 8
"""The first cell of an entry's sample."""
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
_QUEUED: Final = 3
"""Requests that the worker has queued, of all models."""
_CONNECTIONS: Final = 4
"""Connections of clients that the worker has."""
_READS: Final = 5
"""How often the worker has begun to read what the others have changed."""


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
        "alone_s", "answered_from", "at", "count", "ends", "high", "key", "number", "rows",
        "sample_rows", "sample_size", "samples", "since", "took_s", "work_s",
    )  # fmt: skip

    def __init__(self, key: int) -> None:
        self.key = key
        self.number = -1
        """Its place in the writer's region; -1: it has none."""
        self.at = 0
        """The byte of the memory at which its cells begin, behind the key."""
        self.count = 0
        """Requests in flight or queued."""
        self.high = 0
        """Those of the highest priority. Of a queue: the level of the next request."""
        self.rows = 0
        """Rows of the requests in flight."""
        self.ends = 0
        """Requests that have ended since the worker began. Of a queue: the key of the eligible set
        of its requests; 0 where they are of several."""
        self.samples = 0
        """Executions that were learnt from since the worker began."""
        self.work_s = 0.0
        """Seconds of execution in flight. Of a queue: the key that sorts its first request."""
        self.since = 0.0
        """When the backend began with what it executes, in monotonic seconds. Of a queue: the key
        that sorts its last request."""
        self.took_s = 0.0
        """Seconds that the last of the samples took."""
        self.sample_rows = 0.0
        """Rows of the last of them."""
        self.sample_size = 0.0
        """Bytes of the last of them."""
        self.alone_s = 0.0
        """Seconds from here to the backend and back, with an execution that need not wait; see
        `ModelBackend.alone_s`."""
        self.answered_from = 0.0
        """When a request began that was answered well while others were overdue."""


Values = tuple[int, int, int, int, int, int, float, float]
"""An entry as readers have it: key, count, high, rows, ends, samples, work_s, since; see `Entry`.
"""
Sample = tuple[float, float, float, float, float]
"""The last sample of an entry: took_s, sample_rows, sample_size, alone_s, answered_from."""
# A native number is copied by one store or load of 8 bytes. The names are bound methods, since a
# call of them is the largest part of what sharing costs.
_VALUES: Final = Struct("6q2d")
_READ: Final = _VALUES.unpack_from
_WRITE: Final = Struct("5q2d").pack_into
"""All but the key."""
_SAMPLE: Final = Struct("5d")
_READ_SAMPLE: Final = _SAMPLE.unpack_from
_WRITE_SAMPLE: Final = _SAMPLE.pack_into


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
        self._ring = self._base + _HEADER
        self._neighbours = [_Neighbour(each) for each in range(count) if each != index]
        self._numbers: dict[int, int] = {}
        """The number of each own entry, by key."""
        self._entries: list[Entry] = []
        """The last entry that was written at each number."""
        self._free: list[int] = []
        self._ticked_at = 0.0
        """When this worker has said last that it runs."""
        clear(memory, index)
        self._cells[self._base + _USED] = 0
        self._position: int = self._cells[self._base + _POSITION]
        """Changes so far. The supervisor changes the cell only while no worker has this region."""
        self._reads: int = self._cells[self._base + _READS]
        """Goes on from the count of the process before: nobody takes that one's last for ours."""

    def tick(self, now: float) -> bool:
        """Say that this worker runs, and find out which others do. To be called ten times a second.

        Returns:
            Whether another worker has come or gone since the last tick. `changes` has its entries.
        """
        self._times[self._base + _ALIVE_AT] = self._ticked_at = now
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
        number = entry.number
        if number < 0:
            number = self._claim(entry)
            if number < 0:
                return False
        _WRITE(
            self._memory,
            entry.at,
            entry.count,
            entry.high,
            entry.rows,
            entry.ends,
            entry.samples,
            entry.work_s,
            entry.since,
        )
        cells = self._cells
        position = self._position
        cells[self._ring + position % _RING] = number
        self._position = position = position + 1
        cells[self._base] = position
        return True

    def write_sample(self, entry: Entry) -> None:
        """Have others learn from another execution. They are told of it by the next `write`."""
        if entry.number < 0:
            self._claim(entry)
        if entry.number >= 0:
            at = entry.at + (_SAMPLE_AT - 1) * _CELL
            _WRITE_SAMPLE(
                self._memory,
                at,
                entry.took_s,
                entry.sample_rows,
                entry.sample_size,
                entry.alone_s,
                entry.answered_from,
            )

    def write_queued(self, count: int) -> None:
        """Tell the others how many requests are queued here."""
        self._cells[self._base + _QUEUED] = count

    def write_connections(self, count: int) -> None:
        """Tell the others how many connections of clients there are here."""
        self._cells[self._base + _CONNECTIONS] = count

    def fewest_connections(self) -> int:
        """Find the fewest connections that any other worker has that runs; -1: none runs."""
        cells = self._cells
        fewest = -1
        for other in self._neighbours:
            if other.is_alive:
                count = cells[other.base + _CONNECTIONS]
                if fewest < 0 or count < fewest:
                    fewest = count
        return fewest

    def reads_of(self, worker: int) -> int:
        """Count how often another worker has read what the others have changed. While the count
        stays, it has yet to read what this worker has written last."""
        return self._cells[worker * _REGION + _READS]

    def _claim(self, entry: Entry) -> int:
        """Find a number for an entry that has none; -1: all are in use."""
        key = entry.key
        number = self._numbers.get(key, -1)
        if number >= 0:
            self._entries[number] = entry
        elif len(self._entries) < MAX_ENTRIES:
            number = len(self._entries)
            self._entries.append(entry)
            self._cells[self._base + _USED] = number + 1
        else:
            if not self._free:
                self._reuse()
            if not self._free:
                return -1
            number = self._free.pop()
            self._entries[number] = entry
        self._numbers[key] = number
        at = self._base + _HEADER + _RING + number * _ENTRY
        self._cells[at] = key
        entry.number = number
        entry.at = (at + 1) * _CELL
        return number

    def _reuse(self) -> None:
        """Take entries of which nothing is in flight or queued from their keys."""
        for key, number in tuple(self._numbers.items()):
            at = self._base + _HEADER + _RING + number * _ENTRY
            if not self._cells[at + 1]:
                del self._numbers[key]
                self._entries[number].number = -1
                self._free.append(number)

    def has_queued_elsewhere(self) -> bool:
        """Whether any other worker that runs has requests queued."""
        cells = self._cells
        for other in self._neighbours:
            if cells[other.base + _QUEUED] and (other.is_alive or self._has_come(other)):
                return True
        return False

    def queued_elsewhere(self) -> list[int]:
        """The other workers that run and have requests queued."""
        return [
            other.index
            for other in self._neighbours
            if self._cells[other.base + _QUEUED] and (other.is_alive or self._has_come(other))
        ]

    def changes(self) -> list[tuple[int, int]]:
        """The worker and the number of each entry of others that may have changed since the last
        call."""
        cells = self._cells
        # First of all: what is written while the count is the old one is read now.
        cells[self._base + _READS] = self._reads = self._reads + 1
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
        if since < 0 or not 0 < position - since < _RING:
            other.used = max(other.used, min(cells[other.base + _USED], MAX_ENTRIES))
            return range(other.used)
        ring = other.base + _HEADER
        if position - since == 1:
            number = cells[ring + since % _RING]
            if number >= other.used:
                other.used = number + 1
            return (number,)
        numbers = {cells[ring + each % _RING] for each in range(since, position)}
        if cells[other.base + _POSITION] - since >= _RING:
            other.seen = -1  # it has written over what was read: read all the next time
        other.used = max(other.used, max(numbers) + 1)
        return numbers

    def read(self, worker: int, number: int) -> Values:
        """What another worker says now. Of one that does not run: nothing in flight or queued."""
        at = worker * _REGION + _HEADER + _RING + number * _ENTRY
        values: Values = _READ(self._memory, at * _CELL)
        other = self._neighbours[worker if worker < self.index else worker - 1]
        if (
            (other.is_alive or self._has_come(other))
            and 0 <= values[1] < _MOST
            and 0 <= values[2] < _MOST
            and 0 <= values[3] < _MOST
        ):
            return values
        return (values[0], 0, 0, 0, values[4], values[5], 0.0, values[7])

    def _has_come(self, other: _Neighbour) -> bool:
        """Whether another worker that did not run at the last tick does now. Then all of it is read
        anew."""
        if self._times[other.base + _ALIVE_AT] <= self._ticked_at - STALE_S:
            return False
        other.is_alive = True
        other.seen = -1
        return True

    def read_sample(self, worker: int, number: int) -> Sample:
        """The last sample that another worker has told of."""
        at = worker * _REGION + _HEADER + _RING + number * _ENTRY + _SAMPLE_AT
        sample: Sample = _READ_SAMPLE(self._memory, at * _CELL)
        return sample


def clear(memory: memoryview, index: int) -> None:
    """Take all that a worker has in flight and queued off the counts. To be called by the process
    that has waited for its end."""
    cells = memory.cast("B").cast("q")
    base = index * _REGION
    for number in range(min(cells[base + _USED], MAX_ENTRIES)):
        at = base + _HEADER + _RING + number * _ENTRY
        cells[at + 1] = cells[at + 2] = cells[at + 3] = 0
    cells[base + _QUEUED] = cells[base + _CONNECTIONS] = 0
    # Whoever reads it next reads all of it.
    cells[base + _POSITION] += _RING


def last_tick(memory: memoryview, index: int) -> float:
    """When a worker has said last that it runs, in monotonic seconds."""
    return memory.cast("B").cast("d")[index * _REGION + _ALIVE_AT]
