"""What a part of the benchmark hands to the report: a table with its explanation, and verdicts.

The cells are one such part; stalls, idle connections and real clients are others, each made by
`run(plan) -> Section` of its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.load.proxies import TRITON_LB


@dataclass(frozen=True)
class Verdict:
    """A figure of one triton-lb against its limit.

    `of` is the triton-lb that is judged. `measured` is None where the run has no such figure,
    `limit` where none was set: the figure is shown all the same.
    """

    target: str
    cell: str
    to: str
    measured: float | None
    limit: float | None
    of: str = TRITON_LB

    @property
    def word(self) -> str:
        """`met`, `missed`, `no limit` or `not measured`; what is printed is what is compared."""
        if self.measured is None:
            return "not measured"
        if self.limit is None:
            return "no limit"
        return "met" if round(self.measured, 2) <= self.limit else "missed"

    @property
    def text(self) -> str:
        """The figure, the word, and by how much."""
        if self.measured is None:
            return self.word
        if self.limit is None:
            return f"{self.measured:.2f}"
        share = round(self.measured, 2) / self.limit - 1
        return f"{self.measured:.2f} {self.word} ({share:+.0%})"


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
