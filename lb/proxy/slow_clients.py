"""Clients that are slow to send their requests, or to read responses, take no capacity from others.

A Triton executes nothing of a request before all of it has come, and nothing more once the response
of a unary inference has begun. An attempt whose client takes longer than `SLOW_S` for either is set
aside: it counts against no limit, neither `max_requests` of its backend nor that of its model.
Small requests for scheduled models are placed only when they are whole (see the inspections).

- A slow upload is always set aside. It counts again once all of the request has come
  (`Queue.upload_ended`), be there room or not: it is at the backend already. That also keeps
  it from being taken for a lost request, and has execution times learnt without it.
- One whose turn comes after so long, while its client could have sent the rest, is passed over
  (`Queue.passed_over`). It is queued again once all of it has come, or no more of it may come
  before it has a place.
- A slow download is set aside while others wait for a place. It never counts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lb.domain.pool import PoolRef
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.queue import SLOW_S, Queue

_INTERVAL_S: Final = 0.05
"""How late a slow client is noticed at most."""


class SlowClients:
    """A check of the monitor: finds slow clients."""

    def __init__(
        self, queue: Queue, pool: PoolRef, under_way: Callable[[], Iterable[Exchange]]
    ) -> None:
        """
        Args:
            queue: knows of uploads, and counts attempts.
            pool: the published pool.
            under_way: gives requests with an attempt that has not ended.
        """
        self._queue = queue
        self._pool = pool
        self._under_way = under_way

    @property
    def may_rest(self) -> bool:
        """See `Check`."""
        return not (self._queue.uploads or self._queue.passed_over)

    def interval_s(self, _now: float) -> float:
        """See `Check`."""
        return _INTERVAL_S

    def begin(self, _now: float) -> Sequence[Exchange]:
        """See `Check`."""
        queue = self._queue
        if queue.has_queued or not all(each.has_room for each in self._pool.current.backends):
            return (*queue.passed_over, *queue.uploads, *self._under_way())
        return (*queue.passed_over, *queue.uploads)

    def check(self, exchange: Exchange, now: float) -> None:
        """See `Check`."""
        attempt = exchange.attempt
        if exchange in self._queue.passed_over:
            if not exchange.is_uploading:
                self._queue.queue_again(exchange)
        elif attempt is None or attempt.outcome is not None:
            self._queue.uploads.pop(exchange, None)
        elif not attempt.is_set_aside:
            if _is_slow(exchange, attempt, now):
                self._queue.set_aside(attempt, now)
        elif not (attempt.first_byte_at or exchange.is_uploading):
            # The backend does not read: it is the one who is slow.
            self._queue.count_again(exchange, attempt, now)

    def end(self) -> None:
        """See `Check`."""


def _is_slow(exchange: Exchange, attempt: Attempt, now: float) -> bool:
    """Whether the client of an attempt has been slow for `SLOW_S`."""
    if attempt.first_byte_at:
        return now - attempt.first_byte_at >= SLOW_S and exchange.is_downloading
    return now - attempt.began_at >= SLOW_S and exchange.is_uploading
