"""The fault suite: the ledgers are joined, and the rules judge what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.contestants import TUNED
from benchmarks.faults.ledger import (
    Asked,
    BackendLedgers,
    ClientLedger,
    Execution,
    Joined,
    Kind,
    join,
    parse_line,
    quantile,
)
from benchmarks.faults.rules import (
    ALWAYS,
    Rule,
    failed,
    failed_after,
    failed_share,
    idle_servers,
    judge,
    late_at,
    note,
    p99_factor,
    poisoned,
    slow_after_kill,
)
from benchmarks.load.proxies import TRITON_LB

HERE, THERE = "triton-0", "triton-1"


def asked(number: int, *, at: float = 0.0, took: float = 0.05, **facts: object) -> Asked:
    """One request that was answered well, but for the given facts."""
    made = Asked(f"q{number}", Kind.GRPC, 256, at, at + took, outcomes=1, server=HERE)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def run(number: int, server: str = HERE, *, at: float = 0.0, is_bad: bool = False) -> Execution:
    return Execution(f"q{number}", server, at, is_bad)


def figure(rule: Rule, joined: Joined) -> float | None:
    return rule.figure({TRITON_LB: joined}, TRITON_LB)


def always(joined: Joined) -> list[float | None]:
    """Wrong answers, executed twice, without one outcome."""
    return [figure(rule, joined) for rule in ALWAYS]


def test_good_answers_break_no_rule() -> None:
    joined = join([asked(1), asked(2)], [run(1), run(2)])
    assert always(joined) == [0, 0, 0]
    assert figure(failed(), joined) == 0


def test_answer_that_nobody_executed_is_wrong() -> None:
    assert always(join([asked(1)], []))[0] == 1
    assert always(join([asked(1)], [run(1, THERE)]))[0] == 1


def test_answer_of_another_request_is_wrong() -> None:
    assert always(join([asked(1, wrong="q2:77 instead of q1:78")], [run(1)]))[0] == 1


def test_only_steps_must_not_run_twice() -> None:
    twice = [run(1), run(1, THERE)]
    assert always(join([asked(1)], twice))[1] == 0
    assert always(join([asked(1, kind=Kind.STEP)], twice))[1] == 1


@pytest.mark.parametrize("outcomes", [0, 2])
def test_every_request_has_exactly_one_outcome(outcomes: int) -> None:
    assert always(join([asked(1, outcomes=outcomes)], [run(1)]))[2] == 1


def test_failure_after_the_response_began_is_not_counted() -> None:
    lost = [asked(1, error="lost"), asked(2, error="lost", response_begun=True)]
    assert figure(failed(), join(lost, [])) == 1


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.BAD, Kind.DEATH])
def test_failures_of_steps_and_of_bad_requests_are_not_counted(kind: Kind) -> None:
    assert figure(failed(), join([asked(1, kind=kind, error="refused")], [])) == 0


def test_share_is_of_what_was_due_during_the_fault() -> None:
    requests = [asked(n, at=n, error="lost" if n == 5 else "") for n in range(10)]
    joined = join(requests, [], [("tell", 4.0), ("heal", 8.0)])
    assert figure(failed_share("tell", "heal", 1.0), joined) == 25.0


def test_request_that_went_to_a_frozen_server_late_is_found() -> None:
    rule = late_at(1, "freeze", 2.0, "thaw", 1.0)
    marks = [("freeze", 0.0), ("thaw", 20.0)]
    for late in (
        join([asked(1, at=5.0, error="deadline")], [], marks),
        join([asked(1, at=5.0, took=4.0)], [run(1)], marks),
        join([asked(1, at=5.0)], [run(1), run(1, THERE, at=20.1)], marks),
    ):
        assert figure(rule, late) == 1
    early = join([asked(1, at=1.0, error="deadline")], [], marks)
    good = join([asked(1, at=5.0)], [run(1)], marks)
    assert figure(rule, early) == figure(rule, good) == 0


def test_failures_of_a_poisoned_server_are_counted_for_a_while() -> None:
    runs = [run(1, is_bad=True, at=1.0), run(2, at=1.0), run(3, is_bad=True, at=9.0)]
    joined = join([asked(n) for n in (1, 2, 3)], runs, [("tell", 0.5)])
    assert figure(poisoned(5.0, 10), joined) == 1


def test_server_out_of_rotation_is_seen_by_its_pause() -> None:
    runs = [run(n, at=float(n)) for n in range(10)] + [run(20, THERE, at=1.0)]
    joined = join([asked(n) for n in range(21)], runs, [("bad", 0.0), ("good", 9.0)])
    assert figure(idle_servers("bad", "good", 2.0), joined) == 1


def test_p99_is_compared_with_that_before_the_fault() -> None:
    requests = [asked(n, at=n, took=0.1) for n in range(5)]
    requests += [asked(n, at=n, took=9.0) for n in (5, 6)]
    requests += [asked(n, at=n, took=0.2) for n in range(7, 10)]
    joined = join(requests, [], [("tell", 5.0), ("heal", 11.0)])
    assert figure(p99_factor("tell", 2.0, "heal", 3.0), joined) == pytest.approx(2.0)


def test_time_after_a_kill_is_compared_with_a_peer() -> None:
    def evidence(took: float) -> Joined:
        return join([asked(1, at=1.0, took=took)], [], [("kill", 0.5)])

    rule = slow_after_kill(5.0, 1.5, TUNED)
    both = {TRITON_LB: evidence(0.3), TUNED: evidence(0.1)}
    assert rule.figure(both, TRITON_LB) == pytest.approx(3.0)
    alone = {TRITON_LB: evidence(0.3)}
    assert [each for each in judge((rule,), alone) if each.rule is rule] == []


def test_what_did_not_happen_is_missed() -> None:
    empty = {TRITON_LB: join([], [])}
    rules = (note("applied", "reloads", 100, at_least=True), failed_after("open", 3.0, 3.0))
    judged = judge(rules, empty)[: len(rules)]
    assert [each.is_met for each in judged] == [False, False]
    assert judged[0].text == "not measured"


def test_rules_of_ours_alone_judge_nobody_else() -> None:
    both = {TRITON_LB: join([], [], [], {"applied": 99}), TUNED: join([], [])}
    rule = note("applied", "reloads", 100, at_least=True)
    assert [each.contestant for each in judge((rule,), both) if each.rule is rule] == [TRITON_LB]
    assert figure(rule, both[TRITON_LB]) == 1


def test_line_of_a_model_is_read() -> None:
    assert parse_line("q7 failed 12.5", HERE) == Execution("q7", HERE, 12.5, True)


def test_backend_ledgers_tell_each_line_once_and_whole(tmp_path: Path) -> None:
    ledgers = BackendLedgers(tmp_path)
    path = tmp_path / f"executions-{HERE}"
    path.write_text("q1 began 1.0\nq2 beg")
    assert ledgers.peek(0.0) == [run(1, at=1.0)]
    assert ledgers.peek(2.0) == []
    with path.open("a") as file:
        file.write("an 2.0\n")
    assert ledgers.news() == [run(1, at=1.0), run(2, at=2.0)]
    assert ledgers.news() == []


def test_an_id_is_asked_once() -> None:
    ledger = ClientLedger()
    ledger.open("q1", Kind.HTTP, 256, 0.0)
    with pytest.raises(ValueError, match="q1"):
        ledger.open("q1", Kind.HTTP, 256, 0.0)


def test_quantile_of_nothing_is_nothing() -> None:
    assert quantile([], 0.99) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
