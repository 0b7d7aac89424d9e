"""What may run again: one pure table from what is known of an attempt to a verdict.

The certain cases: a request that surely did not run may go elsewhere while its body is still
held. The keep-alive race is nearly certain, so it excludes what must never run twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lb.domain.operation import Operation
from lb.domain.outcome import Outcome


class Ran(Enum):
    """Whether the backend can have processed a request whose attempt failed."""

    NO = "no"
    HARDLY = "hardly"
    """All evidence says no, but only the backend knows."""
    MAYBE = "maybe"


class Verdict(Enum):
    """What to do after an attempt failed."""

    REPLAY = "replay"
    """Send it again, to another backend where there is one."""
    FAIL = "fail"
    """Tell the client."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table, for an attempt whose response has not begun."""

    ran: Ran
    counts_against_backend: bool
    """Whether the failure says something about the backend's health."""


REPLAY_TABLE: dict[Outcome, Row] = {
    Outcome.ANSWERED: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.CONNECT_REFUSED: Row(Ran.NO, counts_against_backend=True),
    Outcome.CONNECT_TIMEOUT: Row(Ran.NO, counts_against_backend=True),
    Outcome.CONNECT_FAILED: Row(Ran.NO, counts_against_backend=True),
    # RFC 9113 8.7: REFUSED_STREAM and streams above GOAWAY's last id were not processed.
    Outcome.REFUSED: Row(Ran.NO, counts_against_backend=False),
    Outcome.NOT_HERE: Row(Ran.NO, counts_against_backend=False),
    # RFC 9112 9.3.1: a connection that closes as we reuse it was closing before we sent.
    Outcome.STALE: Row(Ran.HARDLY, counts_against_backend=False),
    Outcome.LOST: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.RESET: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.PROTOCOL_ERROR: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.STALLED: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.DEADLINE: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.CANCELLED: Row(Ran.MAYBE, counts_against_backend=False),
}


def decide(
    outcome: Outcome,
    operation: Operation,
    *,
    body_retained: bool,
    response_begun: bool,
    is_step: bool = False,
) -> Verdict:
    """Say whether an attempt that ended with `outcome` may be sent again.

    Args:
        outcome: how the attempt ended.
        operation: which call it is.
        body_retained: every byte that was sent of the request's body is still held.
        response_begun: some of an answer has gone to the client.
        is_step: it belongs to a sequence: run twice it would change what comes after.
    """
    if response_begun or not body_retained:
        return Verdict.FAIL
    ran = REPLAY_TABLE[outcome].ran
    if ran is Ran.NO or (ran is Ran.HARDLY and operation.may_run_twice and not is_step):
        return Verdict.REPLAY
    return Verdict.FAIL
