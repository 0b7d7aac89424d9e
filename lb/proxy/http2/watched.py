"""Inferences that are looked into for shared memory, which their client may not use.

As `lb.proxy.http1.watched`: what names a region does not reach the backend as a whole.
"""

from __future__ import annotations

from typing import Any

from lb.access.gate import Claim
from lb.domain.outcome import Reason
from lb.kserve.regions import GrpcRegionWatch, Inspection
from lb.proxy.http2.call import Call
from lb.proxy.http2.look import frames_of
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
        """Payload of the request arrived, or comes again."""
        if self._watch is None or self._watch.clears(self, payload, end_stream):
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
        """Payload of the request arrived, or comes again."""
        if self._watch is None or self._watch.clears(self, payload, end_stream):
            super().request_data(payload, end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `Call`: not all of it is inspected yet, or not all of it has gone its way."""
        if self._watch is not None and self._watch.is_under_way:
            self.request_data(payload, end_stream)
        else:
            super().resume_request(payload, end_stream)


class CallWatch:
    """Inspects the payload of one call, a step in each turn of the loop."""

    __slots__ = ("_inspection", "_regions")

    def __init__(self) -> None:
        self._regions = GrpcRegionWatch()
        self._inspection: Inspection | None = None
        """Of payload that not all of was looked at."""

    @property
    def is_under_way(self) -> bool:
        """Whether payload that was postponed is still to be inspected."""
        return self._inspection is not None

    def clears(self, call: Call, payload: Payload, end_stream: int) -> bool:
        """Take the next step. Returns whether all of the payload may go on.

        If not, the call has ended, or the payload comes again in the next turn.
        """
        inspection = self._inspection or self._regions.inspect(payload)
        self._inspection = None
        try:
            next(inspection)
        except StopIteration as done:
            call.server.inspected += frames_of(self._regions.seen)
            if done.value:
                call.fail(Reason.CONTROL_REFUSED, done.value)
                return False
            return True
        self._inspection = inspection
        call.server.postpone(call.request, payload, end_stream)
        return False


def watch_of(call: Call) -> CallWatch | None:
    """What looks into a call; None where its client may name regions."""
    claim = call.head.claim
    known = claim if isinstance(claim, Claim) else None
    gate = call.relay.dispatcher.gate
    return None if gate.may_use_memory(known, call.server.client) else CallWatch()
