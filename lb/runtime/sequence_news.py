"""What processes of one machine tell each other of open sequences, as rows of JSON.

A row has the model, the id, the name of the backend and the lifetime in seconds. Without a backend
the sequence is over. To hear of a sequence twice changes nothing. Rows with a fifth value say when
that was, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from lb.balancing.sequences import OpenSequence, SequenceTable
from lb.domain.backend import Backend
from lb.domain.names import to_bytes, to_text
from lb.domain.sequence import SequenceKey

_ROWS_AT_ONCE: Final = 500
"""Sequences that are told of in one iteration of the loop: about two milliseconds."""

Row = Sequence[Any]
RowKey = tuple[str, int | str]
"""Model and id."""
Tell = Callable[[Sequence[Row]], None]
"""Tells another process of rows."""


def row_key(row: Row) -> RowKey:
    """Whose row it is."""
    return row[0], row[1]


def is_over(row: Row) -> bool:
    """Whether it says that the sequence has ended."""
    return not row[2]


def end_row(key: RowKey) -> Row:
    """The row that says that a sequence has ended."""
    return [*key, "", 0.0]


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
        self._others: list[Tell] = []
        self._speaker: Tell | None = None
        """Who is being heard."""

    def follow(self, tell: Tell) -> None:
        """Tell somebody of what begins or ends from now on."""
        self._others.append(tell)
        self._table.on_change = self._say

    def forget(self, tell: Tell) -> None:
        """Tell them no more."""
        self._others = [each for each in self._others if each != tell]
        if not self._others:
            self._table.on_change = None

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
        for tell in self._others:
            if tell != self._speaker:
                tell([_row(sequence)])


def _row(sequence: OpenSequence) -> Row:
    key = sequence.key
    return [to_text(key.model), key.id, sequence.backend, sequence.lifetime_s]
