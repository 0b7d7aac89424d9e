"""Reads lists of models, each once: most backends of a pool say the same, and again and again."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from lb.control.questions import Reply, entries
from lb.domain.backend import AppProtocol
from lb.health.models import MAX_ENTRIES, ModelList

_AT_ONCE: Final = 100
"""Lines that are read in one iteration of the loop, which takes a third of a millisecond."""
_KEPT: Final = 8
_KEPT_BYTES: Final = 512 * 1024
"""Different lists that are kept, and the longest one."""


class ListReader:
    """Makes lists of answers."""

    def __init__(self) -> None:
        self._known: dict[tuple[AppProtocol, bytes], ModelList] = {}
        """By the answer; those that came last are the newest."""
        self._lock = asyncio.Lock()
        """Who waits will mostly find that the same list has been read meanwhile."""

    async def read(self, index: Reply) -> ModelList:
        """Read the answer to `Questions.index`.

        Raises:
            ValueError: it is no list of models.
        """
        key = (index.protocol, index.body)
        async with self._lock:
            found = self._known.pop(key, None)
            if found is None:
                found = await _read(index)
            if len(index.body) <= _KEPT_BYTES:
                self._known[key] = found
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return found


async def _read(index: Reply) -> ModelList:
    lines = entries(index)
    parts: list[ModelList] = []
    # One that is longer is not kept.
    while len(parts) * _AT_ONCE <= MAX_ENTRIES and (more := list(islice(lines, _AT_ONCE))):
        parts.append(ModelList(more))
        await asyncio.sleep(0)
    return ModelList.joined(parts)
