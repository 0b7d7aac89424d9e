"""What may run again: the certain cases one by one."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome
from lb.domain.retry import REPLAY_TABLE, Ran, Verdict, decide


def verdict(outcome: Outcome, *, may_run_twice: bool = True) -> Verdict:
    return decide(outcome, may_run_twice=may_run_twice, body_retained=True, response_begun=False)


def test_every_outcome_has_a_row() -> None:
    assert set(REPLAY_TABLE) == set(Outcome)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.CONNECT_REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED, Outcome.REFUSED],
)
@pytest.mark.parametrize("may_run_twice", [True, False])
def test_what_surely_did_not_run_is_replayed(outcome: Outcome, may_run_twice: bool) -> None:
    assert verdict(outcome, may_run_twice=may_run_twice) is Verdict.REPLAY


RERUN = [
    outcome for outcome, row in REPLAY_TABLE.items() if row.ran is Ran.MAYBE and row.mends_elsewhere
]


@pytest.mark.parametrize("outcome", RERUN)
def test_what_may_have_run_goes_again_where_running_twice_does_no_harm(outcome: Outcome) -> None:
    assert verdict(outcome) is Verdict.RERUN
    assert verdict(outcome, may_run_twice=False) is Verdict.FAIL


@pytest.mark.parametrize("outcome", Outcome)
def test_nothing_goes_again_without_its_body_or_after_the_answer_began(outcome: Outcome) -> None:
    for retained, begun in ((False, False), (True, True)):
        decided = decide(outcome, may_run_twice=True, body_retained=retained, response_begun=begun)
        assert decided is Verdict.FAIL


@pytest.mark.parametrize("outcome", [Outcome.ANSWERED, Outcome.DEADLINE, Outcome.CANCELLED])
def test_what_nobody_waits_for_does_not_go_again(outcome: Outcome) -> None:
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
        Outcome.SILENT,
        Outcome.LATE,
    }
