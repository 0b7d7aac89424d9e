"""Starting the next service with our listening sockets, and giving way to it once it serves.

The next supervisor inherits the sockets as the next process does where there are no workers
(`lb.runtime.upgrade`), and starts processes of its own. Both services accept for a moment. Whatever
goes wrong before the next one serves leaves this one as it was.

The next service may have read its settings before the file changed, so this one reloads nothing
from before it starts the next one until it is clear who serves. What operators say meanwhile is in
force here, and the next service is told at once. Both tell each other of sequences that begin and
end, as long as both live.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from lb.domain.errors import LoadBalancerError
from lb.net.tasks import TaskOwner
from lb.runtime.child_end import end_within
from lb.runtime.next_process import READY_S, STOP_S, obstacle, start_process
from lb.runtime.predecessor import MOST_UNSENT, line, unsent
from lb.runtime.sockets import Listeners
from lb.runtime.workers.seat import LINE_BYTES, SEQUENCE_MESSAGES

_log = logging.getLogger(__name__)

_STOPPED: Final = "this service shuts down"


class NotReplaced(LoadBalancerError):
    """The next service does not serve; this one goes on. The message says why."""


class NextService:
    """The service that takes over from this one, and what the two tell each other until this one
    has ended."""

    def __init__(
        self,
        command: Sequence[str],
        listeners: Listeners,
        operator: Any,
        stop: asyncio.Event,
        hear_news: Callable[[str, Any], None],
    ) -> None:
        """
        Args:
            command: that starts it.
            listeners: whose sockets it gets.
            operator: what operators have said so far.
            stop: this service was told to stop, and so the next one is to end.
            hear_news: called with what it tells of sequences (`SEQUENCE_MESSAGES`).
        """
        self._command = command
        self._listeners = listeners
        self._stop = stop
        self._hear_news = hear_news
        self._unsent = [line("operator", operator)]
        """What there was to tell before it could be told."""
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> int:
        """Start it and wait until it serves. Returns the id of its supervisor.

        Raises:
            NotReplaced: it does not serve.
        """
        if reason := obstacle():
            raise NotReplaced(reason)
        try:
            process, ours = await start_process(
                self._command, self._listeners, {"has_workers": True}
            )
        except OSError as error:
            raise NotReplaced(str(error)) from error
        _log.info("next service started", extra={"pid": process.pid})
        self._reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES)
        self._writer = writer
        writer.writelines(self._unsent)
        self._unsent = []
        try:
            why = await self._until_ready()
        except asyncio.CancelledError:  # this service shuts down, and so does the next one
            process.terminate()
            self.close()
            raise
        if not why:
            process.returncode = 0  # we shall not wait for its end, whatever `Popen` thinks of that
            return process.pid
        self.close()
        process.terminate()
        await end_within(process, STOP_S)
        raise NotReplaced(why)

    async def follow(self) -> None:
        """Hear it until it has gone, once it serves."""
        try:
            while await self._hear() is not None:
                pass
        except (OSError, ValueError) as error:
            _log.warning("next service is not understood any more", extra={"why": str(error)})

    def say_operator(self, operator: Any) -> None:
        """Tell it what operators have said by now."""
        self._say("operator", operator)

    def say_news(self, event: str, value: Any) -> None:
        """Tell it of sequences (`SEQUENCE_MESSAGES`), unless it has stopped reading."""
        if self._writer is None or unsent(self._writer) < MOST_UNSENT:
            self._say(event, value)

    def say_reload(self, why: str) -> None:
        """Pass on that somebody asked this service to reload, once the next one serves."""
        self._say("reload", why)

    def close(self) -> None:
        """Say no more."""
        if self._writer is not None:
            self._writer.close()

    def _say(self, event: str, value: Any) -> None:
        text = line(event, value)
        if self._writer is None:
            self._unsent.append(text)
        elif not self._writer.is_closing():
            self._writer.write(text)

    async def _hear(self) -> dict[str, Any] | None:
        """Wait for one message, and act on news of sequences. None: it has gone."""
        text = await self._reader.readline()
        if not text.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(text)
        for event in SEQUENCE_MESSAGES & message.keys():
            self._hear_news(event, message[event])
        return message

    async def _until_ready(self) -> str:
        """Hear it until it serves, or this service is told to stop. Returns why it is not to take
        over."""
        stop = self._stop
        tasks = TaskOwner()
        try:
            async with asyncio.timeout(READY_S) as limit:
                tasks.spawn(_expire(limit, stop), name="stop during an upgrade")
                while (message := await self._hear()) is not None:
                    if "ready" in message:
                        return _STOPPED if stop.is_set() else ""
                    if "failed" in message:
                        return str(message["failed"])
        except TimeoutError:
            if stop.is_set():
                return _STOPPED
            return f"the next service does not serve after {READY_S:g} s"
        except (OSError, ValueError) as error:
            return f"the next service is not understood: {error}"
        finally:
            await tasks.aclose()
        return "the next service has ended: its lines above say why"


async def _expire(limit: asyncio.Timeout, stop: asyncio.Event) -> None:
    await stop.wait()
    limit.reschedule(0.0)
