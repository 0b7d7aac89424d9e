"""Plays cases by number and reports what differs, as small as it becomes, with how to replay it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.differential.cases import Case, GrpcCase, smaller, to_json
from tests.differential.compare import difference
from tests.differential.generate import make_case
from tests.differential.stage import Stage

_COUNTED_S = 0.2
"""A Triton counts an execution a little after it has answered."""
_TRIES = 40
"""Smaller cases that are tried for one finding."""


@dataclass
class Finding:
    """A case whose answers differ."""

    number: int
    case: Case
    what: str

    def __str__(self) -> str:
        return (
            f"case {self.number}: {self.what}\n"
            f"  replay: python -m tests.differential --replay '{_quoted(to_json(self.case))}'"
        )


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")


@dataclass
class Report:
    """What a run has found."""

    played: int = 0
    http: int = 0
    findings: list[Finding] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Tritons that died, and of which case."""


def run(
    stage: Stage,
    seed: int,
    *,
    numbers: Iterator[int],
    seconds: float,
    tell: Callable[[str], object],
    most: int = 20,
) -> Report:
    """Play the cases of these numbers, for so long, or until that much was found.

    Args:
        stage: where.
        seed: of the cases.
        numbers: of the cases.
        seconds: how long at most.
        tell: gets each finding when it is made.
        most: findings after which it ends.
    """
    report = Report()
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() >= end or len(report.findings) >= most:
            break
        case = make_case(seed, number)
        finding = _play(stage, case, number)
        report.played += 1
        died = stage.died()
        if died:
            report.deaths.append(f"{', '.join(died)} died of case {number}: {to_json(case)}")
            tell(report.deaths[-1])
            stage.begin_anew()
        elif finding is not None:
            report.findings.append(finding)
            tell(str(finding))
            # One of them may have done what the other has refused.
            stage.begin_anew()
    return report


def _play(stage: Stage, case: Case, number: int) -> Finding | None:
    what = difference(case, *stage.play(case))
    if what and _is_about_statistics(case):
        time.sleep(_COUNTED_S)
        what = difference(case, *stage.play(case))
    if not what or stage.died():
        return Finding(number, case, what) if what else None
    return _smallest(stage, Finding(number, case, what))


def _is_about_statistics(case: Case) -> bool:
    if isinstance(case, GrpcCase):
        return case.method == "ModelStatistics"
    return case.path.endswith(b"/stats")


def _smallest(stage: Stage, finding: Finding) -> Finding:
    """The same finding with less around it. Both sides see each try, so they stay alike."""
    left = _TRIES
    candidates = smaller(finding.case)
    while candidates and left:
        case = candidates.pop(0)
        left -= 1
        what = difference(case, *stage.play(case))
        if stage.died():
            break
        if what:
            finding = Finding(finding.number, case, what)
            candidates = smaller(case)
    return finding
