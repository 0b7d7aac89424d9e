"""What a gRPC call consists of, and how it ends: whatever ends it, nothing is left behind on either
connection, in timers and in the ledger."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.proxy.exchange import Exchange
from lb.proxy.failure import grpc_status
from lb.proxy.http2.replies import (
    ANSWER_HEAD,
    RESET_CODES,
    pushback,
    status_trailers,
    trailers_only,
)
from lb.wire.grpc.message import MessageMeter
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Pipe
from lb.wire.http2.frames import ErrorCode, Malformed, StreamError
from lb.wire.http2.heads import NO_STATUS, RequestHead, ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.client import ClientLink
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink

_GRPC: Final = AppProtocol.GRPC


class JoinedStreams(Exchange):
    """A stream of a client, and the stream of a backend that serves it."""

    __slots__ = (
        "begun", "client_id", "early_heads", "head", "held_back", "held_head", "held_text",
        "look_again_at",
        "message_size", "messages", "opened_at", "relay", "request", "response", "server", "timer",
        "upstream", "watch",
    )  # fmt: skip

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        # HOT PATH (benchmarks/load). One object and two pipes per call. What `Exchange` sets is set
        # here, most of it once: its own constructor costs as much again.
        self.protocol = _GRPC
        operation: Any = head.route or relay.decide(head)
        self.operation = operation
        self.client = server.client.name
        self.started_at = relay.now
        self.method = head.method
        self.path = head.path
        self.request_id = head.request_id
        self.model = b""
        self.token = ""
        self.backend = self.port = self.particulars = self.permit = self.reason = None
        self.tried = ()
        self.attempts = self.bytes_in = self.bytes_out = self.status = 0
        self.grpc_status = NO_STATUS
        self.attempt_at = self.placed_at = self.connected_at = self.first_byte_at = 0.0
        self.ended_at = self.opened_at = 0.0
        self.finished = False
        options = relay.options
        self.relay = relay
        self.server = server
        self.client_id = stream_id
        self.head = head
        self.upstream: ClientLink | None = None
        self.begun = False
        """Some of the response has gone to the client."""
        self.held_head: ResponseHead | None = None
        """Of the response to an inference, until a message comes."""
        self.held_text = b""
        """The beginning of that message."""
        self.message_size = 0
        """Bytes of that message, once it goes to the client."""
        self.held_back = False
        """The first message is awaited before the call is placed."""
        self.messages = MessageMeter(options.message_size) if options.message_size else None
        self.timer: Any = None
        self.watch: Any = None
        """Ends the subscription of a health watch."""
        ledger = relay.ledger
        window_max = options.stream_window_max
        request: Pipe[Any] = Pipe(self, ledger, server.options.stream_window, window_max)
        response: Pipe[Any] = Pipe(self, ledger, options.answer_window, window_max)
        self.request: Pipe[Any] = request
        self.response: Pipe[Any] = response
        request.opposite = response
        response.opposite = request
        request.source = response.sink = server
        request.source_id = response.sink_id = stream_id
        response.credit = server.peer_window
        request.retained = []

    def client_gone(self, reason: Reason = Reason.CLIENT_GONE) -> None:
        """The client reset the stream, or its connection is lost."""
        self._close(Outcome.CANCELLED, reason, ErrorCode.CANCEL)

    def client_broke_stream(self, error: StreamError) -> None:
        """The client broke the rules on this stream; it was reset."""
        self._close(Outcome.CANCELLED, Reason.BAD_REQUEST, ErrorCode.CANCEL)

    def tell_client(self, fault: Malformed) -> bool:
        """The request is malformed, as its body or its end shows. False when the client cannot be
        told any more, or not in the way of gRPC."""
        if self.begun or not self.head.is_grpc:
            return False
        self.fail(Reason.BAD_REQUEST, fault.detail)
        return True

    def client_stalled(self) -> None:
        """The client has taken nothing of the answer that waits for it."""
        self.fail(Reason.CLIENT_STALLED, "the client stopped reading")

    def evict(self) -> None:
        """The ledger wants this call's bytes back."""
        self.fail(Reason.MEMORY, "load balancer is out of memory for this request")

    def set_timer(self) -> None:
        """Have the call end when its time is up: its client's, or the configured one."""
        timeout_s = _shorter(self.head.timeout_s, self.relay.options.request_timeout_s)
        self.timer = self.relay.timers.after(timeout_s, self._expire)

    def _expire(self) -> None:
        """The client's deadline, or ours, has passed."""
        self.timer = None
        self.fail(Reason.DEADLINE, "Deadline Exceeded", Outcome.DEADLINE)

    def fail(
        self,
        reason: Reason,
        detail: str,
        outcome: Outcome = Outcome.CANCELLED,
        *,
        status: GrpcStatus | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        """End the call with an error of ours."""
        if self.finished:
            return
        if reason is Reason.MEMORY:
            self.relay.watch_memory()
        code = grpc_status(reason) if status is None else status
        self._detach(ErrorCode.CANCEL)
        self.relay.dispatcher.attempt_ended(self, outcome)
        self.grpc_status = code
        if not self.begun:
            self.status = 200
            block = trailers_only(code, detail)
            self.answer_whole(block + pushback(retry_after_s) if retry_after_s else block, reason)
            return
        self.response.clear()
        self.response.ended = True
        self.server.reset(self.client_id, RESET_CODES.get(reason, ErrorCode.INTERNAL_ERROR))
        self._leave(reason)

    def refuse(self, refusal: RequestRefused) -> None:
        """See `Exchange`."""
        self.fail(refusal.reason, refusal.detail, retry_after_s=refusal.retry_after_s)

    @property
    def due(self) -> float:
        """See `Exchange`."""
        asked_s, own_s = self.head.timeout_s, self.relay.options.request_timeout_s
        return self.started_at + _shorter(asked_s, own_s) if asked_s or own_s else inf

    def hint(self, name: bytes) -> bytes:
        """See `Exchange`."""
        return next((value for field, value in self.head.noted if field == name), b"")

    def answer_whole(self, block: bytes, reason: Reason | None) -> None:
        """Send a whole answer in one head."""
        self.begun = True
        self.server.send_head(self.client_id, block, end_stream=True)
        if not self.request.ended:
            self.server.reset(self.client_id, ErrorCode.NO_ERROR)
            self.request.ended = True
        self._leave(reason)

    def finish_answer(self, data: bytes, fields: bytes = b"", *, rest: bytes = b"") -> None:
        """Answer the call ourselves: head, one message, status OK.

        Args:
            data: the message with its prefix.
            fields: further ones of the head, encoded.
            rest: the end of the message, where that is long and not worth a copy.
        """
        self.begun = True
        self.status = 200
        self.grpc_status = GrpcStatus.OK
        self.bytes_out = len(data) + len(rest)
        response = self.response
        response.ended = True
        response.trailers = status_trailers(GrpcStatus.OK)
        self.server.send_head(self.client_id, ANSWER_HEAD + fields, end_stream=False)
        self.server.send_data(response, data)
        if rest:
            self.server.send_data(response, rest)
        if not self.finished and not response.queue and not response.finished:
            self.server.end_stream(response)

    def _close(self, outcome: Outcome, reason: Reason, code: ErrorCode | None) -> None:
        """End without telling the client, who knows."""
        if self.finished:
            return
        self._detach(code)
        self.relay.dispatcher.attempt_ended(self, outcome)
        if self.grpc_status == NO_STATUS:
            self.grpc_status = GrpcStatus.CANCELLED
        self._leave(reason)

    def _detach(self, code: ErrorCode | None) -> None:
        """Take the call off its backend's connection, resetting the stream there."""
        upstream = self.upstream
        if upstream is None:
            return
        self.upstream = None
        stream_id = self.request.sink_id
        upstream.forget(self.request)
        if code is not None and upstream.transport is not None:
            upstream.reset(stream_id, code)
        upstream.close_stream(stream_id)

    def _leave(self, reason: Reason | None, now: float | None = None) -> None:
        """Leave nothing behind on the client's connection, in timers and in the ledger."""
        # HOT PATH (benchmarks/load).
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.watch is not None:
            self.watch()
            self.watch = None
        request, response = self.request, self.response
        request.ended = response.ended = True
        if request.held or request.retained is not None:
            request.clear()
        if response.held:
            response.clear()
        server = self.server
        if server.waiting:
            server.forget(response)
        server.close_stream(self.client_id)
        # The pipes point at each other and here: break the rings so that no collector is needed.
        request.owner = response.owner = None
        response.opposite = self.relay.no_pipe
        self.relay.dispatcher.finish(self, reason, now)


def _shorter(asked_s: float | None, own_s: float) -> float:
    """How long a call may take for which its client, or the configuration, says so, or both; what
    is not said is None or 0."""
    return min(asked_s, own_s) if asked_s and own_s else asked_s or own_s
