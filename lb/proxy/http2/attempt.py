"""The attempts of one gRPC call at backends: how one ends, and whether another follows.

Another attempt sends what the pipe of the request has retained. Nothing of an answer has gone to
the client then, whoever ended the attempt: the backend, its silence, or an answer that says that
it cannot serve the call.
"""

from __future__ import annotations

from typing import Final

from lb.domain.outcome import Outcome, Reason
from lb.kserve.errors import GRPC_STATUSES, meaning
from lb.proxy.http2.joined import JoinedStreams
from lb.wire.grpc.status import GrpcStatus, decode_message, status_of_reset
from lb.wire.http2.frames import ErrorCode
from lb.wire.http2.heads import ResponseHead

_ALL_CANCELLED: Final = "Cancelling all calls"


class AttemptedCall(JoinedStreams):
    """A call that is placed at one backend after the other until one answers."""

    __slots__ = ()

    def _place(self) -> None:
        """Begin an attempt."""
        raise NotImplementedError

    def attempt_failed(
        self, outcome: Outcome, detail: str = "", status: GrpcStatus | None = None
    ) -> None:
        """The attempt ended without an answer; it is off its connection already.

        Args:
            outcome: how it ended.
            detail: of that, for the client.
            status: for the client, where it is not that of the outcome.
        """
        if self.finished or self._goes_again(outcome):
            return
        reason, text = self.relay.dispatcher.steps.failure(self, outcome)
        self.fail(reason, f"{text}: {detail}" if detail else text, status=status)

    def _goes_again(self, outcome: Outcome) -> bool:
        """End the attempt, and have the call placed again if it may be."""
        is_unsent = self.request.sink is None
        self._leave_attempt(outcome)
        if not self._may_retry(outcome, is_unsent=is_unsent):
            return False
        self._go_again(outcome, is_unsent=is_unsent)
        return True

    def _may_retry(self, outcome: Outcome, *, is_unsent: bool) -> bool:
        return self.relay.dispatcher.may_retry(
            self,
            outcome,
            body_retained=is_unsent or self.request.retained is not None,
            response_begun=self.begun,
        )

    def _leave_attempt(self, outcome: Outcome) -> None:
        request = self.request
        if self.upstream is not None:
            self.upstream.forget(request)
            self.upstream = None
        self.relay.dispatcher.attempt_ended(self, outcome)
        request.sink = None
        self.held_head = None
        self.held_text = b""

    def _go_again(self, outcome: Outcome, *, is_unsent: bool) -> None:
        if is_unsent or self.request.rewind():
            self.relay.dispatcher.go_again(self, outcome, self._place_anew)

    def _place_anew(self) -> None:
        self.relay.now = self.relay.clock()
        self._place()

    def backend_hung(self) -> None:
        """The backend is silent: go elsewhere, if that is allowed and there is somebody."""
        self._leave_backend(Outcome.STALLED)

    @property
    def is_sent(self) -> bool:
        """See `Exchange`."""
        return self.request.ended and not (self.begun or self.finished)

    def attempt_late(self) -> None:
        """See `Exchange`."""
        self._leave_backend(Outcome.LATE)

    def _leave_backend(self, outcome: Outcome) -> None:
        if self.begun or self.finished or self.port is None:
            return
        is_unsent = self.request.sink is None
        if is_unsent:
            outcome = Outcome.CONNECT_TIMEOUT
        if self._may_retry(outcome, is_unsent=is_unsent):
            self._detach(ErrorCode.CANCEL)
            self._leave_attempt(outcome)
            self._go_again(outcome, is_unsent=is_unsent)

    def give_up_stream(self, outcome: Outcome) -> None:
        """Another attempt takes the place of this one: it has sent the request."""
        self._detach(ErrorCode.CANCEL)
        self._leave_attempt(outcome)
        self.request.clear()

    def leave_parting(self) -> None:
        """Its backend is to become empty: a stream asks nothing of it any more, where it may ask
        another one."""

    def backend_stalled(self) -> None:
        """The backend has taken nothing of the request that waits for it."""
        self._detach(ErrorCode.CANCEL)
        self.attempt_failed(Outcome.STALLED)

    def upstream_reset(self, code: int) -> None:
        """The backend reset the stream; it is off its connection already."""
        if code == ErrorCode.REFUSED_STREAM and not self.begun and self.held_head is None:
            self.relay.dispatcher.tell_of_refusal(self)
            self.attempt_failed(Outcome.REFUSED)
            return
        if self.begun:
            # The response is on its way: the client's stream ends as the backend's did.
            self.grpc_status = status_of_reset(code)
            self._close(Outcome.RESET, Reason.UPSTREAM_RESET, None)
            self.server.reset(self.client_id, code)
            return
        if self.finished or self._goes_again(Outcome.RESET):
            return
        name = self.backend.name if self.backend is not None else "-"
        detail = f"backend {name} (grpc) reset the request with code {code}"
        self.fail(Reason.UPSTREAM_RESET, detail, status=status_of_reset(code))

    # Errors that a backend answers

    def _is_served_elsewhere(self, head: ResponseHead) -> bool:
        """An answer is nothing but an error: whether it shows that another backend may do better,
        and the call goes there."""
        if self._is_cut_off(head) and self._is_mended_elsewhere(Outcome.CUT_OFF):
            return True
        is_broken = self._tell_of_error(head)
        if head.grpc_status in GRPC_STATUSES and self._goes_elsewhere(head):
            return True
        return is_broken and self._is_mended_elsewhere(Outcome.BROKEN)

    def _is_cut_off(self, head: ResponseHead) -> bool:
        """Whether a server that shuts down ended the call, whose client did not. gRPC's own servers
        answer so: CANCELLED to what comes after their GOAWAY, and this text to what still ran."""
        upstream = self.upstream
        return (
            upstream is not None
            and upstream.going_away
            and (
                head.grpc_status == GrpcStatus.CANCELLED
                or (
                    head.grpc_status == GrpcStatus.UNAVAILABLE
                    and decode_message(head.grpc_message) == _ALL_CANCELLED
                )
            )
        )

    def _goes_elsewhere(self, head: ResponseHead) -> bool:
        """Whether the call goes to another backend, since this one says it cannot serve it."""
        known = meaning(decode_message(head.grpc_message))
        request = self.request
        upstream = self.upstream
        if (
            known is None
            or upstream is None
            or not self.relay.dispatcher.goes_elsewhere(
                self, known, body_retained=request.retained is not None
            )
        ):
            return False
        if not request.finished:
            upstream.reset(request.sink_id, ErrorCode.NO_ERROR)
        upstream.close_stream(request.sink_id)
        self.attempt_failed(Outcome.NOT_HERE)
        return True

    def _tell_of_error(self, head: ResponseHead) -> bool:
        """The backend answers with an error. Whether that says that it is broken."""
        text = decode_message(head.grpc_message)
        return self.relay.dispatcher.answered_with_error(self, head.grpc_status, text)

    def _is_mended_elsewhere(self, outcome: Outcome) -> bool:
        """Whether the call goes to another backend, since this one has ended it in some way."""
        request = self.request
        upstream = self.upstream
        if upstream is None or not self._may_retry(outcome, is_unsent=False):
            return False
        if not request.finished:
            upstream.reset(request.sink_id, ErrorCode.NO_ERROR)
        upstream.close_stream(request.sink_id)
        self._leave_attempt(outcome)
        self._go_again(outcome, is_unsent=False)
        return True
