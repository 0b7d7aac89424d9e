"""Inflates messages that are needed whole, so that no others have to wait for it."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.net.iteration import IterationBudget
from lb.net.threads import computed
from lb.proxy.fan_out.account import AnswerAccount
from lb.proxy.fan_out.question import Departure
from lb.wire.grpc.compression import Inflater
from lb.wire.memory_budget import MemoryBudget

CANNOT_BE_INFLATED: Final = "the message cannot be inflated"
_SHORT: Final = "too little memory to inflate the message"
_SLICE: Final = 64 * 1024
"""Bytes that are inflated before others go on."""
_UNITS: Final = 200
"""Units of `IterationBudget` for a slice."""
_COPIES: Final = 2
"""How often a byte is held in the end: once in its slice, once in the whole message."""
_LARGE_JOIN: Final = 2**20
"""Bytes from which on CPython joins without holding the interpreter."""


class Inflation:
    """Inflates one message, a slice whenever the budget of the iteration has room for it.

    A few bytes may become many megabytes. They are in the memory budget slice by slice, and where
    it is short the message is refused, so that nobody has to make room for it.
    """

    __slots__ = (
        "_account",
        "_departure",
        "_done",
        "_inflater",
        "_iteration",
        "_left",
        "_memory_budget",
        "_slices",
    )  # fmt: skip

    def __init__(
        self,
        data: bytes | memoryview,
        limit: int,
        iteration: IterationBudget,
        memory_budget: MemoryBudget,
        departure: Departure,
    ) -> None:
        """
        Args:
            data: the compressed message.
            limit: bytes that it may inflate to.
            iteration: says when there is room.
            memory_budget: of all bytes held.
            departure: of the client; nothing more is inflated then.
        """
        self._inflater = Inflater(data)
        self._left = limit
        self._iteration = iteration
        self._memory_budget = memory_budget
        self._departure = departure
        self._account = AnswerAccount(memory_budget)
        self._slices: list[bytes] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def message(self) -> bytes:
        """The whole message, which is in the memory budget no more. To be called once.

        Raises:
            RequestRefused: it is broken or too long, memory is short, or the client has left.
        """
        try:
            self._iteration.later(self._step)
            await self._done
            slices = self._slices
            if sum(map(len, slices)) > _LARGE_JOIN:
                return await computed(b"".join, slices)
            return b"".join(slices)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._slices.clear()
        self._account.close()

    def _step(self) -> None:
        if self._done.done():
            return  # whoever waited was cancelled
        try:
            self._inflate_slice()
        except RequestRefused as refusal:
            self._let_go()  # at once: the next one may be refused for what this one holds
            self._done.set_exception(refusal)
        else:
            if self._inflater.is_whole:
                self._done.set_result(None)
            else:
                self._iteration.later(self._step)

    def _inflate_slice(self) -> None:
        if self._departure.has_happened:
            raise RequestRefused(Reason.CLIENT_GONE, "nobody waits for it any more")
        # A byte beyond the limit tells that the message is longer.
        most = min(_SLICE, self._left + 1)
        if self._memory_budget.is_short:
            raise RequestRefused(Reason.MEMORY, _SHORT)
        self._iteration.spend(_UNITS)
        try:
            piece = self._inflater.next(most)
        except zlib.error:
            raise RequestRefused(Reason.BAD_REQUEST, CANNOT_BE_INFLATED) from None
        self._left -= len(piece)
        if self._left < 0:
            raise RequestRefused(Reason.BAD_REQUEST, CANNOT_BE_INFLATED)
        if not self._account.keep(_COPIES * len(piece)):
            raise RequestRefused(Reason.MEMORY, _SHORT)
        self._slices.append(piece)
