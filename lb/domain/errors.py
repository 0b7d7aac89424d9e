"""Errors of the data plane: each says whose fault it is, through its outcome or reason.

LoadBalancerError
    UpstreamError      an attempt failed; carries an Outcome
    RequestRefused     we refuse a request; carries a Reason
"""

from __future__ import annotations

from lb.domain.outcome import Outcome, Reason


class LoadBalancerError(Exception):
    """Base of all errors that the product raises on purpose."""


class UpstreamError(LoadBalancerError):
    """An attempt at a backend failed before it was answered."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class RequestRefused(LoadBalancerError):
    """A request that we answer with an error of our own."""

    def __init__(
        self, reason: Reason, detail: str, *, retry_after_s: float = 0.0, status: int = 0
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s
        """Seconds after which it may be asked for again; 0 when that is not known."""
        self.status = status
        """HTTP status, where it is another one than the reason's usual; otherwise 0."""
