"""What two processes of an upgrade tell each other, and the conversation that carries it.

Settings come from the file; whether backends live is found out by probes; what is learnt of models
is asked for again. What is told here exists nowhere else: what operators said, and which sequences
run. Both processes go on telling each other of sequences that begin and end, and of stops, until
the one before has ended. To the successor go reloads that the process before was asked for.

The connection ends when the other process ends, whatever ended it. So a crash needs no message, and
a stop has one: without it, a process goes on alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from lb.control.membership import RuntimeChanges, Word
from lb.domain.backend import AdminState
from lb.domain.names import to_bytes, to_text
from lb.runtime.predecessor import MOST_UNSENT, line, unsent
from lb.runtime.sequence_news import Questions, Row, SequenceNews
from lb.runtime.wiring import LoadBalancer
from lb.settings.backends import BackendSettings
from lb.settings.plain import plain

_log = logging.getLogger(__name__)


def operator_state(balancer: LoadBalancer) -> dict[str, Any]:
    """What operators said while the process ran."""
    changes = balancer.control.membership.runtime_changes
    words = changes.words.items()
    return {
        "added": [plain(entry) for entry in changes.added],
        "removed": sorted(changes.removed),
        "states": {name: word.admin.value for name, word in words},
        "finish_by": {name: word.finish_by for name, word in words if word.finish_by is not None},
        "drained_models": {
            name: [*map(to_text, sorted(word.drained_models))] for name, word in words
        },
        "variants": balancer.relay.dispatcher.variants.export(),
    }


def resume_operator_state(balancer: LoadBalancer, state: Mapping[str, Any]) -> None:
    """Take over what operators said to the process before. What this version cannot use is left
    out, and told."""
    added = []
    for entry in state.get("added", ()):
        try:
            added.append(BackendSettings.model_validate(entry))
        except ValidationError as error:
            fields = {"backend": entry.get("name"), "why": str(error.errors()[0]["msg"])}
            _log.warning("backend that an operator added cannot be taken over", extra=fields)
    states, limits = state.get("states", {}), state.get("finish_by", {})
    models = state.get("drained_models", {})
    words = {
        name: Word(
            AdminState(states.get(name, AdminState.ENABLED)),
            limits.get(name),
            frozenset(map(to_bytes, models.get(name, ()))),
        )
        for name in {**states, **models}
    }
    balancer.control.membership.resume(
        RuntimeChanges(tuple(added), frozenset(state.get("removed", ())), words)
    )
    balancer.relay.dispatcher.variants.resume(state.get("variants", {}))


def sequence_news(balancer: LoadBalancer) -> SequenceNews:
    """What other processes are told of the open sequences of a process, and tell it of theirs."""
    directory = balancer.control.directory
    return SequenceNews(
        balancer.relay.dispatcher.steps.table,
        lambda: {record.backend.name: record.backend for record in directory.records},
    )


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
        self._questions = Questions(partial(self.say, "sequences_asked"))
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

    def tell(self, rows: Sequence[Row]) -> None:
        """Send news of sequences, unless the other process has stopped reading."""
        if unsent(self._writer) < MOST_UNSENT:
            self._writer.write(line("sequences", rows))

    def share_news(self) -> None:
        """Send it every sequence that begins or ends from now on."""
        self.shares_news = True
        self._news.follow(self.tell, self._questions.ask)

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
        if "sequences_asked" in event:
            self._answer(event["sequences_asked"])
        if "sequences_answered" in event:
            self._questions.answered(event["sequences_answered"])
        if "stop" in event:
            self._stop(self, bool(event["stop"]))
        if "reload" in event and self._reload is not None:
            self._reload(str(event["reload"]))
        return event

    def _answer(self, number: int) -> None:
        """It asks what is known of sequences. What is known here it was told; others may know
        more."""
        question = self._news.ask(but=self.tell)
        question.when_over(partial(self.say, "sequences_answered", number))

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
        self._questions.close()
        self._writer.close()
