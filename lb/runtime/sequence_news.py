"""What processes of one machine tell each other of open sequences, as rows of JSON.

A row has the model, the id, the name of the backend and the lifetime in seconds. Without a backend
the sequence is over. To hear of a sequence twice changes nothing. Rows with a fifth value say when
that was, in monotonic seconds.

News take their time. A process that gets a step of a sequence of which it has not heard asks the
others, and has the step wait for their answers. Each answers behind all that it has told, on the
same way, and when those have answered that it hears itself. The messages are `sequences` with rows,
and `sequences_asked` and `sequences_answered` with the number of a question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from lb.balancing.sequences import OpenSequence, SequenceTable
from lb.domain.backend import Backend
from lb.domain.names import to_bytes, to_text
from lb.domain.sequence import Question, SequenceKey

_ROWS_AT_ONCE: Final = 500
"""Sequences that are told of in one iteration of the loop: about two milliseconds."""
_ANSWER_S: Final = 2.0
"""How long an answer is waited for. The other process may be of a version that gives none, or stand
still; a machine without free cores makes one wait for tenths of a second."""

Row = Sequence[Any]
RowKey = tuple[str, int | str]
"""Model and id."""
Tell = Callable[[Sequence[Row]], None]
"""Tells another process of rows."""
Ask = Callable[[], Question]
"""Asks another process what it has told that has not come yet."""


def row_key(row: Row) -> RowKey:
    """Whose row it is."""
    return row[0], row[1]


def is_over(row: Row) -> bool:
    """Whether it says that the sequence has ended."""
    return not row[2]


def end_row(key: RowKey) -> Row:
    """The row that says that a sequence has ended."""
    return [*key, "", 0.0]


class Questions:
    """Questions to one other process. One is under way at a time, and the next one is for all that
    ask meanwhile: however many steps come, the other process is asked as often as it answers."""

    def __init__(self, send: Callable[[int], None], limit_s: float = _ANSWER_S) -> None:
        """
        Args:
            send: sends it a question, by its number.
            limit_s: how long an answer is waited for.
        """
        self._send = send
        self._limit_s = limit_s
        self._count = 0
        self._sent: Question | None = None
        self._next: Question | None = None

    def ask(self) -> Question:
        """Ask it, now or behind the question that is under way."""
        question = self._next
        if question is None:
            question = self._next = Question()
            asyncio.get_running_loop().call_later(self._limit_s, self._end, question)
        if self._sent is None:
            self._send_next()
        return question

    def answered(self, number: int) -> None:
        """It has answered a question."""
        if self._sent is not None and number == self._count:
            self._end(self._sent)

    def ask_again(self) -> None:
        """It may not have got the question that is under way, and does now."""
        if self._sent is not None:
            self._count += 1
            self._send(self._count)

    def close(self) -> None:
        """It is gone."""
        for question in (self._sent, self._next):
            if question is not None:
                question.end()
        self._sent = self._next = None

    def _end(self, question: Question) -> None:
        """A question is answered, or that takes too long."""
        question.end()
        if question is self._next:
            self._next = None
        elif question is self._sent:
            self._send_next()

    def _send_next(self) -> None:
        self._sent, self._next = self._next, None
        if self._sent is not None:
            self._count += 1
            self._send(self._count)


def ask_all(asks: Sequence[Ask]) -> Question:
    """Ask several processes: over when all have answered, at once where there is none."""
    asked = [ask() for ask in asks]
    whole, left = Question(), len(asked)

    def one_is_over() -> None:
        nonlocal left
        left -= 1
        if not left:
            whole.end()

    for question in asked:
        question.when_over(one_is_over)
    if not asked:
        whole.end()
    return whole


class SequenceNews:
    """Tells other processes of every sequence that begins or ends here, and hears of theirs.

    Both ways, as long as both live: a client may begin a sequence on a connection to one of them
    and go on over one that it has to the other. What one of them said is told to the others only.
    """

    def __init__(self, table: SequenceTable, backends: Callable[[], Mapping[str, Backend]]) -> None:
        """
        Args:
            table: of this process.
            backends: returns the backends that there are, by name.
        """
        self._table = table
        self._backends = backends
        self._others: list[tuple[Tell, Ask]] = []
        self._speaker: Tell | None = None
        """Who is being heard."""

    def follow(self, tell: Tell, ask: Ask) -> None:
        """Tell somebody of what begins or ends from now on, and ask them what they know."""
        self._others.append((tell, ask))
        self._table.on_change = self._say
        self._table.ask = self.ask

    def forget(self, tell: Tell) -> None:
        """Tell them no more."""
        self._others = [each for each in self._others if each[0] != tell]
        if not self._others:
            self._table.on_change = self._table.ask = None

    def ask(self, but: Tell | None = None) -> Question:
        """Ask all others what they know of sequences.

        Args:
            but: who is not asked.
        """
        return ask_all([ask for tell, ask in self._others if tell != but])

    def hear(self, rows: Sequence[Row], speaker: Tell | None = None) -> None:
        """Take over what somebody tells.

        Args:
            rows: of sequences.
            speaker: how to tell them; they need not hear it again.
        """
        now, backends = monotonic(), self._backends()
        self._speaker = speaker
        try:
            for model, sequence_id, backend, lifetime_s, *used_at in rows:
                key = SequenceKey(to_bytes(model), sequence_id)
                at = used_at[0] if used_at else now
                if not backend and self._table.used_at(key) > at:
                    continue  # it was started again
                sequence = OpenSequence(key, backend, lifetime_s)
                self._table.adopt(sequence, backends.get(backend), at)
        finally:
            self._speaker = None

    def parts(self) -> Iterator[list[Row]]:
        """All open sequences, in parts; between two of them the loop may turn."""
        for part in self._exported():
            yield [_row(each) for each in part]

    def timed_parts(self) -> Iterator[list[Row]]:
        """As `parts`, with the time of the last step of each here."""
        for part in self._exported():
            yield [[*_row(each), each.used_at] for each in part]

    def _exported(self) -> Iterator[list[OpenSequence]]:
        begin = 0
        while (part := self._table.export(begin, _ROWS_AT_ONCE)) is not None:
            if part:
                yield part
            begin += _ROWS_AT_ONCE

    def is_known(self, row: Row) -> bool:
        """Whether the sequence of a row is open here, or was lost with its backend."""
        key = SequenceKey(to_bytes(row[0]), row[1])
        return self._table.backend_of(key) is not None or self._table.is_lost(key)

    def _say(self, sequence: OpenSequence) -> None:
        for tell, _ in self._others:
            if tell != self._speaker:
                tell([_row(sequence)])


def _row(sequence: OpenSequence) -> Row:
    key = sequence.key
    return [to_text(key.model), key.id, sequence.backend, sequence.lifetime_s]
