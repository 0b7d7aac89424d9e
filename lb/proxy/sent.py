"""Since when the answers of requests are awaited, as far as those know who look now and then."""

from __future__ import annotations

from lb.proxy.exchange import Attempt, Exchange


class SentTimes:
    """What one who looks remembers of requests under way, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[Exchange, float] = {}
        self._seen: dict[Exchange, float] = {}
        """When requests were still being sent, of those that were seen so."""

    def begin_look(self) -> None:
        """Forget the requests that the last look did not find under way any more."""
        self._before, self._seen = self._seen, {}

    def since(self, exchange: Exchange, attempt: Attempt, now: float) -> float | None:
        """Since when the answer to an attempt is awaited, in monotonic seconds; None while the
        client still sends the request."""
        if not exchange.is_sent:
            self._seen[exchange] = now
            return None
        sending_at = self._before.get(exchange)
        if sending_at is None:
            return attempt.began_at
        self._seen[exchange] = sending_at
        return max(attempt.began_at, sending_at)
