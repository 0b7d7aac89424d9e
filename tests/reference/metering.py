"""A plain version of the meter: keeps every record and counts them when asked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from lb.domain.backend import LATENCY_BOUNDS_S
from lb.telemetry.labels import code_label, is_failure
from lb.telemetry.meter import MAX_CODES, MAX_MODEL_NAME
from lb.telemetry.record import RequestRecord

Series = tuple[str, frozenset[tuple[str, str]]]


def count(records: Sequence[RequestRecord], max_models: int) -> Counter[Series]:
    """The series of request metrics after these records. Durations must be exact in binary."""
    series: Counter[Series] = Counter()

    def add(name: str, amount: float = 1, **labels: str) -> None:
        series[name, frozenset(labels.items())] += amount  # type: ignore[assignment]

    labelled: set[bytes] = set()
    for record in records:
        code = record.grpc_status if record.protocol.label == "grpc" else record.status
        if is_failure(record.protocol, code) or record.operation.kind.value != "inference":
            continue
        if not 0 < len(record.model) <= MAX_MODEL_NAME:
            continue
        if len(labelled) < max_models:
            labelled.add(record.model)
    codes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        protocol = record.protocol.label
        code = record.grpc_status if protocol == "grpc" else record.status
        failed = is_failure(record.protocol, code)
        add(
            "triton_lb_requests_total",
            backend=record.backend.name if record.backend else "",
            protocol=protocol,
            code=code_label(record.protocol, code),
        )
        add(
            "triton_lb_operation_requests_total",
            operation=record.operation.name,
            protocol=protocol,
        )
        took = record.ended_at - record.started_at
        histogram = "triton_lb_request_duration_seconds"
        kind = record.operation.kind.value
        for bound in (*LATENCY_BOUNDS_S, float("inf")):
            if took <= bound:
                le = "+Inf" if bound == float("inf") else str(bound)
                add(f"{histogram}_bucket", protocol=protocol, kind=kind, le=le)
        add(f"{histogram}_count", protocol=protocol, kind=kind)
        add(f"{histogram}_sum", took, protocol=protocol, kind=kind)
        add("triton_lb_request_bytes_total", record.bytes_in, protocol=protocol)
        add("triton_lb_response_bytes_total", record.bytes_out, protocol=protocol)
        # What is put to all backends has as many attempts, none of them again.
        retries = max(record.attempts - 1, 0) if record.backend else 0
        add("triton_lb_retries_total", retries, protocol=protocol)
        if record.reason:
            reason = record.reason.value
            add("triton_lb_request_errors_total", protocol=protocol, reason=reason)
        if record.model:
            model = record.model.decode() if record.model in labelled else "other"
            known = codes[model, protocol]
            label = code_label(record.protocol, code)
            if label not in known and len(known) >= MAX_CODES:
                label = "other"
            known.add(label)
            add("triton_lb_model_requests_total", model=model, protocol=protocol, code=label)
            if kind == "inference" and not failed:
                histogram = "triton_lb_model_request_duration_seconds"
                for bound in (*LATENCY_BOUNDS_S, float("inf")):
                    if took <= bound:
                        le = "+Inf" if bound == float("inf") else str(bound)
                        add(f"{histogram}_bucket", model=model, le=le)
                add(f"{histogram}_count", model=model)
                add(f"{histogram}_sum", took, model=model)
    return series
