"""What looks into inferences whose client may not use shared memory.

As over HTTP/1.1, what names a region does not reach the backend as a whole.
"""

from __future__ import annotations

from typing import Final

from lb.access.gate import Credentials, Gate
from lb.domain.client import Client
from lb.domain.operation import Operation
from lb.kserve.operations import MODEL_INFER, MODEL_STREAM_INFER
from lb.kserve.regions import GrpcRegionWatch, Inspection
from lb.proxy.http2.inspection import frames_of
from lb.wire.http2.flow import Payload

INFERENCES: Final = frozenset({MODEL_INFER, MODEL_STREAM_INFER})
"""Calls that may name regions."""


class MemoryGuard:
    """Inspects the payload of one call, a step in each iteration of the loop."""

    __slots__ = ("_inspection", "_regions")

    def __init__(self) -> None:
        self._regions = GrpcRegionWatch()
        self._inspection: Inspection | None = None
        """Inspects payload that is not inspected to its end."""

    @property
    def is_under_way(self) -> bool:
        """Whether payload that was postponed is still to be inspected."""
        return self._inspection is not None

    def inspect(self, payload: Payload) -> str | None:
        """Take the next step.

        Returns:
            None where the same payload is to be inspected further, in the next turn; else what is
            wrong with it, empty if nothing is.
        """
        inspection = self._inspection or self._regions.inspect(payload)
        self._inspection = None
        try:
            next(inspection)
        except StopIteration as done:
            wrong: str = done.value
            return wrong
        self._inspection = inspection
        return None

    @property
    def frames(self) -> int:
        """How many frames take as long to be handled as what was inspected last."""
        return frames_of(self._regions.seen)


def guard_of(
    operation: Operation, credentials: object, client: Client, gate: Gate
) -> MemoryGuard | None:
    """What looks into a call; None where its client may name regions, or it is no inference."""
    if operation not in INFERENCES:
        return None
    known = credentials if isinstance(credentials, Credentials) else None
    return None if gate.may_use_memory(known, client) else MemoryGuard()
