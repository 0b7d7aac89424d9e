"""Inflates messages that are needed whole, so that no others have to wait for it."""

from __future__ import annotations

from typing import Final

from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.kserve.inflation import GaveWay, inflated_in_steps
from lb.net.iteration import IterationBudget
from lb.net.steps import in_turns
from lb.net.threads import computed
from lb.proxy.fan_out.account import AnswerAccount
from lb.proxy.fan_out.question import Departure
from lb.wire.memory_budget import MemoryBudget
from lb.wire.rope import Rope

CANNOT_BE_INFLATED: Final = "the message cannot be inflated"
_SHORT: Final = "too little memory to inflate the message"
_COPIES: Final = 2
"""How often a byte is held in the end: once in its slice, once in the whole message."""
_LARGE_JOIN: Final = 2**20
"""Bytes from which on CPython joins without holding the interpreter."""


class Inflation:
    """One message that is inflated a slice in each turn of its connection; see
    `Http2Codec.postpone`. What it has become is in the memory budget until it is closed."""

    __slots__ = ("_account", "_memory_budget", "_steps", "message")

    def __init__(self, data: bytes | memoryview, limit: int, memory_budget: MemoryBudget) -> None:
        """
        Args:
            data: the whole compressed message.
            limit: bytes that it may inflate to.
            memory_budget: of all bytes held.
        """
        self.message: bytes | None = None
        """Once it is inflated; None where it is broken or too long."""
        self._memory_budget = memory_budget
        self._account = AnswerAccount(memory_budget)
        self._steps = inflated_in_steps(Rope([data]), limit, self._hold)

    def go_on(self) -> bool:
        """Inflate the next slice. Returns whether it was the last.

        Raises:
            RequestRefused: memory is short.
        """
        try:
            next(self._steps)
        except StopIteration as done:
            found: Rope | None = done.value
            self.message = None if found is None else found.joined()
            return True
        except GaveWay:
            raise RequestRefused(Reason.MEMORY, _SHORT) from None
        return False

    def close(self) -> None:
        """Hold nothing any more."""
        self._account.close()

    def _hold(self, size: int) -> bool:
        return not self._memory_budget.is_short and self._account.keep(_COPIES * size)


async def inflated_in_turns(
    data: bytes | memoryview,
    limit: int,
    iteration: IterationBudget,
    memory_budget: MemoryBudget,
    departure: Departure,
) -> bytes:
    """Inflate one message, a slice whenever the budget of the iteration has room for it.

    A few bytes may become many megabytes. They are in the memory budget slice by slice, and where
    it is short the message is refused, so that nobody has to make room for it. What is returned is
    in the memory budget no more.

    Args:
        data: the compressed message.
        limit: bytes that it may inflate to.
        iteration: says when there is room.
        memory_budget: of all bytes held.
        departure: of the client; nothing more is inflated then.

    Raises:
        RequestRefused: it is broken or too long, memory is short, or the client has left.
    """
    account = AnswerAccount(memory_budget)

    def hold(size: int) -> bool:
        if departure.has_happened:
            raise RequestRefused(Reason.CLIENT_GONE, "nobody waits for it any more")
        return not memory_budget.is_short and account.keep(_COPIES * size)

    try:
        message = await in_turns(inflated_in_steps(Rope([data]), limit, hold), iteration)
        if message is None:
            raise RequestRefused(Reason.BAD_REQUEST, CANNOT_BE_INFLATED)
        if len(message) > _LARGE_JOIN:
            return await computed(message.joined)
        return message.joined()
    except GaveWay:
        raise RequestRefused(Reason.MEMORY, _SHORT) from None
    finally:
        account.close()
