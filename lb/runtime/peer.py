"""The other process of an upgrade: news of sequences and stops, both ways, while both run; and to
the successor, reloads that the process before was asked for.

The connection ends when the other process ends, whatever ended it. So a crash needs no message, and
a stop has one: without it, a process goes on alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from lb.runtime.handover import SequenceNews
from lb.runtime.predecessor import MOST_UNSENT, line, unsent

_log = logging.getLogger(__name__)


class Peer:
    """The conversation with one other process of the same service."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        news: SequenceNews,
        stop: Callable[[Peer, bool], None],
        reload: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            name: what the log calls the other process.
            reader: what it says.
            writer: what it hears.
            news: of sequences, told to it once `share_news` was called.
            stop: called when it was told to stop, with whether that cuts requests.
            reload: called when it was told to reload, with who asked for it; None where only this
                process may serve, so that the other one has nobody to pass that on to.
        """
        self._name = name
        self._reader = reader
        self._writer = writer
        self._news = news
        self._stop = stop
        self._reload = reload
        self.shares_news = False
        """The other process hears of sequences."""
        self.is_gone = False
        """The other process has ended, or has closed the connection."""

    def say(self, event: str, value: Any = True) -> None:
        """Send a message; nobody may be there any more."""
        if not self._writer.is_closing():
            self._writer.write(line(event, value))

    async def flush(self) -> None:
        """Wait until the other process has read most of what was sent.

        Raises:
            OSError: it has gone.
        """
        await self._writer.drain()

    def tell(self, rows: list[list[Any]]) -> None:
        """Send news of sequences, unless the other process has stopped reading."""
        if unsent(self._writer) < MOST_UNSENT:
            self._writer.write(line("sequences", rows))

    def share_news(self) -> None:
        """Send it every sequence that begins or ends from now on."""
        self.shares_news = True
        self._news.follow(self.tell)

    async def hear(self) -> dict[str, Any] | None:
        """Wait for one message, and act on those that both sides may send at any time.

        Returns:
            The message; None when the other process has gone.

        Raises:
            ValueError: it is no message.
        """
        try:
            text = await self._reader.readline()
        except OSError as error:
            _log.debug(f"{self._name} has gone", extra={"why": str(error)})
            text = b""
        if not text.endswith(b"\n"):  # what a crash cut off counts for nothing
            self.is_gone = True
            return None
        event = json.loads(text)
        if not isinstance(event, dict):
            raise ValueError(f"not a message: {text[:80]!r}")
        if "sequences" in event:
            self._news.hear(event["sequences"], self.tell)
        if "stop" in event:
            self._stop(self, bool(event["stop"]))
        if "reload" in event and self._reload is not None:
            self._reload(str(event["reload"]))
        return event

    async def follow(self) -> None:
        """Act on its messages until it has ended."""
        try:
            while await self.hear() is not None:
                pass
            _log.info(f"{self._name} has ended")
        except ValueError as error:
            _log.warning(f"{self._name} is not understood", extra={"why": str(error)})
        finally:
            self.close()

    def close(self) -> None:
        """End the conversation."""
        self.is_gone = True
        self._news.forget(self.tell)
        self._writer.close()
