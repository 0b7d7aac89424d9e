"""The check of attempts under way: what is known of each, for all who decide about attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from lb.proxy.exchange import Attempt, Exchange


class AttemptCheck(Protocol):
    """Decides about one attempt at a time. Times are monotonic seconds."""

    @property
    def may_rest(self) -> bool:
        """Whether it has nothing to end once no request is open."""
        ...

    def interval_s(self, now: float) -> float:
        """Seconds from one scan to the next; infinite while the check is off."""
        ...

    def begin(self, now: float) -> None:
        """A scan begins."""
        ...

    def check(self, exchange: Exchange, since: float, now: float) -> bool:
        """Decide about the attempt of an exchange, and act.

        Args:
            exchange: its attempt is under way, and the response has not begun.
            since: the answer is awaited.
            now: the time.

        Returns:
            Whether that was all: this attempt is not to be checked again.
        """
        ...


class AttemptScan:
    """Looks after the attempts of both relays."""

    def __init__(
        self, under_way: Callable[[], Iterable[Exchange]], checks: Sequence[AttemptCheck]
    ) -> None:
        """
        Args:
            under_way: gives requests with an attempt that has not ended.
            checks: those that came first go first.
        """
        self._under_way = under_way
        self._checks = checks
        self._wanted: list[AttemptCheck] = []
        """The checks of this scan."""
        self._done: set[tuple[AttemptCheck, Attempt]] = set()
        """What needs no more checks."""
        self._still_done: set[tuple[AttemptCheck, Attempt]] = set()
        """As far as this scan has found it under way."""

    @property
    def may_rest(self) -> bool:
        """See `Check`."""
        return all(check.may_rest for check in self._checks)

    def interval_s(self, now: float) -> float:
        """See `Check`."""
        return min((check.interval_s(now) for check in self._checks), default=inf)

    def begin(self, now: float) -> tuple[Exchange, ...]:
        """See `Check`."""
        self._wanted = [check for check in self._checks if check.interval_s(now) < inf]
        for check in self._wanted:
            check.begin(now)
        return tuple(self._under_way())

    def check(self, exchange: Exchange, now: float) -> None:
        """See `Check`."""
        attempt = exchange.attempt
        if attempt is None or attempt.outcome is not None or exchange.finished:
            return  # it ended since the scan began, or its client is gone
        if not exchange.is_sent or attempt.first_byte_at:
            return
        since = attempt.awaited_since()
        for check in self._wanted:
            if exchange.attempt is not attempt or not exchange.is_under_way:
                return  # the check before this one has ended it
            key = (check, attempt)
            if key in self._done or check.check(exchange, since, now):
                self._still_done.add(key)

    def end(self) -> None:
        """See `Check`."""
        self._done, self._still_done = self._still_done, set()
