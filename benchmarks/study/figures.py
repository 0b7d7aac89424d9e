"""What a run comes to: rates, latencies, what each Triton did; and the median of several runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.tally import percentile
from benchmarks.study.generator import Outcome
from benchmarks.study.trace import Kind
from benchmarks.study.wires import GOOD


@dataclass(frozen=True)
class Figures:
    """Of one run, or of one kind of request in it; latencies of good answers, in milliseconds."""

    asked: int
    """Requests that were due."""
    rate: float
    """Good answers a second, while requests came."""
    goodput: float
    """Good answers a second within the budget of each request, while requests came."""
    p50: float
    p90: float
    p99: float
    mean: float
    failed: float
    """Share of what was due that has no good answer."""


@dataclass(frozen=True)
class Run:
    """One measurement, as the journal keeps it."""

    figures: Figures
    kinds: Mapping[str, Figures]
    """By kind of request, where there are several."""
    offered: float
    """Requests a second that were due."""
    utilisation: Sequence[float]
    """Per Triton: the share of time that its instances computed."""
    batch: float
    """Rows per execution, all Tritons together."""
    shares: Sequence[float]
    """Per Triton: its part of all rows."""
    late_ms: float
    """p99 of how late requests were sent: the load generator's own fault."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """What was not good, by what it was."""


def figures(outcomes: Sequence[Outcome], seconds: float, budget_ms: float) -> Figures:
    """Add up the outcomes of `seconds` of load; a budget of 0 ms is none."""
    good = [each for each in outcomes if each.what == GOOD]
    ordered = sorted(1000.0 * (each.ended - each.due) for each in good)
    done = [each for each in good if each.ended <= seconds]
    in_budget = [
        each for each in done if not budget_ms or 1000.0 * (each.ended - each.due) <= budget_ms
    ]
    return Figures(
        asked=len(outcomes),
        rate=len(done) / seconds,
        goodput=len(in_budget) / seconds,
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        mean=statistics.fmean(ordered) if ordered else 0.0,
        failed=1.0 - len(good) / len(outcomes) if outcomes else 0.0,
    )


def by_kind(
    outcomes: Sequence[Outcome], kinds: Sequence[Kind], seconds: float, budget_ms: float
) -> dict[str, Figures]:
    """The same for each kind; nothing where there is but one."""
    if len(kinds) < 2:
        return {}
    return {
        kind.name: figures([each for each in outcomes if each.kind == place], seconds, budget_ms)
        for place, kind in enumerate(kinds)
    }


def failures(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """What was not good, most frequent first."""
    return dict(Counter(each.what for each in outcomes if each.what != GOOD).most_common())


def lateness_ms(outcomes: Sequence[Outcome]) -> float:
    """p99 of the time from when a request was due to when it was sent."""
    return percentile(sorted(1000.0 * (each.sent - each.due) for each in outcomes), 0.99)


def middle(runs: Sequence[Run]) -> Run:
    """Figure by figure the median of some runs; failures are added up."""
    failed: Counter[str] = Counter()
    for run in runs:
        failed.update(run.outcomes)
    names = runs[0].kinds
    return Run(
        figures=_middle([run.figures for run in runs]),
        kinds={name: _middle([run.kinds[name] for run in runs]) for name in names},
        offered=statistics.median(run.offered for run in runs),
        utilisation=_columns([run.utilisation for run in runs]),
        batch=statistics.median(run.batch for run in runs),
        shares=_columns([run.shares for run in runs]),
        late_ms=statistics.median(run.late_ms for run in runs),
        outcomes=dict(failed.most_common()),
    )


def _middle(some: Sequence[Figures]) -> Figures:
    names = Figures.__dataclass_fields__
    values = {name: statistics.median(getattr(each, name) for each in some) for name in names}
    return Figures(**{**values, "asked": round(values["asked"])})


def _columns(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def run_from(said: Mapping[str, Any]) -> Run:
    """What `dataclasses.asdict` made of a run."""
    kinds = {name: Figures(**each) for name, each in said["kinds"].items()}
    return Run(**{**said, "figures": Figures(**said["figures"]), "kinds": kinds})
