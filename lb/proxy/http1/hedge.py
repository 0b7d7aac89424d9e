"""A second attempt of an HTTP request, beside the first. See `lb.proxy.hedging`."""

from __future__ import annotations

from typing import ClassVar

from lb.domain.outcome import Outcome
from lb.proxy.hedging import begin_as, is_wanted
from lb.proxy.http1.exchange import Http1Exchange
from lb.wire.http1.body import BodyDecoder, Payload
from lb.wire.http1.response import ResponseHead


class HedgeExchange(Http1Exchange):
    """The same request at another backend. It has no client of its own: when it is the first to
    answer, the two change places."""

    __slots__ = ("_first", "has_won")

    may_wait: ClassVar[bool] = False

    def __init__(self, first: Http1Exchange) -> None:
        assert first.server is not None
        super().__init__(first.relay, first.server, first.plan, first.relay.clock())
        self.server = None
        self.finished = True  # there is nothing to log of it
        self._first: Http1Exchange | None = first
        """None once it does not matter any more."""
        self.has_won = False
        begin_as(self, first)
        self.response_begun = False
        self.share_kept(first)

    def begin(self) -> None:
        """Send it to another backend."""
        self._place()

    @property
    def is_over(self) -> bool:
        """See `Hedge`."""
        return self.port is None or self._first is None

    @property
    def is_wanted(self) -> bool:
        """See `Hedge`."""
        return is_wanted(self._first)

    def cancel(self) -> None:
        """See `Hedge`. What a Triton computes it computes: its answer is read and dropped."""
        self._first = None
        self.leave_to_backend(Outcome.OVERTAKEN)

    # The answer

    def on_whole_answer(self, head: ResponseHead, data: bytes, end: int) -> None:
        """See `Http1Exchange`."""
        first = self._overtaken(head)
        if first is not None:
            first.on_whole_answer(head, data, end)
        else:
            super().on_whole_answer(head, data, end)

    def on_answer(
        self,
        head: ResponseHead | None,
        pieces: list[Payload],
        decoder: BodyDecoder,
        *,
        reusable: bool,
    ) -> None:
        """See `Http1Exchange`."""
        first = None if head is None else self._overtaken(head)
        if first is not None:
            first.on_answer(head, pieces, decoder, reusable=reusable)
        else:
            super().on_answer(head, pieces, decoder, reusable=reusable)

    def _overtaken(self, head: ResponseHead) -> Http1Exchange | None:
        """Change places with the first attempt, if this one is faster; an error is not."""
        first = self._first
        if first is None or head.is_error or not self.is_wanted:
            self._first = None
            return None
        if self.is_uploading:
            return None
        self._first = None
        self.has_won = True
        first.attempts += 1
        first.backend, self.backend = self.backend, first.backend
        first.port, self.port = self.port, first.port
        first.attempt_at, self.attempt_at = self.attempt_at, first.attempt_at
        first.connected_at, self.connected_at = self.connected_at, first.connected_at
        first.particulars, self.particulars = self.particulars, first.particulars
        first.upstream, self.upstream = self.upstream, first.upstream
        held = getattr(first, "_held_error", None)
        if held is not None:
            self._held_error = held  # the rest of it comes here now
        if first.upstream is not None:
            first.upstream.exchange = first
        if self.upstream is not None:
            self.upstream.exchange = self
        self.leave_to_backend(Outcome.OVERTAKEN)
        return first
