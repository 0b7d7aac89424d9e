"""A second attempt of a gRPC call, beside the first. See `lb.proxy.hedging`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lb.domain.outcome import Outcome
from lb.proxy.exchange import Exchange
from lb.proxy.hedging import begin_as, is_wanted
from lb.wire.grpc.status import decode_message
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode
from lb.wire.http2.heads import ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.call import Call
    from lb.proxy.http2.client import ClientLink


class HedgeCall(Exchange):
    """The same unary request at another backend. Towards its connection it is a call; when it is
    the first to answer, its stream becomes that of the call."""

    __slots__ = (
        "_first", "begun", "has_won", "head", "opened_at", "relay", "request", "response",
        "server", "upstream",
    )  # fmt: skip

    def __init__(self, first: Call) -> None:
        relay = first.relay
        super().__init__(first.protocol, first.operation, first.client, relay.now)
        self._first: Call | None = first
        """None once it does not matter any more."""
        self.has_won = False
        begin_as(self, first)
        self.relay, self.server, self.head = relay, first.server, first.head
        self.upstream: ClientLink | None = None
        self.begun = False
        self.opened_at = 0.0
        self.bytes_in = first.bytes_in
        self.request: Pipe[Any] = Pipe(self, relay.ledger, 0, 0)
        self.response: Pipe[Any] = Pipe(self, relay.ledger, relay.options.answer_window, 0)
        self.request.opposite, self.response.opposite = self.response, self.request
        self.request.ended = True
        self.request.trailers = first.request.trailers

    def begin(self, payload: list[Payload]) -> None:
        """Send the request to another backend."""
        relay = self.relay
        request = self.request
        # Its sender was credited for it before.
        request.replayed = sum(map(len, payload))
        if all(request.push(piece) for piece in payload):
            backend = relay.dispatcher.place(self, relay.now)
            assert backend is not None  # it does not wait
            relay.pool(backend).start(self)

    @property
    def is_over(self) -> bool:
        """See `Hedge`."""
        return self.finished

    @property
    def is_wanted(self) -> bool:
        """See `Hedge`."""
        return is_wanted(self._first)

    def cancel(self) -> None:
        """See `Hedge`."""
        self._end(Outcome.OVERTAKEN, ErrorCode.CANCEL)

    # What its connection and its pool call

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """The head of the response arrived."""
        if head.status < 200 and not end_stream:
            return
        first = self._first
        if (
            not head.is_answer
            or end_stream
            or first is None
            or not self.is_wanted
            or not self.request.finished
        ):
            # An error is not what one hopes for, and the first attempt goes on.
            self._answered(head, end_stream)
        else:
            self._overtake(first)
            first.response_head(head, end_stream)

    def _overtake(self, first: Call) -> None:
        """Let the call have this stream in place of its own."""
        self.has_won = True
        self._first = None
        upstream, stream_id = self.upstream, self.request.sink_id
        assert upstream is not None
        first.give_up_stream(Outcome.OVERTAKEN)
        first.attempts += 1
        first.backend, first.port, self.port = self.backend, self.port, None
        first.particulars, self.particulars = self.particulars, None
        first.attempt_at, first.connected_at = self.attempt_at, self.connected_at
        first.opened_at = self.opened_at
        first.upstream, self.upstream = upstream, None
        request, response = first.request, first.response
        request.sink, request.sink_id = upstream, stream_id
        request.finished = True
        response.source, response.source_id = upstream, stream_id
        response.window = response.window_size = self.response.window
        response.owed = 0
        response.ended = False
        upstream.streams[stream_id] = response
        self._leave()

    def _answered(self, head: ResponseHead, end_stream: bool) -> None:
        """What came is no answer for the client."""
        if not head.is_answer or (end_stream and not head.grpc_status):
            # Not of gRPC, or status OK without a message.
            self._end(Outcome.PROTOCOL_ERROR, ErrorCode.CANCEL)
            return
        if head.grpc_status > 0:
            text = decode_message(head.grpc_message)
            self.relay.dispatcher.answered_with_error(self, head.grpc_status, text)
        if head.grpc_status >= 0:
            self.relay.dispatcher.attempt_ended(self, Outcome.ANSWERED, head.grpc_status)
        self._end(Outcome.OVERTAKEN, ErrorCode.CANCEL)

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """See `Call`: there is more to do than a write."""
        return False

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """See `Call`."""
        return False

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """Data before a head, which nothing is to become of."""
        self._end(Outcome.PROTOCOL_ERROR, ErrorCode.PROTOCOL_ERROR)

    def upstream_reset(self, code: int) -> None:
        """The backend reset the stream; it is off its connection already."""
        self._end(Outcome.RESET, None)

    def attempt_failed(self, outcome: Outcome, detail: str = "") -> None:
        """The attempt ended without an answer; it is off its connection already."""
        self._end(outcome, None)

    def backend_hung(self) -> None:
        """The backend is silent."""
        self._end(Outcome.STALLED, ErrorCode.CANCEL)

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the request."""
        self._end(Outcome.STALLED, ErrorCode.CANCEL)

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out: nothing depends on it."""

    def leave_parting(self) -> None:
        """See `Call`: it is over soon."""

    def evict(self) -> None:
        """The ledger wants these bytes back."""
        self._end(Outcome.CANCELLED, ErrorCode.CANCEL)

    # Ends

    def _end(self, outcome: Outcome, code: ErrorCode | None) -> None:
        if self.finished:
            return
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            stream_id = self.request.sink_id
            upstream.forget(self.request)
            if code is not None and upstream.transport is not None:
                upstream.reset(stream_id, code)
            upstream.close_stream(stream_id)
        self.relay.dispatcher.attempt_ended(self, outcome)
        self._leave()

    def _leave(self) -> None:
        """Leave nothing behind."""
        self.finished = True
        self._first = None
        self.request.clear()
        self.response.clear()
        self.request.owner = self.response.owner = None
        self.response.opposite = self.relay.no_pipe
