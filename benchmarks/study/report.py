"""The page: goals, then a table and a picture for every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.load.proxies import TRITON_LB
from benchmarks.load.tables import Rows, aligned, number, piped
from benchmarks.study.bound import PERFECT, bound, is_apt
from benchmarks.study.contestants import DIRECT
from benchmarks.study.figures import Run, middle
from benchmarks.study.goals import Goal, judge
from benchmarks.study.gpus import Models
from benchmarks.study.journal import Journal
from benchmarks.study.predicted import SIMULATED, is_predictable, predict
from benchmarks.study.session import Played, capacity, fingerprint, seed_of

_INTRO = """\
Real Tritons, real balancers, and **kernels that are simulated by sleeping**: a model of the python
backend that sleeps as long as a GPU of the given speed would compute. So this shows what placing
and queueing requests makes of latency and throughput, and nothing of GPUs. All run on the
processors of one machine, over loopback.

Every contestant gets the same arrivals, in turns; latency counts from when a request was due. The
figures are medians of the runs. triton-lb has neither weights nor limits set: it runs with its
defaults. `-weighted` peers know the speed of each Triton, `haproxy-limits` has a queue before as
many requests as execute at once, and `haproxy-tuned` weights and limits found by trying. `perfect
(simulated)` knows all times and costs none: each request goes, in the order of arrival, to the
Triton that ends it first, with the times that these Tritons take when they are asked directly.
`triton-lb (simulated)` is what the simulation of the same scheduler says of the same arrivals.
"""
_READING = """\
`rate`: good answers a second while requests came; `in N ms`: those within so much of when the
request was due (goodput); `failed`: share without a good answer; `batch`: rows per execution;
`busy`: share of time that the instances of each Triton computed. Milliseconds. `p50` to `p99` are
of good answers only."""


@dataclass
class Chapter:
    """A part with the medians of its runs; `perfect` is in them where it says something."""

    played: Played
    medians: dict[str, dict[str, Run]]
    runs: int
    capacities: dict[str, float] = field(default_factory=dict)

    def goals(self) -> list[Goal]:
        """What was to be reached here."""
        return judge(self.played.part.name, self.medians, self.capacities)


def chapter(played: Played, journal: Journal, *, commit: str, scale: float) -> Chapter:
    """Gather what there is about a part."""
    part = played.part
    medians: dict[str, dict[str, Run]] = {}
    capacities, most = {}, 0
    for step in part.steps:
        rate = played.rate(step)
        most_rate = capacities[step.name] = capacity(played.measured, step.kinds)
        row = medians.setdefault(step.name, {})
        mark = fingerprint(part, step, commit, scale)
        for name in part.contestants:
            if runs := journal.runs(part.name, step.name, name, mark):
                row[name] = middle(runs)
                most = max(most, len(runs))
        seeds = [seed_of(each) for each in range(most)]
        asked = (rate, step.seconds * scale, step.kinds, played.measured)
        if TRITON_LB in row and rate and is_predictable(step.kinds, played.measured):
            row[SIMULATED] = predict(
                *asked, capacity=most_rate, seeds=seeds, budget_ms=part.budget_ms
            )
        if row and is_apt(step.kinds, played.measured, rate, most_rate):
            row[PERFECT] = bound(*asked, seeds=seeds, budget_ms=part.budget_ms)
    return Chapter(played, medians, most, capacities)


def rows(made: Chapter) -> Rows:
    """The table of a chapter."""
    part = made.played.part
    found: list[Sequence[str]] = [_head(part.budget_ms)]
    for step in part.steps:
        for name, run in made.medians.get(step.name, {}).items():
            found.append((f"{step.title}", name, *_cells(run)))
            found += [
                (f"{step.title}", f"{name}: {kind}", *_kind_cells(each))
                for kind, each in run.kinds.items()
            ]
    return found


def _head(budget_ms: float) -> Sequence[str]:
    return (
        *("load", "through", "rate", f"in {budget_ms:g} ms", "p50", "p90", "p99"),
        *("failed", "batch", "busy"),
    )


def _cells(run: Run) -> Sequence[str]:
    busy = " ".join(f"{each:.0%}".removesuffix("%") for each in run.utilisation)
    return (*_kind_cells(run.figures)[:6], f"{run.batch:.2f}" if run.batch else "", busy)


def _kind_cells(each: Any) -> Sequence[str]:
    return (
        f"{each.rate:.0f}",
        f"{each.goodput:.0f}",
        *(number(value) for value in (each.p50, each.p90, each.p99)),
        f"{each.failed:.1%}" if each.failed else "",
        "",
        "",
    )


def goal_rows(chapters: Sequence[Chapter]) -> Rows:
    """What was to be reached, and whether it was."""
    found: list[Sequence[str]] = [("Tritons and load", "of triton-lb", "limit", "measured")]
    found += [
        (f"{each.played.part.name}, {goal.step}", goal.what, goal.limit_text, goal.text)
        for each in chapters
        for goal in each.goals()
    ]
    return found


def missed(chapters: Sequence[Chapter]) -> list[str]:
    """One line for each goal that was missed, and for each triton-lb that did not take part."""
    lines = [
        f"{each.played.part.name}, {goal.step}: {goal.what}: {goal.text}, {goal.limit_text}"
        for each in chapters
        for goal in each.goals()
        if not goal.is_met
    ]
    return lines + [
        f"{each.played.part.name}: {name}: {error}"
        for each in chapters
        for name, error in each.played.errors.items()
        if name.startswith(TRITON_LB)
    ]


def text(chapters: Sequence[Chapter]) -> str:
    """For the terminal."""
    parts = [f"{each.played.part.title}\n\n{aligned(rows(each))}" for each in chapters]
    goals = goal_rows(chapters)
    return "\n\n".join((*parts, aligned(goals)) if len(goals) > 1 else parts)


def page(
    chapters: Sequence[Chapter], facts: Mapping[str, str], pictures: Mapping[str, str], more: str
) -> str:
    """For the repository; `more` is what other figures have to say."""
    goals = goal_rows(chapters)
    parts = ["# Scheduling, side by side", "", _INTRO]
    parts += [*(f"- {name}: {value}" for name, value in facts.items()), ""]
    if len(goals) > 1:
        parts += ["## Goals", "", piped(goals), ""]
    parts += ["## How to read the tables", "", _READING, ""]
    for made in chapters:
        part = made.played.part
        parts += [f"## {part.title}", "", _about(made), ""]
        if part.name in pictures:
            parts += [f"![{part.title}]({pictures[part.name]})", ""]
        parts += [piped(rows(made)), ""]
    return "\n".join((*parts, more)).rstrip() + "\n"


def _about(made: Chapter) -> str:
    part = made.played.part
    carried = ", ".join(
        f"{rate:.0f}/s" for rate in dict.fromkeys(round(each) for each in made.capacities.values())
    )
    steps = sorted({step.seconds for step in part.steps})
    lasting = " or ".join(f"{each:g}" for each in steps)
    lines = [
        f"`{part.name}`: {part.protocol.upper() if part.protocol == 'http' else 'gRPC'},"
        f" {made.runs} runs of {lasting} s; asked directly the Tritons carry {carried}"
        f" ({_times(made.played.measured)})."
    ]
    late = [run.late_ms for row in made.medians.values() for run in row.values()]
    if late:
        lines.append(
            f"Requests were sent {max(late):.1f} ms late at most (p99, median of the runs)."
        )
    if DIRECT in part.contestants:
        lines.append(f"`{DIRECT}`: one Triton without a balancer, with its share of the load.")
    lines += [f"{name} did not take part: {why}" for name, why in made.played.errors.items()]
    return "\n".join(lines)


def _times(fleet: Sequence[Models]) -> str:
    """How long each takes for one row, with its overhead."""
    each = [
        "/".join(f"{gpu.base_ms + gpu.row_ms:.1f}" for gpu in models.values()) for models in fleet
    ]
    return f"{', '.join(each)} ms"


def data(chapters: Sequence[Chapter], facts: Mapping[str, str]) -> dict[str, Any]:
    """For programs: the medians."""
    return {
        "facts": dict(facts),
        "parts": {
            made.played.part.name: {
                "steps": {
                    step: {name: asdict(run) for name, run in row.items()}
                    for step, row in made.medians.items()
                },
                "capacity": made.capacities,
                "goals": [asdict(goal) for goal in made.goals()],
                "errors": made.played.errors,
            }
            for made in chapters
        },
    }
