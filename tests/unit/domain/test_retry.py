"""What may run again: the certain cases one by one."""

from __future__ import annotations

import pytest

from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome
from lb.domain.retry import REPLAY_TABLE, Ran, Verdict, decide

INFER = Operation("ModelInfer", OperationKind.INFERENCE)
LOAD = Operation("RepositoryModelLoad", OperationKind.CONTROL)
STREAM = Operation("ModelStreamInfer", OperationKind.STREAM)


def verdict(outcome: Outcome, operation: Operation = INFER) -> Verdict:
    return decide(outcome, operation, body_retained=True, response_begun=False)


def test_every_outcome_has_a_row() -> None:
    assert set(REPLAY_TABLE) == set(Outcome)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.CONNECT_REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED, Outcome.REFUSED],
)
@pytest.mark.parametrize("operation", [INFER, LOAD, STREAM])
def test_what_surely_did_not_run_is_replayed(outcome: Outcome, operation: Operation) -> None:
    assert verdict(outcome, operation) is Verdict.REPLAY


def test_the_keep_alive_race_is_replayed_where_running_twice_does_no_harm() -> None:
    assert verdict(Outcome.STALE) is Verdict.REPLAY
    assert verdict(Outcome.STALE, LOAD) is Verdict.FAIL
    assert verdict(Outcome.STALE, STREAM) is Verdict.FAIL


@pytest.mark.parametrize(
    "outcome", [outcome for outcome, row in REPLAY_TABLE.items() if row.ran is Ran.MAYBE]
)
def test_what_may_have_run_fails(outcome: Outcome) -> None:
    assert verdict(outcome) is Verdict.FAIL


def test_our_own_and_the_clients_ends_do_not_count_against_a_backend() -> None:
    """A clear refusal, a reset of one stream, deadlines and cancelled requests are no illness."""
    counted = {outcome for outcome, row in REPLAY_TABLE.items() if row.counts_against_backend}
    assert counted == {
        Outcome.CONNECT_REFUSED,
        Outcome.CONNECT_TIMEOUT,
        Outcome.CONNECT_FAILED,
        Outcome.LOST,
        Outcome.PROTOCOL_ERROR,
        Outcome.STALLED,
    }
