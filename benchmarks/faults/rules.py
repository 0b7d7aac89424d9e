"""What a scenario allows: each rule takes a figure from the joined ledgers and compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.faults.ledger import Asked, Joined, Kind, quantile
from benchmarks.load.proxies import TRITON_LB

Evidence = Mapping[str, Joined]
"""Of one scenario, by contestant."""


@dataclass(frozen=True)
class Rule:
    """One figure and its limit.

    `figure` gets the evidence of all contestants and the name of the one that is judged; None
    means that there is nothing to judge.
    """

    what: str
    limit: float
    figure: Callable[[Evidence, str], float | None]
    unit: str = ""
    ours_only: bool = False
    """A matter of what only triton-lb can do; the figure is shown for it alone."""
    peer: str = ""
    """With whom it compares; where that one did not take part there is nothing to judge."""


def failed(at_most: int = 0) -> Rule:
    """Requests that may run twice and whose response had not begun."""

    def figure(evidence: Evidence, name: str) -> float:
        return sum(bool(each.error) for each in evidence[name].counted())

    return Rule("failed requests", at_most, figure)


def failed_share(begin: str, end: str, under: float) -> Rule:
    """Share of the same between two moments, in percent."""

    def figure(evidence: Evidence, name: str) -> float | None:
        counted = evidence[name].counted(*_window(evidence[name], begin, end))
        if not counted:
            return None
        return 100.0 * sum(bool(each.error) for each in counted) / len(counted)

    return Rule("failed requests during the fault", under, figure, "%")


def failed_steps(at_most: int = 0) -> Rule:
    """Failed steps of sequences, of the one who keeps them together."""

    def figure(evidence: Evidence, name: str) -> float:
        steps = [each for each in evidence[name].asked if each.kind is Kind.STEP]
        return sum(bool(each.error) for each in steps)

    return Rule("failed steps of sequences", at_most, figure, ours_only=True)


def slow_after_kill(within_s: float, factor: float, peer: str) -> Rule:
    """p99 of good answers to requests due soon after a kill, against a peer's."""

    def p99(joined: Joined) -> float | None:
        kills = joined.times("kill")
        took = [
            each.took
            for at in kills
            for each in joined.counted(at, at + within_s)
            if not each.error
        ]
        return quantile(took, 0.99)

    def figure(evidence: Evidence, name: str) -> float | None:
        ours, theirs = p99(evidence[name]), p99(evidence[peer])
        return None if ours is None or not theirs else ours / theirs

    what = f"p99 in the {within_s:g} s after a kill, of {peer}'s"
    return Rule(what, factor, figure, "x", peer=peer)


def late_at(number: int, begin: str, after_s: float, end: str, patience_s: float) -> Rule:
    """Requests that still went to a hung Triton: failed, executed there, or answered late."""

    def figure(evidence: Evidence, name: str) -> float:
        joined = evidence[name]
        start, stop = _window(joined, begin, end)
        server = f"triton-{number}"
        # What is under way when it goes on may be answered by it.
        window = joined.counted(start + after_s, stop - patience_s)
        return sum(_was_late(joined, each, server, patience_s) for each in window)

    return Rule(f"new requests that went there after {after_s:g} s", 0, figure)


def _was_late(joined: Joined, asked: Asked, server: str, patience_s: float) -> bool:
    went = any(run.server == server for run in joined.executed.get(asked.id, ()))
    return went or bool(asked.error) or asked.took > patience_s


def poisoned(within_s: float, at_most: int) -> Rule:
    """Executions that a poisoned Triton failed soon after the poison."""

    def figure(evidence: Evidence, name: str) -> float:
        joined = evidence[name]
        begin = joined.times("tell")[0]
        runs = [run for each in joined.executed.values() for run in each]
        return sum(run.failed and begin <= run.at < begin + within_s for run in runs)

    return Rule(f"failures there in the first {within_s:g} s", at_most, figure)


def note(name: str, what: str, limit: float, *, at_least: bool = False, unit: str = "") -> Rule:
    """A figure that a step noted; with `at_least` what is missing to the limit is judged."""

    def figure(evidence: Evidence, contestant: str) -> float | None:
        value = evidence[contestant].notes.get(name)
        if value is None:
            return None
        return limit - value if at_least else value

    text = f"{what}, missing of {limit:g}" if at_least else what
    return Rule(text, 0.0 if at_least else limit, figure, unit, ours_only=at_least)


def idle_servers(begin: str, end: str, longest_s: float) -> Rule:
    """Tritons that got nothing for so long while the load ran: they were out of rotation."""

    def figure(evidence: Evidence, name: str) -> float:
        joined = evidence[name]
        start, stop = _window(joined, begin, end)
        times: dict[str, list[float]] = {}
        for runs in joined.executed.values():
            for run in runs:
                times.setdefault(run.server, []).append(run.at)
        return sum(
            _longest_gap(sorted(t for t in seen if start <= t < stop), start, stop) > longest_s
            for seen in times.values()
        )

    return Rule(f"Tritons without a request for {longest_s:g} s", 0, figure)


def _longest_gap(times: list[float], start: float, stop: float) -> float:
    edges = [start, *times, stop]
    return max(after - before for before, after in pairwise(edges))


def p99_factor(begin: str, after_s: float, end: str, factor: float) -> Rule:
    """p99 from some seconds after a moment on, against p99 before it."""

    def figure(evidence: Evidence, name: str) -> float | None:
        joined = evidence[name]
        start, stop = _window(joined, begin, end)
        before = quantile((each.took for each in joined.counted(0.0, start)), 0.99)
        after = quantile((each.took for each in joined.counted(start + after_s, stop)), 0.99)
        return None if not before or after is None else after / before

    return Rule(f"p99 from {after_s:g} s after it on, of that before", factor, figure, "x")


def answered_within(begin: str, after_s: float, end: str, limit_s: float) -> Rule:
    """p99 of the time to any answer, good or bad, in milliseconds."""

    def figure(evidence: Evidence, name: str) -> float | None:
        joined = evidence[name]
        start, stop = _window(joined, begin, end)
        took = [each.took for each in joined.counted(start + after_s, stop)]
        found = quantile(took, 0.99)
        return None if found is None else found * 1000.0

    return Rule("p99 of answers while down", limit_s * 1000.0, figure, "ms")


def failed_after(begin: str, after_s: float, seconds: float) -> Rule:
    """Failed requests some time after a moment."""

    def figure(evidence: Evidence, name: str) -> float | None:
        times = evidence[name].times(begin)
        if not times:
            return None
        window = evidence[name].counted(times[0] + after_s, times[0] + after_s + seconds)
        return sum(bool(each.error) for each in window) if window else None

    return Rule(f"failed requests from {after_s:g} s after their ports open on", 0, figure)


def _window(joined: Joined, begin: str, end: str) -> tuple[float, float]:
    ends = [at for at in joined.times(end) if at > joined.times(begin)[0]]
    return joined.times(begin)[0], ends[0]


# What holds in every scenario


def _wrong(evidence: Evidence, name: str) -> float:
    return len(evidence[name].wrong())


def _twice(evidence: Evidence, name: str) -> float:
    return len(evidence[name].twice())


def _outcomes(evidence: Evidence, name: str) -> float:
    return len(evidence[name].without_one_outcome())


ALWAYS = (
    Rule("wrong answers", 0, _wrong),
    Rule("executed twice that must not be", 0, _twice),
    Rule("requests without exactly one outcome", 0, _outcomes),
)


@dataclass(frozen=True)
class Judged:
    """What a rule says of a contestant."""

    rule: Rule
    contestant: str
    measured: float | None

    @property
    def is_met(self) -> bool:
        """A figure that is missing is a rule that is missed."""
        return self.measured is not None and self.measured <= self.rule.limit

    @property
    def text(self) -> str:
        if self.measured is None:
            return "not measured"
        return f"{self.measured:.4g}{' ' if self.rule.unit == 'ms' else ''}{self.rule.unit}"


def judge(rules: tuple[Rule, ...], evidence: Evidence) -> list[Judged]:
    """Judge every contestant of a scenario by every rule that concerns it."""
    return [
        Judged(rule, name, rule.figure(evidence, name))
        for rule in (*rules, *ALWAYS)
        for name in evidence
        if (name == TRITON_LB or not rule.ours_only) and (not rule.peer or rule.peer in evidence)
    ]
