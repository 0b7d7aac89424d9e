"""Rows of a table that may have millions, in the order of their last use.

Numbers in columns instead of an object per row: half the memory, and nothing for the cyclic
garbage collector to walk over, which would stop everything for 0.3 s per million objects. For the
same reason the index is many small dictionaries: a large one stops everything when it grows.
"""

from __future__ import annotations

from array import array
from typing import Final

NO_ROW: Final = -1
_SHARDS: Final = 256


class PinRows:
    """Each row has a key, an owner and a place in one queue. Row numbers are used again."""

    __slots__ = (
        "_count", "_free", "_index", "_keys", "_newer", "_older", "owner", "queue", "used",
    )  # fmt: skip

    def __init__(self) -> None:
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in range(_SHARDS))
        self._keys: list[bytes] = []
        # The rows of a queue, and the queue itself as one of them, are a ring.
        self._older = array("l")
        self._newer = array("l")
        self.queue = array("l")
        """The queue that a row is in."""
        self.owner = array("l")
        """Whatever the owner of the table wants to find again."""
        self.used = array("d")
        """When a row was last used, in monotonic seconds."""
        self._free = NO_ROW
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """One more than the highest number of a row so far."""
        return len(self._keys)

    def key(self, row: int) -> bytes:
        """The key of a row; empty where there is none."""
        return self._keys[row]

    def new_queue(self) -> int:
        """A queue; it lives as long as the table."""
        row = self._new_row()
        self._older[row] = self._newer[row] = row
        return row

    def find(self, key: bytes) -> int:
        """The row of `key`, or NO_ROW."""
        return self._index[hash(key) % _SHARDS].get(key, NO_ROW)

    def add(self, key: bytes, owner: int, queue: int, now: float) -> int:
        """Add a row for a key that has none, as the last one used of `queue`."""
        row = self._new_row()
        self._index[hash(key) % _SHARDS][key] = row
        self._keys[row] = key
        self.owner[row] = owner
        self.used[row] = now
        self._join(row, queue)
        self._count += 1
        return row

    def touch(self, row: int, queue: int, now: float) -> None:
        """A row was used: now it is the last one of `queue`."""
        self.used[row] = now
        self._leave(row)
        self._join(row, queue)

    def remove(self, row: int) -> None:
        """Forget a row."""
        key = self._keys[row]
        del self._index[hash(key) % _SHARDS][key]
        self._keys[row] = b""
        self._leave(row)
        self._newer[row] = self._free
        self._free = row
        self._count -= 1

    def oldest(self, queue: int) -> int:
        """The row of a queue that was not used for longest, or NO_ROW."""
        row = self._newer[queue]
        return NO_ROW if row == queue else row

    def _new_row(self) -> int:
        row = self._free
        if row != NO_ROW:
            self._free = self._newer[row]
            return row
        for column in (self._older, self._newer, self.queue, self.owner):
            column.append(0)
        self.used.append(0.0)
        self._keys.append(b"")
        return len(self._keys) - 1

    def _join(self, row: int, queue: int) -> None:
        last = self._older[queue]
        self.queue[row] = queue
        self._older[row] = last
        self._newer[row] = queue
        self._newer[last] = self._older[queue] = row

    def _leave(self, row: int) -> None:
        older, newer = self._older[row], self._newer[row]
        self._newer[older] = newer
        self._older[newer] = older
