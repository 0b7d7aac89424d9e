"""Inferences that are looked into for shared memory, which their client may not use.

As `lb.proxy.http1.watched`: what names a region does not reach the backend as a whole.
"""

from __future__ import annotations

from typing import Any

from lb.access.gate import Claim
from lb.domain.outcome import Reason
from lb.kserve.regions import REFUSED, GrpcRegionWatch
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_call import StreamCall
from lb.wire.http2.flow import Payload, Pipe


class WatchedCall(Call):
    """A unary inference, where `access.strict_shared_memory` is on."""

    __slots__ = ("_watch",)

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        self._watch = watch_of(self)
        super()._proceed(end_stream)

    def passes(self, pipe: Pipe[Any]) -> bool:
        """Whether payload goes on as it comes: what is watched does not."""
        return self._watch is None and super().passes(pipe)

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        if not is_refused(self, self._watch, payload):
            super().request_data(payload, end_stream)


class WatchedStreamCall(StreamCall):
    """A stream of inferences, where that is on."""

    __slots__ = ("_watch",)

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        self._watch = watch_of(self)
        super()._proceed(end_stream)

    def passes(self, pipe: Pipe[Any]) -> bool:
        """Whether payload goes on as it comes: what is watched does not."""
        return self._watch is None and super().passes(pipe)

    def take_message(self, payload: bytes, size: int) -> bool:
        """See `StreamCall`."""
        return self._watch is None and super().take_message(payload, size)

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        if not is_refused(self, self._watch, payload):
            super().request_data(payload, end_stream)


def watch_of(call: Call) -> GrpcRegionWatch | None:
    """What looks into a call; None where its client may name regions."""
    claim = call.head.claim
    known = claim if isinstance(claim, Claim) else None
    gate = call.relay.dispatcher.gate
    return None if gate.may_use_memory(known, call.server.client) else GrpcRegionWatch()


def is_refused(call: Call, watch: GrpcRegionWatch | None, payload: Payload) -> bool:
    """Whether payload completes the name of a region; the call has ended then."""
    if watch is not None and watch.refuses(payload) and not call.finished:
        call.fail(Reason.CONTROL_REFUSED, REFUSED)
        return True
    return False
