"""How often a peer may do what is cheap for it and not for us, per connection.

Each kind of thing has a token bucket that time refills, and a bank that fills with what the peer
lets us do: streams, answers, payload. The bank is counted only when the bucket is empty, so that
honest peers cost one comparison. The figures and where they come from:
`docs/decisions/0011-flood-budgets.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple


class Spending(IntEnum):
    """What costs a token."""

    RESET = 0
    """A request that the client resets young, before its answer."""
    FAULT = 1
    """A reset that we are made to send, an unknown frame, or another thing that no peer needs."""
    REFUSAL = 2
    """A stream above the limit."""
    PING = 3
    SETTINGS = 4
    PRIORITY = 5
    CREDIT = 6
    """WINDOW_UPDATE."""
    EMPTY = 7
    """DATA without payload that is not the last."""
    CRUMB = 8
    """DATA of a few bytes that is not the last."""
    STRAY = 9
    """A frame for a stream that is over."""
    OVERSIZED = 10
    """A request whose head is over the limits: it costs us the reading of all of it."""

    @property
    def detail(self) -> str:
        """What the peer is told when it has no token left."""
        return _DETAILS[self]


_DETAILS: Final = {
    Spending.RESET: "too many requests reset before their answers",
    Spending.FAULT: "too many faults",
    Spending.REFUSAL: "too many streams above the limit",
    Spending.PING: "too many PINGs",
    Spending.SETTINGS: "too many SETTINGS",
    Spending.PRIORITY: "too many PRIORITY frames",
    Spending.CREDIT: "too many WINDOW_UPDATEs",
    Spending.EMPTY: "too many empty DATA frames",
    Spending.CRUMB: "too many tiny DATA frames",
    Spending.STRAY: "too many frames for streams that are over",
    Spending.OVERSIZED: "too many oversized heads",
}


class ConnectionTraffic(NamedTuple):
    """What a connection has seen since its beginning."""

    streams: int = 0
    """Opened, whoever opened them."""
    answers: int = 0
    """Streams that ended with an answer."""
    sent: int = 0
    """Frames with payload or heads that we sent."""
    bytes_in: int = 0
    """Payload received."""
    bytes_out: int = 0
    """Payload sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One kind's bucket and what fills its bank."""

    burst: int
    """Tokens at the beginning, and the most that time gives back."""
    per_s: float
    """Tokens that time gives back per second."""
    stream: float = 0.0
    """Tokens per stream opened."""
    answer: float = 0.0
    """Tokens per stream answered."""
    sent: float = 0.0
    """Tokens per frame that we sent."""
    byte_in: float = 0.0
    byte_out: float = 0.0
    bank: float = inf
    """The most that the bank holds."""

    def earned(self, traffic: ConnectionTraffic) -> float:
        """All that a connection's traffic is worth."""
        return (
            self.stream * traffic.streams
            + self.answer * traffic.answers
            + self.sent * traffic.sent
            + self.byte_in * traffic.bytes_in
            + self.byte_out * traffic.bytes_out
        )


Allowances = Mapping[Spending, Allowance]
"""What is not in it is free."""


class Bucket:
    """The tokens of one kind on one connection."""

    __slots__ = ("_allowance", "_bank", "_full_at", "_interval", "_seen", "_slack")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._interval = 1 / allowance.per_s
        self._slack = (allowance.burst - 0.5) * self._interval
        """Half a token more than may be spent, against rounding."""
        # The generic cell rate algorithm: one number says how full the bucket is.
        self._full_at = -inf
        """When time alone will have filled it."""
        self._bank = 0.0
        self._seen = 0.0
        """What was earned when the bank was counted last."""

    def take(self, now: float, traffic: Callable[[], ConnectionTraffic]) -> bool:
        """Spend a token.

        Args:
            now: seconds.
            traffic: of the connection so far; asked only when the bucket is empty.

        Returns:
            False when there is none.
        """
        full_at = self._full_at
        if full_at < now:
            self._full_at = now + self._interval
            return True
        if full_at - now <= self._slack:
            self._full_at = full_at + self._interval
            return True
        if self._bank < 1:
            earned = self._allowance.earned(traffic())
            self._bank = min(self._bank + earned - self._seen, self._allowance.bank)
            self._seen = earned
            if self._bank < 1:
                return False
        self._bank -= 1
        return True


class FloodGuard:
    """All buckets of one connection."""

    __slots__ = ("_allowances", "_buckets")

    def __init__(self, allowances: Allowances) -> None:
        self._allowances = allowances
        self._buckets: dict[Spending, Bucket] = {}
        """Made when they are needed: most connections need two."""

    def take(self, what: Spending, now: float, traffic: Callable[[], ConnectionTraffic]) -> bool:
        """Spend a token of a kind; see `Bucket.take`."""
        bucket = self._buckets.get(what)
        if bucket is None:
            allowance = self._allowances.get(what)
            if allowance is None:
                return True
            bucket = self._buckets[what] = Bucket(allowance)
        return bucket.take(now, traffic)


_PER_MINUTE: Final = 100 / 60
_CRUMB_WORTH: Final = 1 / 256
"""As h2 (Rust): a tiny frame is worth 256 bytes of payload."""
_CREDIT_WORTH: Final = 1 / 512
"""Readers that credit less at a time than half a kilobyte take it frame by frame."""


def client_allowances(concurrent_streams: int) -> Allowances:
    """For connections of clients.

    Args:
        concurrent_streams: how many streams a client may have at once.
    """
    bank = max(200, concurrent_streams)
    return {
        Spending.RESET: Allowance(burst=200, per_s=20, answer=1, bank=bank),
        Spending.FAULT: Allowance(burst=100, per_s=_PER_MINUTE),
        Spending.REFUSAL: Allowance(burst=100, per_s=_PER_MINUTE),
        Spending.PING: Allowance(burst=200, per_s=20, sent=1, bank=1000),
        Spending.SETTINGS: Allowance(burst=200, per_s=20),
        Spending.PRIORITY: Allowance(burst=100, per_s=_PER_MINUTE, stream=10, bank=1000),
        Spending.CREDIT: Allowance(burst=200, per_s=1, stream=2, sent=20, byte_out=_CREDIT_WORTH),
        Spending.EMPTY: Allowance(burst=100, per_s=10),
        Spending.CRUMB: Allowance(burst=2000, per_s=100, byte_in=_CRUMB_WORTH, bank=2000),
        Spending.STRAY: Allowance(burst=100, per_s=_PER_MINUTE, stream=1, bank=bank),
        Spending.OVERSIZED: Allowance(burst=100, per_s=10),
    }


BACKEND_ALLOWANCES: Final[Allowances] = {
    # A backend's resets and broken answers are as many as the streams that we open.
    Spending.FAULT: Allowance(burst=1000, per_s=10),
    Spending.PING: Allowance(burst=1000, per_s=100, sent=1, bank=10_000),
    Spending.SETTINGS: Allowance(burst=1000, per_s=20),
    Spending.PRIORITY: Allowance(burst=1000, per_s=10),
    Spending.CREDIT: Allowance(burst=1000, per_s=100, stream=2, sent=20, byte_out=_CREDIT_WORTH),
    Spending.EMPTY: Allowance(burst=1000, per_s=100),
    Spending.CRUMB: Allowance(burst=10_000, per_s=1000, byte_in=_CRUMB_WORTH, bank=10_000),
    # gRPC's own core sends a dozen frames more for each stream that it has reset.
    Spending.STRAY: Allowance(burst=1000, per_s=100, stream=16),
}
"""For connections to backends, which many clients share: larger."""
