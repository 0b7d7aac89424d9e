"""Models of calls by how their messages begin: one look-up in place of reading each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lb.domain.pool import PoolSnapshot
from lb.wire.grpc.message import PREFIX_SIZE

_MODELS: Final = 1024
"""Beginnings that are remembered; they come from clients."""
_SHORT_NAME: Final = 0x80
"""Names of fewer bytes have a length of one byte."""


class KnownModel(NamedTuple):
    """What a message says that begins so."""

    name: bytes
    is_plain: bool
    """It needs no second look; otherwise only what says nothing of a sequence needs none."""


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
