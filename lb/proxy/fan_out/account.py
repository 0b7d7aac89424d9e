"""The bytes that a question and its answers hold."""

from __future__ import annotations

from lb.wire.memory_budget import MemoryBudget


class AnswerAccount:
    """In the memory budget as one holder. Closed, it holds nothing and takes nothing."""

    __slots__ = ("_is_open", "_memory_budget", "held")

    def __init__(self, memory_budget: MemoryBudget) -> None:
        self.held = 0
        self._memory_budget = memory_budget
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether the answers may be used: not once others needed their bytes more."""
        return self._is_open

    def keep(self, size: int) -> bool:
        """Account for more bytes. False when there is no room for them."""
        return self._is_open and self._memory_budget.take(self, size)

    def evict(self) -> None:
        """See `lb.wire.memory_budget.Holder`."""
        self.close()

    @property
    def charged_to(self) -> None:
        """See `lb.wire.memory_budget.Holder`: many clients may wait for one answer."""
        return None

    def close(self) -> None:
        """Let go of everything."""
        self._is_open = False
        self._memory_budget.release(self, self.held)
