"""The bytes that a question and its answers hold."""

from __future__ import annotations

from lb.wire.ledger import Ledger


class AnswerAccount:
    """On the ledger as one holder. Closed, it holds nothing and takes nothing."""

    __slots__ = ("_is_open", "_ledger", "held")

    def __init__(self, ledger: Ledger) -> None:
        self.held = 0
        self._ledger = ledger
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether the answers may be used: not once others needed their bytes more."""
        return self._is_open

    def keep(self, size: int) -> bool:
        """Account for more bytes. False when there is no room for them."""
        return self._is_open and self._ledger.take(self, size)

    def evict(self) -> None:
        """See `lb.wire.ledger.Holder`."""
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self._is_open = False
        self._ledger.release(self, self.held)
