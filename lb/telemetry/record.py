"""What is known of one request when it ends: the source of the access log and of metrics."""

from __future__ import annotations

from typing import Protocol

from lb.domain.backend import AppProtocol, Backend
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.wire.native import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestRecord:
    """Facts of one request. The relay's exchanges extend it, so a request costs one object.

    Times are monotonic seconds; 0.0 means that it did not happen. Byte counts are payload.
    """

    __slots__ = (
        "attempts", "backend", "bytes_in", "bytes_out", "client", "ended_at", "grpc_status",
        "method", "model", "operation", "path", "placed_at", "protocol", "reason", "request_id",
        "started_at", "status", "token",
    )  # fmt: skip

    protocol: AppProtocol
    operation: Operation
    method: bytes
    path: bytes
    model: bytes
    """Name of the ML model as it stands on the wire; empty where there is none."""
    backend: Backend | None
    """The backend of the last attempt."""
    attempts: int
    """At backends; of a request that was put to all of them how many were asked."""
    client: str
    """Address of the peer."""
    token: str
    """Name of the token that the client showed; empty without one, or without need of one."""
    request_id: bytes
    """The client's `x-request-id`; empty when it sent none."""
    started_at: float
    """The head was complete."""
    placed_at: float
    """A backend was chosen; what lies before is queueing."""
    ended_at: float
    bytes_in: int
    bytes_out: int
    status: int
    """HTTP status sent to the client; 0 when none was."""
    grpc_status: int
    """gRPC status; -1 for HTTP, and where the call ended without one."""
    reason: Reason | None
    """Set when we answered ourselves or cut the exchange short."""

    @property
    def variant(self) -> str:
        """The variant that served it, behind its name and a slash; empty without one."""
        return ""

    @property
    def connected_at(self) -> float:
        """The last attempt had a connection."""
        return 0.0

    @property
    def first_byte_at(self) -> float:
        """The head of its response arrived."""
        return 0.0

    @property
    def trace_id(self) -> bytes:
        """The trace that it belongs to, 32 hexadecimal digits; empty where it is not traced."""
        return b""

    @property
    def sequence(self) -> int | str | None:
        """The id of the sequence that it is a step of."""
        return None

    @property
    def parts(self) -> int:
        """Into how many parts its batch was cut; 0 where it was not."""
        return 0

    @property
    def queue_position(self) -> int | None:
        """How many waited before it when it joined a queue; None where it did not wait."""
        return None

    @property
    def queue_why(self) -> str:
        """Why it had to wait for its turn; empty where it had not."""
        return ""


class RequestSink(Protocol):
    """Takes finished requests: counts them, logs them."""

    def finished(self, record: RequestRecord) -> None:
        """One request ended. Hot: called once per request; must not keep the record, whose attempt
        is forgotten afterwards."""
        ...


class SinkSet:
    """Hands every record to each sink, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: RequestSink) -> None:
        self._sinks = sinks

    def finished(self, record: RequestRecord) -> None:
        """Hand the record on."""
        for sink in self._sinks:
            sink.finished(record)


def combine(*sinks: RequestSink) -> RequestSink:
    """One sink for all; a single one is returned as it is, so it costs no extra call."""
    return sinks[0] if len(sinks) == 1 else SinkSet(*sinks)
