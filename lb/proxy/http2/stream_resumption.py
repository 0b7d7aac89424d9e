"""Another attempt for the requests of a stream that its last attempt has not answered.

One belongs to each upstream stream that a client's stream has at a time. It knows which of the
requests were lost before, since limits are for each request, and a stream may outlive many servers.
"""

from __future__ import annotations

from collections.abc import Collection

from lb.domain.outcome import Outcome
from lb.proxy.exchange import Exchange
from lb.proxy.retry import RetryPolicy


class Resumption:
    """How often the requests of an upstream stream without an answer were lost."""

    __slots__ = ("_attempts", "_until", "has_begun")

    def __init__(self) -> None:
        self.has_begun = False
        """There was one, so what may have gone to the client was answered by earlier attempts."""
        self._attempts = 0
        """Attempts of the stream before the first one that had a request which was lost."""
        self._until = 0
        """With so many requests answered, all those that went again have their answers."""

    def take(
        self,
        retry: RetryPolicy,
        exchange: Exchange,
        outcome: Outcome,
        models: Collection[bytes],
        completed: int,
    ) -> bool:
        """Take another attempt for requests without an answer. False: they may have none.

        Args:
            retry: decides.
            exchange: of the stream.
            outcome: of its last attempt, which is over or ends now.
            models: of each of these requests.
            completed: how many requests of that attempt have their answers.
        """
        backend = exchange.backend
        if completed >= self._until:
            # Nothing is held against these requests yet, but where they were last.
            self._attempts = exchange.attempts - 1
            exchange.tried = tuple(each for each in exchange.tried[-1:] if each is backend)
            exchange.loss = None
        self.has_begun = True
        self._until = completed + len(models)
        if not models:
            return True
        exchange.model = next(iter(models))
        attempts = exchange.attempts - self._attempts
        return retry.take_resumption(exchange, outcome, models, attempts)

    def part(self, count: int) -> Resumption:
        """As it is for some of these requests, so many, on an upstream stream of their own."""
        part = Resumption()
        part.has_begun, part._attempts, part._until = True, self._attempts, count
        return part
