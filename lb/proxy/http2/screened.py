"""Calls whose messages are looked into: registrations of shared memory, and the errors in streams
of inferences. See `lb.kserve.gate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lb.domain.outcome import Reason
from lb.kserve.gate import REFUSED, MessageWatch, StreamMask, is_registration
from lb.proxy.http2.call import Call
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.flow import Payload
from lb.wire.http2.heads import RequestHead, ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink


class ScreenedCall(Call):
    """A call of which neither side gets all that the other sends."""

    __slots__ = ("_mask", "_watch")

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self._watch = MessageWatch() if is_registration(self.operation) else None
        """Until the message of a registration is known to be harmless."""
        self._mask = StreamMask()

    def _place(self) -> None:
        if self._watch is not None and not self.request.ended:
            self.held_back = True
        else:
            super()._place()

    def _peek(self, payload: Payload, end_stream: int) -> bool:
        watch = self._watch
        if watch is None:
            return super()._peek(payload, end_stream)
        may_pass = watch.feed(payload)
        if may_pass is False:
            self.fail(Reason.BAD_REQUEST, REFUSED, status=GrpcStatus.INVALID_ARGUMENT)
        elif may_pass or end_stream:
            self.held_back = False
            self._watch = None
            self._place()
        return not self.finished

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """See `Call`: there is more to do than a write."""
        return False

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """See `Call`."""
        super().response_data(self._mask.feed(payload), end_stream)
