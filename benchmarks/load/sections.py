"""What a part of the benchmark hands to the report: a table with its explanation, and verdicts.

The cells are one such part; stalls, idle connections and real clients are others, each made by
`run(plan) -> Section` of its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """One line of the table of targets: a figure against its limit.

    `measured` is None where the run has no such figure.
    """

    target: str
    cell: str
    to: str
    measured: float | None
    limit: float

    @property
    def word(self) -> str:
        """`met`, `missed` or `not measured`; what is printed is what is compared."""
        if self.measured is None:
            return "not measured"
        return "met" if round(self.measured, 2) <= self.limit else "missed"


@dataclass(frozen=True)
class Section:
    """One more part of the report.

    The first of `rows` is the head of the table; `data` goes to the JSON file under `name`;
    `failures` are one line each and make the run end with 1.
    """

    name: str
    title: str
    rows: Sequence[Sequence[str]]
    notes: str = ""
    data: object = None
    verdicts: Sequence[Verdict] = ()
    failures: Sequence[str] = field(default_factory=tuple)
