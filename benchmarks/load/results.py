"""What was measured, and how two proxies compare: values only."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Sample:
    """One measurement, or the median of several.

    `cpu_us` is the CPU of the proxy's process tree per request; `busy` the share of its core that
    this took; `others` the share of that core that went to somebody else (noise); `load_busy` the
    share of the load core in use: near 1 with `busy` well under 1, the load was the limit.
    """

    cpu_us: float
    rate: float
    p50_us: float
    p99_us: float
    p999_us: float
    rss_bytes: float
    busy: float
    others: float
    load_busy: float


@dataclass
class Result:
    """The samples of one proxy in one cell, or why there are none.

    `error`: it failed there, which fails the run; `left_out`: it was not tried, for that reason.
    """

    samples: list[Sample] = field(default_factory=list)
    error: str = ""
    left_out: str = ""

    def median(self) -> Sample | None:
        """Field by field."""
        if not self.samples or self.error:
            return None
        rows = [asdict(sample) for sample in self.samples]
        return Sample(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


Row = dict[str, Result]
"""Proxy name to its result in one cell."""

Results = dict[str, Row]
"""Cell name to its row."""


def ratio(row: Row, ours: str, theirs: str, figure: str = "cpu_us") -> float | None:
    """Median of the rounds' ratios: what slows a whole round down cancels out.

    Args:
        row: the results of a cell.
        ours: proxy of the numerator.
        theirs: proxy of the denominator.
        figure: a field of Sample.
    """
    if any(name not in row or row[name].median() is None for name in (ours, theirs)):
        return None
    ratios = [
        getattr(mine, figure) / getattr(other, figure)
        for mine, other in zip(row[ours].samples, row[theirs].samples, strict=True)
        if getattr(other, figure)
    ]
    return statistics.median(ratios) if ratios else None
