"""The replay table, for every combination of what can be known of an attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.outcome import Outcome
from lb.domain.retry import Verdict, decide

OUTCOMES = st.sampled_from(Outcome)
NEVER_SENT = {Outcome.CONNECT_REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED}
SURELY_DID_NOT_RUN = NEVER_SENT | {Outcome.REFUSED, Outcome.NOT_HERE}
NOT_MENDED_ELSEWHERE = {
    Outcome.ANSWERED, Outcome.HEAD_TOO_LARGE, Outcome.DEADLINE, Outcome.CANCELLED,
    Outcome.OVERTAKEN,
}  # fmt: skip


@given(OUTCOMES, st.booleans(), st.booleans(), st.booleans())
def test_only_what_surely_did_not_run_is_replayed_without_limits(
    outcome: Outcome, twice: bool, retained: bool, begun: bool
) -> None:
    verdict = decide(outcome, may_run_twice=twice, body_retained=retained, response_begun=begun)
    if outcome not in SURELY_DID_NOT_RUN:
        assert verdict is not Verdict.REPLAY


@given(OUTCOMES, st.booleans(), st.booleans())
def test_nothing_is_sent_again_after_its_response_began(
    outcome: Outcome, twice: bool, retained: bool
) -> None:
    verdict = decide(outcome, may_run_twice=twice, body_retained=retained, response_begun=True)
    assert verdict is Verdict.FAIL


@given(OUTCOMES, st.booleans(), st.booleans())
def test_nothing_is_sent_again_without_its_body(outcome: Outcome, twice: bool, begun: bool) -> None:
    verdict = decide(outcome, may_run_twice=twice, body_retained=False, response_begun=begun)
    assert verdict is Verdict.FAIL


@given(OUTCOMES)
def test_what_must_not_run_twice_needs_certainty(outcome: Outcome) -> None:
    verdict = decide(outcome, may_run_twice=False, body_retained=True, response_begun=False)
    wanted = Verdict.REPLAY if outcome in SURELY_DID_NOT_RUN else Verdict.FAIL
    assert verdict is wanted


@given(OUTCOMES)
def test_what_may_run_twice_goes_again_where_another_backend_may_do_better(
    outcome: Outcome,
) -> None:
    verdict = decide(outcome, may_run_twice=True, body_retained=True, response_begun=False)
    assert (verdict is Verdict.FAIL) is (outcome in NOT_MENDED_ELSEWHERE)
