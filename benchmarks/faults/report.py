"""The page: a table with what was met and missed, by whom, and how the requests fared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.ledger import Joined, Kind, quantile
from benchmarks.faults.play import Played
from benchmarks.faults.rules import Judged
from benchmarks.load.proxies import TRITON_LB
from benchmarks.load.tables import Rows, aligned, piped

_INTRO = """\
Every fault of `benchmarks/faults/scenarios.py`, played in turn before the same three Tritons by
every contestant, with about half of the load that they can carry. Counted are requests that may run
twice and whose response had not begun; a client waits five seconds at most. `benchmarks/README.md`
says more.
"""


def verdict_rows(plays: Sequence[Played], contestants: Sequence[str]) -> Rows:
    """One row per scenario and rule; rules that hold everywhere are shown where one is missed."""
    rows: list[Sequence[str]] = [("fault", "what", "allowed", *contestants)]
    for played in plays:
        by_rule: dict[str, list[Judged]] = {}
        for judged in played.judged():
            by_rule.setdefault(judged.rule.what, []).append(judged)
        own = {rule.what for rule in played.scenario.rules}
        for what, all_judged in by_rule.items():
            if what not in own and all(each.is_met for each in all_judged):
                continue
            rule = all_judged[0].rule
            words = {each.contestant: _word(each) for each in all_judged}
            cells = [words.get(name, _absent(played, name)) for name in contestants]
            rows.append((played.scenario.title, what, f"{rule.limit:g} {rule.unit}", *cells))
        if not by_rule:
            errors = [_absent(played, name) for name in contestants]
            rows.append((played.scenario.title, "", "", *errors))
    return rows


def _word(judged: Judged) -> str:
    return f"{judged.text} {'met' if judged.is_met else 'missed'}"


def _absent(played: Played, name: str) -> str:
    return "failed" if name in played.errors else ""


def request_rows(plays: Sequence[Played]) -> Rows:
    """How requests fared: how many of which kind, which times, what failed."""
    kinds = (Kind.HTTP, Kind.GRPC, Kind.STREAM, Kind.STEP)
    head = ("fault", "through", *(f"{each.value}: failed" for each in kinds))
    rows: list[Sequence[str]] = [(*head, "p50 ms", "p99 ms", "longest ms", "run again")]
    for played in plays:
        for name, joined in played.evidence.items():
            rows.append((played.scenario.name, name, *_requests(joined, kinds)))
    return rows


def _requests(joined: Joined, kinds: Sequence[Kind]) -> list[str]:
    cells = []
    for kind in kinds:
        asked = [each for each in joined.asked if each.kind is kind]
        cells.append(f"{len(asked)}: {sum(bool(each.error) for each in asked)}" if asked else "")
    took = [each.took * 1000.0 for each in joined.counted() if not each.error]
    for share in (0.5, 0.99, 1.0):
        found = quantile(took, share)
        cells.append("" if found is None else f"{found:.0f}")
    cells.append(str(sum(len(runs) > 1 for runs in joined.executed.values())))
    return cells


def missed(plays: Sequence[Played]) -> list[str]:
    """What triton-lb missed, one line each."""
    lines = [
        f"{played.scenario.name}: {judged.rule.what}: {judged.text}, allowed {judged.rule.limit:g}"
        for played in plays
        for judged in played.judged()
        if judged.contestant == TRITON_LB and not judged.is_met
    ]
    return lines + [
        f"{played.scenario.name}: {played.errors[TRITON_LB]}"
        for played in plays
        if TRITON_LB in played.errors
    ]


def text(plays: Sequence[Played], contestants: Sequence[str]) -> str:
    """For the terminal."""
    return "\n\n".join((aligned(verdict_rows(plays, contestants)), aligned(request_rows(plays))))


def page(plays: Sequence[Played], contestants: Sequence[str], facts: Mapping[str, str]) -> str:
    """For the repository."""
    parts = [
        "# Faults, side by side",
        "",
        _INTRO,
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        piped(verdict_rows(plays, contestants)),
        "",
        "## Requests",
        "",
        "`failed` counts all, begun or not; `run again` those that more than one Triton began.",
        "",
        piped(request_rows(plays)),
        "",
    ]
    return "\n".join(parts)


def data(plays: Sequence[Played]) -> list[dict[str, Any]]:
    """For programs: figures, and the texts of what failed."""
    return [
        {
            "scenario": played.scenario.name,
            "judged": [
                {
                    "what": each.rule.what,
                    "contestant": each.contestant,
                    "measured": each.measured,
                    "limit": each.rule.limit,
                    "met": each.is_met,
                }
                for each in played.judged()
            ],
            "errors": played.errors,
            "failures": {
                name: Counter(
                    f"{each.kind.value}: {each.error[:200]}" for each in joined.asked if each.error
                ).most_common(20)
                for name, joined in played.evidence.items()
            },
            "wrong": {
                name: [f"{each.id} {each.kind.value}: {each.wrong}" for each in joined.wrong()[:20]]
                for name, joined in played.evidence.items()
            },
        }
        for played in plays
    ]
