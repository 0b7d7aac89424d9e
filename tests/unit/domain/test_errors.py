"""Our errors carry what happened, for whoever translates them."""

from __future__ import annotations

from lb.domain.errors import LoadBalancerError, RequestRefused, UpstreamError
from lb.domain.outcome import Outcome, Reason


def test_a_failed_attempt_carries_its_outcome() -> None:
    error = UpstreamError(Outcome.CONNECT_REFUSED, "closed")
    assert isinstance(error, LoadBalancerError)
    assert (error.outcome, error.detail, str(error)) == (
        Outcome.CONNECT_REFUSED,
        "closed",
        "closed",
    )


def test_a_refused_request_carries_its_reason() -> None:
    error = RequestRefused(Reason.NO_BACKEND, "none")
    assert isinstance(error, LoadBalancerError)
    assert (error.reason, error.detail, str(error)) == (Reason.NO_BACKEND, "none", "none")
