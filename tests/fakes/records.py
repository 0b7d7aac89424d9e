"""Finished requests as the relay would hand them over."""

from __future__ import annotations

from typing import Any

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation, OperationKind
from lb.telemetry.record import RequestRecord
from lb.telemetry.spans import Record
from lb.wire.trace_context import TraceContext

INFER = Operation("ModelInfer", OperationKind.INFERENCE)


class PlainRecord(RequestRecord):
    """A record of a good HTTP inference without a backend; facts are overridden by name."""

    __slots__ = ("connected_at", "first_byte_at", "sequence")

    def __init__(self, **facts: Any) -> None:
        usual: dict[str, Any] = {
            "protocol": AppProtocol.HTTP,
            "operation": INFER,
            "method": b"POST",
            "path": b"/v2/models/simple/infer",
            "model": b"simple",
            "backend": None,
            "attempts": 1,
            "client": "10.0.0.9:4711",
            "token": "",
            "request_id": b"",
            "started_at": 100.0,
            "placed_at": 100.001,
            "connected_at": 100.003,
            "first_byte_at": 100.010,
            "ended_at": 100.0125,
            "bytes_in": 130,
            "bytes_out": 200,
            "status": 200,
            "grpc_status": -1,
            "reason": None,
            "sequence": None,
        }
        for name, value in (usual | facts).items():
            setattr(self, name, value)


def grpc_record(**facts: Any) -> PlainRecord:
    """A good gRPC inference."""
    usual: dict[str, Any] = {
        "protocol": AppProtocol.GRPC,
        "path": b"/inference.GRPCInferenceService/ModelInfer",
        "grpc_status": 0,
    }
    return PlainRecord(**(usual | facts))


def request_record(
    record: PlainRecord,
    number: int = 1,
    context: TraceContext | None = None,
    *,
    is_late: bool = False,
    has_waited: bool = False,
) -> Record:
    """A finished request as the relay leaves it to be sent as a span."""
    return (
        (
            number, context, is_late,
            record.protocol, record.operation, record.method, record.path,
        ),
        (
            record.model, record.backend, record.attempts, record.client, record.token,
            record.request_id, record.started_at, record.placed_at, record.connected_at,
            record.first_byte_at, record.ended_at, record.bytes_in, record.bytes_out,
            record.status, record.grpc_status, record.reason, False,
        ),
        (record.sequence, record.variant, record.parts, has_waited, None, ""),
        None,
    )  # fmt: skip
