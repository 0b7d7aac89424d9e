"""Streams of inferences, whose errors are looked into. See `lb.kserve.gate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lb.kserve.gate import StreamMask
from lb.proxy.http2.call import Call
from lb.wire.http2.flow import Payload
from lb.wire.http2.heads import RequestHead, ResponseHead

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink


class ScreenedCall(Call):
    """A call whose client does not get all that the backend sends."""

    __slots__ = ("_mask",)

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self._mask = StreamMask()

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """See `Call`: there is more to do than a write."""
        return False

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """See `Call`."""
        super().response_data(self._mask.feed(payload), end_stream)
