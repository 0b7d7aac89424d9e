"""A message of a stream that waits: for its model, which is loaded nowhere, or for news of its
sequence. It waits in the queue, as a unary request does. The session holds its bytes, and all that
comes behind it on the stream.
"""

from __future__ import annotations

from typing import Protocol

from lb.domain.errors import RequestRefused
from lb.domain.sequence import Question
from lb.kserve.pending_responses import StreamMessage
from lb.proxy.exchange import Exchange
from lb.proxy.http2.call import Call


class Holder(Protocol):
    """Who holds the bytes of a message."""

    def route_held(self) -> None:
        """The waiting is over: find out anew where the message goes."""
        ...

    def refuse_held(self, refusal: RequestRefused) -> None:
        """The waiting is over: answer the message so."""
        ...


class HeldMessage:
    """The message, while it waits. Implements `Waiting`."""

    __slots__ = ("_call", "_holder", "_request", "message", "size")

    def __init__(
        self, call: Call, holder: Holder, request: Exchange, message: StreamMessage, size: int
    ) -> None:
        """
        Args:
            call: the stream.
            holder: holds its bytes.
            request: the message as a request of its own, for the queue.
            message: what is known of it.
            size: bytes of it that had come when that became known.
        """
        self._call = call
        self._holder: Holder | None = holder
        """None once the message waits no more."""
        self._request = request
        self.message = message
        self.size = size

    def wait(self, news: Question | None) -> None:
        """Begin to wait.

        Args:
            news: of its sequence; None: it waits for its model.

        Raises:
            RequestRefused: the model is not loaded now.
        """
        call, request = self._call, self._request
        if news is None:
            call.relay.placer.hold(request, call.relay.now, self)
        else:
            call.relay.dispatcher.queue.hold_for_news(request, self, news)
        call.held_for = call.held_for or request.held_for

    def go_on(self) -> None:
        """See `Waiting`."""
        call, holder = self._call, self._holder
        if holder is None:
            return
        if call.server.parted:
            call.client_gone()
            return
        call.relay.now = call.relay.clock()
        holder.route_held()

    def refuse(self, refusal: RequestRefused) -> None:
        """See `Waiting`."""
        if self._holder is not None:
            self._call.relay.now = self._call.relay.clock()
            self._holder.refuse_held(refusal)

    def leave(self) -> None:
        """Wait no more, whatever for."""
        self._holder = None
        self._call.relay.dispatcher.queue.leave(self._request)
