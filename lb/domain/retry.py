"""What may run again: one pure table from what is known of an attempt to a verdict.

A request that surely did not run may go elsewhere while its body is still held. One that may have
run goes again only where running twice does no harm, and then within limits (`lb.domain.rerun`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lb.domain.outcome import Outcome


class Ran(Enum):
    """Whether the backend can have processed a request whose attempt failed."""

    NO = "no"
    MAYBE = "maybe"


class Verdict(Enum):
    """What to do after an attempt failed."""

    REPLAY = "replay"
    """It did not run: send it again, to another backend where there is one."""
    RERUN = "rerun"
    """It may have run, and may run twice: send it again within the limits of re-runs."""
    FAIL = "fail"
    """Tell the client."""


MIN_RETRIES_PER_S: Final = 10.0
"""Retries that are always allowed: with little traffic, a share of all requests is below one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """How often requests go again."""

    max_attempts: int = 3
    """Attempts at backends, for one request."""
    share: float = 0.2
    """What part of all requests may go again though they may have run."""
    floor: float = MIN_RETRIES_PER_S
    """How many of those may go again each second in any case."""
    never: frozenset[bytes] = frozenset()
    """Models whose requests must not run twice."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table, for an attempt whose response has not begun."""

    ran: Ran
    counts_against_backend: bool
    """Whether the failure says something about the backend's health."""
    mends_elsewhere: bool = True
    """Whether another attempt has a better chance; not where the client ended it, or caused
    it."""


REPLAY_TABLE: dict[Outcome, Row] = {
    Outcome.ANSWERED: Row(Ran.MAYBE, counts_against_backend=False, mends_elsewhere=False),
    Outcome.CONNECT_REFUSED: Row(Ran.NO, counts_against_backend=True),
    Outcome.CONNECT_TIMEOUT: Row(Ran.NO, counts_against_backend=True),
    Outcome.CONNECT_FAILED: Row(Ran.NO, counts_against_backend=True),
    # RFC 9113 8.7: REFUSED_STREAM and streams above GOAWAY's last id were not processed.
    Outcome.REFUSED: Row(Ran.NO, counts_against_backend=False),
    Outcome.NOT_HERE: Row(Ran.NO, counts_against_backend=False),
    # RFC 9112 9.3.1: a connection that closes as we reuse it was most likely closing before we
    # sent. A request that kills the server which runs it looks the same.
    Outcome.STALE: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.BROKEN: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.LOST: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.RESET: Row(Ran.MAYBE, counts_against_backend=False),
    # Servers on gRPC's own core say the same of what they did not begin.
    Outcome.CUT_OFF: Row(Ran.MAYBE, counts_against_backend=False),
    Outcome.PROTOCOL_ERROR: Row(Ran.MAYBE, counts_against_backend=True),
    # Most likely another backend would repeat as much of the request.
    Outcome.HEAD_TOO_LARGE: Row(Ran.MAYBE, counts_against_backend=False, mends_elsewhere=False),
    Outcome.STALLED: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.SILENT: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.LATE: Row(Ran.MAYBE, counts_against_backend=True),
    Outcome.DEADLINE: Row(Ran.MAYBE, counts_against_backend=False, mends_elsewhere=False),
    Outcome.CANCELLED: Row(Ran.MAYBE, counts_against_backend=False, mends_elsewhere=False),
    Outcome.OVERTAKEN: Row(Ran.MAYBE, counts_against_backend=False, mends_elsewhere=False),
}

LOSSES = frozenset({Outcome.STALE, Outcome.LOST})
"""A server that dies of a request ends the attempt at it so."""


def decide(
    outcome: Outcome, *, may_run_twice: bool, body_retained: bool, response_begun: bool
) -> Verdict:
    """Say whether an attempt that ended with `outcome` may be sent again.

    Args:
        outcome: how the attempt ended.
        may_run_twice: nothing but time is lost by it; not so of steps of a sequence, which would
            change what comes after, and of calls that change the server.
        body_retained: every byte that was sent of the request's body is still held.
        response_begun: some of an answer has gone to the client.
    """
    row = REPLAY_TABLE[outcome]
    if response_begun or not body_retained or not row.mends_elsewhere:
        return Verdict.FAIL
    if row.ran is Ran.NO:
        return Verdict.REPLAY
    return Verdict.RERUN if may_run_twice else Verdict.FAIL
