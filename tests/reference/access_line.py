"""A plain version of the access log's line, for records whose values are short."""

from __future__ import annotations

from typing import Any

from lb.domain.backend import AppProtocol
from lb.telemetry.labels import code_label
from lb.telemetry.record import RequestRecord


def fields(record: RequestRecord) -> dict[str, Any]:
    """What the line of this record says, apart from its time and a made-up request id."""

    def text(value: bytes) -> str:
        return value.decode("utf-8", "backslashreplace")

    def ms(at: float, since: float) -> float | None:
        return float(f"{(at - since) * 1000:.3f}") if at else None

    is_grpc = record.protocol is AppProtocol.GRPC
    has_grpc_status = is_grpc and record.grpc_status >= 0
    return {
        "protocol": "grpc" if is_grpc else "http",
        "operation": record.operation.name,
        "method": text(record.method),
        "path": text(record.path),
        "model": text(record.model) or None,
        "variant": record.variant or None,
        "sequence": record.sequence,
        "backend": record.backend.name if record.backend else None,
        "attempts": record.attempts,
        "parts": record.parts or None,
        "queue_ms": ms(record.placed_at, record.started_at),
        "queue_position": record.queue_position,
        "queue_why": record.queue_why or None,
        "connect_ms": ms(record.connected_at, record.placed_at),
        "first_byte_ms": ms(record.first_byte_at, record.started_at),
        "total_ms": ms(record.ended_at, record.started_at),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "status": record.status or None,
        "grpc_status": code_label(record.protocol, record.grpc_status) if has_grpc_status else None,
        "reason": record.reason.value if record.reason else None,
        "client": record.client,
        "token": record.token or None,
    }
