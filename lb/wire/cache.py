"""A bounded cache of parsed heads by their bytes, for both protocols."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_ENTRIES: Final = 1024
_KEY_SIZE: Final = 4096
"""Bytes: with the entries above, at most 8 MiB of keys in both generations."""

T = TypeVar("T")


class HeadCache(Generic[T]):
    """Heads by their bytes. Two generations: what was used lately survives a flood of others."""

    __slots__ = ("_new", "_old", "get")

    def __init__(self) -> None:
        self._new: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}
        self.get = self._new.get
        """Look up the younger generation; hot."""

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def revive(self, block: bytes) -> T | None:
        """Look up the older generation and bring what is found there back."""
        head = self._old.get(block)
        if head is not None:
            self.put(block, head)
        return head

    def put(self, block: bytes, head: T) -> None:
        """Keep a head."""
        if len(block) > _KEY_SIZE:
            return
        if len(self._new) >= _ENTRIES:
            self._old = dict(self._new)
            self._new.clear()
        self._new[block] = head
