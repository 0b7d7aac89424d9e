"""What messages say, by how they begin: one look-up in place of reading each message."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from lb.domain.pool import PoolSnapshot
from lb.proxy.exchange import RoutingHints
from lb.wire.grpc.message import PREFIX_SIZE

_PREFIXES: Final = 1024
"""Beginnings that are remembered; they come from clients."""
_PATIENCE: Final = 16
"""Messages that do not begin like the one that is remembered, before another one is."""
SHORT_NAME: Final = 0x80
"""Names of fewer bytes have a length of one byte."""


class KnownPrefix:
    """What a message says whose bytes up to the end of the model's name are known."""

    __slots__ = ("head", "hints", "is_plain", "misses", "model", "size")

    def __init__(self, model: bytes, size: int, *, is_plain: bool) -> None:
        self.model = model
        self.size = size
        """Bytes of the message with its prefix, which announces them."""
        self.is_plain = is_plain
        """It need not be inspected; otherwise only what says nothing of a sequence need not, or,
        where the model is scheduled, what begins with all of `head`."""
        self.head = b""
        self.hints: RoutingHints | None = None
        """The hints of all messages that begin with `head`. None: the model is not scheduled. One
        that is has no sequences."""
        self.misses = 0
        """Messages of a scheduled model that began otherwise."""


class PrefixCache:
    """Beginnings of messages; they hold for one snapshot of the pool."""

    __slots__ = ("_excluded", "_known", "_of_batches", "find", "find_batch", "snapshot")

    def __init__(self, excluded: Container[bytes] = ()) -> None:
        """
        Args:
            excluded: models whose messages must be looked at, each of them.
        """
        self._excluded = excluded
        self.snapshot: PoolSnapshot | None = None
        """The pool for which it holds."""
        self._known: dict[bytes, KnownPrefix] = {}
        self.find: Callable[[bytes], KnownPrefix | None] = self._known.get
        """Look up a message by its bytes up to the end of the model's name; hot."""
        self._of_batches: dict[bytes, KnownPrefix] = {}
        self.find_batch: Callable[[bytes], KnownPrefix | None] = self._of_batches.get
        """Finds batches that may be cut, where `find` knows nothing."""

    def __len__(self) -> int:
        return len(self._known)

    def learn(
        self, snapshot: PoolSnapshot, data: bytes, model: bytes, *, is_plain: bool
    ) -> KnownPrefix | None:
        """Remember how a message began.

        Args:
            snapshot: the pool at this time.
            data: the message with its prefix.
            model: its model, as `model_name` finds it.
            is_plain: it need not be inspected.

        Returns:
            None where the name is too long, or excluded.
        """
        return self._put(self._known, snapshot, data, model, is_plain=is_plain)

    def _put(
        self,
        into: dict[bytes, KnownPrefix],
        snapshot: PoolSnapshot,
        data: bytes,
        model: bytes,
        *,
        is_plain: bool,
    ) -> KnownPrefix | None:
        if self.snapshot is not snapshot or len(into) >= _PREFIXES:
            self.snapshot = snapshot
            self._known.clear()
            self._of_batches.clear()
        if len(model) >= SHORT_NAME or model in self._excluded:
            return None
        size = PREFIX_SIZE + int.from_bytes(data[1:PREFIX_SIZE], "big")
        known = KnownPrefix(model, size, is_plain=is_plain)
        into[data[: PREFIX_SIZE + 2 + len(model)]] = known
        return known

    def learn_work(
        self,
        snapshot: PoolSnapshot,
        data: bytes,
        model: bytes,
        hints: RoutingHints,
        end: int,
        *,
        may_be_cut: bool = False,
    ) -> None:
        """Remember what a message of a scheduled model said; where messages differ each time, that
        of one now and then.

        Args:
            snapshot: the pool at this time.
            data: the message with its prefix.
            model: its model, as `model_name` finds it; the name is short.
            hints: what it said.
            end: where that ends in the message.
            may_be_cut: it is a batch that is cut now or another time.
        """
        into = self._of_batches if may_be_cut else self._known
        known = None
        if self.snapshot is snapshot:
            known = into.get(data[: PREFIX_SIZE + 2 + len(model)])
        if known is not None and known.hints is not None:
            known.misses += 1
            if known.misses % _PATIENCE:
                return
        known = self._put(into, snapshot, data, model, is_plain=False)
        if known is not None:
            hints.is_shared = True
            known.hints = hints
            known.head = data[:end]
