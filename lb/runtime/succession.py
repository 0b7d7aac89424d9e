"""Taking over from the process before, which goes on until we accept; see `lb.runtime.upgrade`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import Any, Final

from lb.runtime.handover import SequenceNews, resume_operator_state
from lb.runtime.predecessor import MOST_UNSENT, Predecessor, line, unsent
from lb.runtime.wiring import Product

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 16 << 20


class Succession:
    """The conversation with the process before, from its successor's side."""

    def __init__(
        self, predecessor: Predecessor, product: Product, news: SequenceNews | None = None
    ) -> None:
        """
        Args:
            predecessor: the process before.
            product: gets its state.
            news: of sequences, where other processes hear of them as well.
        """
        self._predecessor = predecessor
        self._product = product
        self._news = news or SequenceNews(product)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def take_over(self) -> None:
        """Everything is prepared: hear what exists nowhere else. If the process before is gone,
        there is nobody to wait for.

        Raises:
            ValueError: it says something unknown.
        """
        channel = self._predecessor.channel
        channel.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=channel, limit=_LINE_BYTES
        )
        self._writer.write(line("prepared"))
        try:
            while text := await self._reader.readline():
                if self._hear(text):
                    return
        except OSError as error:
            _log.debug("process before this one has gone", extra={"why": str(error)})
        _log.warning("process before this one went before it had told everything")
        self._writer.close()
        self._writer = None

    def accepts(self) -> None:
        """We accept connections: the process before may go."""
        if self._writer is not None:
            self._writer.write(line("ready", os.getpid()))
            self._news.follow(self._tell)
            self._product.tasks.spawn(self._follow(), name="process before")

    def _tell(self, rows: list[list[Any]]) -> None:
        if self._writer is not None and unsent(self._writer) < MOST_UNSENT:
            self._writer.write(line("sequences", rows))

    def _hear(self, text: bytes) -> bool:
        """Take one message in. Returns whether it was the last before we are to accept."""
        event = json.loads(text)
        if "operator" in event:
            resume_operator_state(self._product, event["operator"])
        if "sequences" in event:
            self._news.hear(event["sequences"], self._tell)
        return "begin" in event

    async def _follow(self) -> None:
        """Hear of sequences until the process before has ended."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            return
        try:
            while text := await reader.readline():
                self._hear(text)
            _log.info("process before this one has ended")
        except OSError as error:
            _log.info("process before this one has gone", extra={"why": str(error)})
        finally:
            self._news.forget(self._tell)
            writer.close()
