"""What looks into inferences whose client may not use shared memory.

As over HTTP/1.1, what names a region does not reach the backend as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lb.access.gate import Claim
from lb.domain.outcome import Reason
from lb.kserve.operations import MODEL_INFER, MODEL_STREAM_INFER
from lb.kserve.regions import GrpcRegionWatch, Inspection
from lb.proxy.http2.look import frames_of
from lb.wire.http2.flow import Payload

if TYPE_CHECKING:
    from lb.proxy.http2.call import Call


INFERENCES: Final = frozenset({MODEL_INFER, MODEL_STREAM_INFER})
"""Calls that may name regions."""


class MemoryGuard:
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


def guard_of(call: Call) -> MemoryGuard | None:
    """What looks into a call; None where its client may name regions, or it is no inference."""
    if call.operation not in INFERENCES:
        return None
    claim = call.head.claim
    known = claim if isinstance(claim, Claim) else None
    gate = call.relay.dispatcher.gate
    return None if gate.may_use_memory(known, call.server.client) else MemoryGuard()
