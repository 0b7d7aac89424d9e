"""What is told of a finished request: one table for the access log and for spans.

Names of span attributes are those of OpenTelemetry's semantic conventions 1.44 where these have
one, https://opentelemetry.io/docs/specs/semconv/; others begin with `triton_lb.`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from lb.domain.backend import AppProtocol
from lb.telemetry.labels import code_label
from lb.telemetry.record import RequestRecord

Value = str | bytes | int | float | None
"""Bytes are text of the wire; floats are milliseconds; None: it did not happen."""
GRPC_STATUS: Final = "rpc.response.status_code"
"""As of 1.44; renamed to `rpc.status_code` since (open-telemetry/semantic-conventions#3921)."""
_GRPC: Final = AppProtocol.GRPC


class Fact(NamedTuple):
    """One fact of a request."""

    log: str
    """Its key in the access log."""
    http: str
    """The attribute of a span of HTTP; empty where it is none."""
    grpc: str
    """The attribute of a span of gRPC; empty where it is none."""
    read: Callable[[RequestRecord], Value]
    is_long: bool = False
    """It may be as long as a path."""


def _since(at: float, start: float) -> float | None:
    return (at - start) * 1000 if at else None


def _grpc_status(record: RequestRecord) -> str | None:
    if record.protocol is not _GRPC or record.grpc_status < 0:
        return None
    return code_label(_GRPC, record.grpc_status)


def _queue_position(record: RequestRecord) -> int | None:
    return record.queue_position if record.queue_why else None


def _both(
    log: str, span: str, read: Callable[[RequestRecord], Value], *, is_long: bool = False
) -> Fact:
    return Fact(log, span, span, read, is_long)


FACTS: Final = (
    _both("protocol", "", lambda record: record.protocol.label),
    _both("operation", "triton_lb.operation", lambda record: record.operation.name),
    Fact("method", "http.request.method", "", lambda record: record.method),
    Fact("path", "url.path", "", lambda record: record.path, is_long=True),
    _both("model", "triton_lb.model", lambda record: record.model or None),
    _both("variant", "triton_lb.variant", lambda record: record.variant or None),
    _both("sequence", "triton_lb.sequence", lambda record: record.sequence),
    _both(
        "backend",
        "triton_lb.backend",
        lambda record: record.backend.name if record.backend else None,
    ),
    _both("attempts", "triton_lb.attempts", lambda record: record.attempts),
    _both("parts", "triton_lb.parts", lambda record: record.parts or None),
    _both(
        "queue_ms",
        "triton_lb.queue_ms",
        lambda record: _since(record.placed_at, record.started_at),
    ),
    _both("queue_position", "triton_lb.queue_position", _queue_position),
    _both("queue_why", "triton_lb.queue_why", lambda record: record.queue_why or None),
    _both("connect_ms", "", lambda record: _since(record.connected_at, record.placed_at)),
    _both(
        "first_byte_ms",
        "triton_lb.first_byte_ms",
        lambda record: _since(record.first_byte_at, record.started_at),
    ),
    _both("total_ms", "", lambda record: _since(record.ended_at, record.started_at)),
    _both("bytes_in", "triton_lb.bytes_in", lambda record: record.bytes_in),
    _both("bytes_out", "triton_lb.bytes_out", lambda record: record.bytes_out),
    Fact("status", "http.response.status_code", "", lambda record: record.status or None),
    Fact("grpc_status", "", GRPC_STATUS, _grpc_status),
    _both(
        "reason",
        "triton_lb.reason",
        lambda record: record.reason.value if record.reason else None,
    ),
    _both("client", "client.address", lambda record: record.client),
    _both("token", "triton_lb.tenant", lambda record: record.token or None),
    _both("trace_id", "", lambda record: record.trace_id or None),
)
"""In the order of the access log, behind `time` and `request_id`."""
