"""The replay table, for every combination of what can be known of an attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome
from lb.domain.retry import Verdict, decide
from lb.kserve.operations import GRPC_OPERATIONS, UNKNOWN

OPERATIONS = st.sampled_from([*GRPC_OPERATIONS.values(), UNKNOWN]) | st.builds(
    Operation, st.just("Any"), st.sampled_from(OperationKind)
)
OUTCOMES = st.sampled_from(Outcome)
NEVER_SENT = {Outcome.CONNECT_REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED}
SURELY_DID_NOT_RUN = NEVER_SENT | {Outcome.REFUSED, Outcome.NOT_HERE}
MAY_HAVE_RUN = set(Outcome) - SURELY_DID_NOT_RUN - {Outcome.STALE}
MUST_NOT_RUN_TWICE = {OperationKind.CONTROL, OperationKind.STREAM, OperationKind.OTHER}


@given(st.sampled_from(sorted(MAY_HAVE_RUN, key=str)), OPERATIONS, st.booleans(), st.booleans())
def test_nothing_that_may_have_run_is_replayed(
    outcome: Outcome, operation: Operation, retained: bool, begun: bool
) -> None:
    verdict = decide(outcome, operation, body_retained=retained, response_begun=begun)
    assert verdict is Verdict.FAIL


@given(OUTCOMES, OPERATIONS, st.booleans())
def test_nothing_is_replayed_after_its_response_began(
    outcome: Outcome, operation: Operation, retained: bool
) -> None:
    verdict = decide(outcome, operation, body_retained=retained, response_begun=True)
    assert verdict is Verdict.FAIL


@given(OUTCOMES, OPERATIONS, st.booleans())
def test_nothing_is_replayed_without_its_body(
    outcome: Outcome, operation: Operation, begun: bool
) -> None:
    verdict = decide(outcome, operation, body_retained=False, response_begun=begun)
    assert verdict is Verdict.FAIL


@given(OUTCOMES, OPERATIONS)
def test_what_must_not_run_twice_needs_certainty(outcome: Outcome, operation: Operation) -> None:
    verdict = decide(outcome, operation, body_retained=True, response_begun=False)
    if operation.kind in MUST_NOT_RUN_TWICE:
        assert (verdict is Verdict.REPLAY) is (outcome in SURELY_DID_NOT_RUN)
    else:
        assert (verdict is Verdict.FAIL) is (outcome in MAY_HAVE_RUN)
