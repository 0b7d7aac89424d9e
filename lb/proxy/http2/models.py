"""Models of calls by how their messages begin: one look-up in place of reading each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lb.domain.pool import PoolSnapshot
from lb.wire.grpc.message import PREFIX_SIZE

_MODELS: Final = 1024
"""Beginnings that are remembered; they come from clients."""
_PATIENCE: Final = 16
"""Messages that do not begin like the one that is remembered, before another one is."""
_SHORT_NAME: Final = 0x80
"""Names of fewer bytes have a length of one byte."""


class KnownWork:
    """How much work it was what a message of a scheduled model asked for."""

    __slots__ = ("head", "misses", "priority", "rows", "version")

    def __init__(self, head: bytes, version: bytes, rows: int, priority: int) -> None:
        self.head = head
        """A message that begins with all of this is as much."""
        self.version = version
        self.rows = rows
        self.priority = priority
        self.misses = 0
        """Messages that began otherwise."""


class KnownModel(NamedTuple):
    """What a message says that begins so."""

    name: bytes
    is_plain: bool
    """It needs no second look; otherwise only what says nothing of a sequence needs none."""
    work: KnownWork | None = None
    """Everything needs a second look, for how much work it is; there are no sequences."""


class KnownModels:
    """What holds for one snapshot of the pool."""

    __slots__ = ("_known", "by_start", "snapshot")

    def __init__(self) -> None:
        self.snapshot: PoolSnapshot | None = None
        """The pool for which it holds."""
        self._known: dict[bytes, KnownModel] = {}
        self.by_start: Callable[[bytes], KnownModel | None] = self._known.get
        """Look up a message by its bytes up to the end of the model's name; hot."""

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, snapshot: PoolSnapshot, data: bytes, name: bytes, *, is_plain: bool) -> None:
        """Remember how a message began.

        Args:
            snapshot: the pool at this time.
            data: the message with its prefix.
            name: of its model, as `model_name` finds it.
            is_plain: it needs no second look.
        """
        if self.snapshot is not snapshot or len(self._known) >= _MODELS:
            self.snapshot = snapshot
            self._known.clear()
        if len(name) < _SHORT_NAME:
            self._known[data[: PREFIX_SIZE + 2 + len(name)]] = KnownModel(name, is_plain)

    def learn_work(
        self, snapshot: PoolSnapshot, data: bytes, name: bytes, found: tuple[bytes, int, int, int]
    ) -> None:
        """Remember what a message of a scheduled model said; where messages differ each time, that
        of one now and then.

        Args:
            snapshot: the pool at this time.
            data: the message with its prefix.
            name: of its model, as `model_name` finds it; it is short.
            found: as `quick_look` gives it.
        """
        version, rows, priority, end = found
        start = data[: PREFIX_SIZE + 2 + len(name)]
        known = self._known.get(start) if self.snapshot is snapshot else None
        if known is not None and known.work is not None:
            known.work.misses += 1
            if known.work.misses % _PATIENCE:
                return
        self.learn(snapshot, data, name, is_plain=False)
        self._known[start] = KnownModel(name, False, KnownWork(data[:end], version, rows, priority))
