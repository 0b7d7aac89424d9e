"""Clients that are slow to send their requests, or to read responses, take no capacity from others.

A Triton executes nothing of a request before all of it has come, and nothing more once the response
of a unary inference has begun. So while requests are queued, an attempt stops counting against the
capacity of its backend if its client takes longer than `SLOW_S` for either. After a slow upload it
counts again once all of the request has come. After a slow download it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.queue import Queue

SLOW_S: Final = 0.1
"""Transfers that take no longer count like executions. In that time 50 Mbit/s carry an image of
3x224x224 FP32 (602,112 bytes)."""
_INTERVAL_S: Final = 0.05
"""How late a slow client is noticed at most."""


class SlowClients:
    """A check of the monitor: finds slow clients while requests are queued."""

    def __init__(self, queue: Queue, under_way: Callable[[], Iterable[Exchange]]) -> None:
        """
        Args:
            queue: of the scheduled requests.
            under_way: gives requests with an attempt that has not ended.
        """
        self._queue = queue
        self._under_way = under_way
        self._set_aside: set[Attempt] = set()
        """Attempts that do not count."""
        self._still: set[Attempt] = set()
        """The attempts of that set that this scan has found."""

    @property
    def may_rest(self) -> bool:
        """See `Check`."""
        return not self._set_aside

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> Sequence[Exchange]:
        """See `Check`."""
        return tuple(self._under_way()) if self._set_aside or self._queue.has_queued else ()

    def check(self, exchange: Exchange, now: float) -> None:
        """See `Check`."""
        attempt = exchange.attempt
        if attempt is None or attempt.outcome is not None:
            return
        if attempt in self._set_aside:
            if exchange.is_uploading or attempt.first_byte_at:
                self._still.add(attempt)
            else:
                self._queue.count_again(exchange, attempt, now)
        elif _is_slow(exchange, attempt, now) and self._queue.set_aside(attempt, now):
            self._still.add(attempt)

    def end(self) -> None:
        """See `Check`."""
        self._set_aside, self._still = self._still, set()


def _is_slow(exchange: Exchange, attempt: Attempt, now: float) -> bool:
    """Whether the client of an attempt has been slow for `SLOW_S`."""
    if attempt.first_byte_at:
        return now - attempt.first_byte_at >= SLOW_S and exchange.is_downloading
    return now - attempt.began_at >= SLOW_S and exchange.is_uploading
