"""A merge whose work is done at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lb.kserve.merge.form import Merge
from lb.kserve.merge.statistics import StatisticsAnswer
from lb.kserve.merge.steps import finish


class AtOnce:
    """A merge, without the steps."""

    def __init__(self, merge: Merge[Any]) -> None:
        self.merge = merge

    def read(self, body: bytes, asked_at: float = 0.0) -> Any:
        """An answer. Statistics were asked for at `asked_at`, and came half a second later."""
        answer = finish(self.merge.read(body))
        if isinstance(answer, StatisticsAnswer):
            answer.asked_at, answer.answered_at = asked_at, asked_at + 0.5
        return answer

    def combine(self, answers: Sequence[tuple[str, Any]]) -> bytes:
        """One of many."""
        return finish(self.merge.combine(answers))
