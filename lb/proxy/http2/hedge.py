"""A second attempt at a call, beside one that is slow: the first of the two that answers counts.

When there is one decides `lb.proxy.hedging`.
"""

from __future__ import annotations

from typing import Any, Final

from lb.domain.backend import Backend, Port
from lb.domain.outcome import Outcome, Reason
from lb.proxy.http2.attempt import GrpcAttempt, ResponseSink
from lb.proxy.http2.call import Call
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Pipe
from lb.wire.http2.frames import ErrorCode
from lb.wire.http2.heads import ResponseHead


class HedgeSink(ResponseSink):
    """The response of a hedge. If its head is the first that comes, the hedge takes the place of
    the first attempt, and the response goes to the client. Whatever else comes of a hedge ends it
    alone."""

    __slots__ = ()

    def take_head(self, attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
        """See `ResponseSink`."""
        if head.status < 200 and not end_stream:
            return True
        if _wins(attempt, head, end_stream):
            _overtake(attempt)
            return False
        _end_answered(attempt, head, end_stream)
        return True

    def may_retry(self, outcome: Outcome) -> bool:
        """See `ResponseSink`."""
        return False

    def failed(
        self,
        attempt: GrpcAttempt,
        outcome: Outcome,
        reason: Reason,
        detail: str,
        status: GrpcStatus | None,
    ) -> None:
        """See `ResponseSink`."""
        attempt.give_up(outcome, None)

    def backend_hung(self, attempt: GrpcAttempt) -> None:
        """See `ResponseSink`."""
        attempt.give_up(Outcome.STALLED, ErrorCode.CANCEL)

    def give_way(self, attempt: GrpcAttempt) -> None:
        """See `ResponseSink`."""
        attempt.give_up(Outcome.CANCELLED, ErrorCode.CANCEL)


_HEDGE_SINK: Final = HedgeSink()


def _wins(attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> bool:
    """Whether a hedge is faster than the first attempt. It is not with an error, which is not what
    one hopes for: the first attempt goes on."""
    call = attempt.call
    return (
        head.is_answer
        and not end_stream
        and call.is_sent
        and call.is_under_way
        and attempt.request.finished
    )


def _overtake(attempt: GrpcAttempt) -> None:
    """The response of a hedge is the one that the client gets."""
    call = attempt.call
    first = call.attempt
    assert isinstance(first, GrpcAttempt)
    call.relay.accounts.overtake(call)
    first.abandon(Outcome.OVERTAKEN)
    call.request.clear()  # what was kept is needed no more
    attempt.take_over()


def _end_answered(attempt: GrpcAttempt, head: ResponseHead, end_stream: bool) -> None:
    """End a hedge that was answered with what is nothing for the client. If its response has ended,
    there is nothing to wait for."""
    code = None if end_stream and attempt.request.finished else ErrorCode.CANCEL
    if not head.is_answer or (end_stream and not head.grpc_status):
        # Not of gRPC, or status OK without a message.
        attempt.give_up(Outcome.PROTOCOL_ERROR, code)
        return
    if head.grpc_status > 0:
        attempt.tell_of_error(head)
    if head.grpc_status >= 0:
        attempt.call.relay.accounts.attempt_ended(attempt, Outcome.ANSWERED, head.grpc_status)
    attempt.give_up(Outcome.OVERTAKEN, code)


def make_hedge(call: Call, backend: Backend, port: Port, began_at: float) -> GrpcAttempt:
    """An attempt beside the first, with pipes of its own: its request is complete."""
    relay = call.relay
    attempt = GrpcAttempt(call, backend, port, began_at)
    request: Pipe[Any] = Pipe(attempt, relay.memory_budget, 0, 0)
    response: Pipe[Any] = Pipe(attempt, relay.memory_budget, relay.options.answer_window, 0)
    request.opposite, response.opposite = response, request
    request.ended = True
    request.trailers = call.request.trailers
    attempt.request, attempt.response = request, response
    attempt.sink = _HEDGE_SINK
    return attempt
