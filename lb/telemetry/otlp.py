"""Encodes spans as OTLP (opentelemetry-proto 1, `trace/v1/trace.proto`), and reads the answer.

The messages that are written are few, and their field numbers never change: see
docs/decisions/0058-traces.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from struct import pack
from typing import Final

from lb.domain.backend import AppProtocol
from lb.domain.operation import OperationKind
from lb.domain.outcome import OUTCOME_REASONS, Outcome
from lb.domain.server_errors import is_span_error
from lb.domain.why import Why
from lb.telemetry.access_log import CLIENTS_FAULT
from lb.telemetry.facts import FACTS, GRPC_STATUS
from lb.telemetry.labels import code_label, is_failure
from lb.telemetry.spans import AttemptSpan, RequestSpan, Span
from lb.wire.protobuf import BYTES, VARINT, fields, varint

Attributes = list[tuple[str, str | bytes | int | float]]
_GRPC: Final = AppProtocol.GRPC
_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
"""`SpanKind`."""
_ERROR: Final = 2
"""`Status.STATUS_CODE_ERROR`."""
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_TEXT_BYTES: Final = 1024
"""More of a text is not sent: paths and names come from clients."""
_PLACEHOLDERS: Final = re.compile(
    r"/(?P<key>models|versions|region|modeltype)/(?P<name>[^/:]+)", re.IGNORECASE
)


def _number(value: int) -> bytes:
    """A varint. Of a negative number as int64 has it."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    """A field with a length: a text, bytes or a message."""
    return _number(number << 3 | 2) + _number(len(value)) + value


def _int(number: int, value: int) -> bytes:
    return _number(number << 3) + _number(value)


def _fixed64(number: int, value: int) -> bytes:
    return _number(number << 3 | 1) + pack("<Q", value)


def _attribute(key: str, value: str | bytes | int | float) -> bytes:
    if isinstance(value, bool):
        encoded = _int(2, value)
    elif isinstance(value, int):
        encoded = _int(3, value)
    elif isinstance(value, float):
        encoded = _number(4 << 3 | 1) + pack("<d", value)
    else:
        if isinstance(value, bytes):
            value = value[:_TEXT_BYTES].decode("utf-8", "backslashreplace")
        encoded = _bytes(1, value[:_TEXT_BYTES].encode("utf-8", "replace"))
    return _bytes(1, key.encode()) + _bytes(2, encoded)


def encode_resource(attributes: Mapping[str, str]) -> bytes:
    """Encode whose spans they are; once for all requests to the collector."""
    return b"".join(_bytes(1, _attribute(key, value)) for key, value in attributes.items())


def encode_request(resource: bytes, version: str, spans: Iterable[bytes]) -> bytes:
    """Encode an `ExportTraceServiceRequest`.

    Args:
        resource: by `encode_resource`.
        version: of this program.
        spans: by `SpanEncoder`.
    """
    scope = _bytes(1, b"triton-lb") + _bytes(2, version.encode())
    of_scope = _bytes(1, scope) + b"".join(_bytes(2, span) for span in spans)
    of_scope += _bytes(3, _SCHEMA.encode())
    of_resource = _bytes(1, resource) + _bytes(2, of_scope) + _bytes(3, _SCHEMA.encode())
    return _bytes(1, of_resource)


def route_of(kind: OperationKind, path: bytes) -> str:
    """The pattern of a path, without names that clients choose; empty for an unknown operation."""
    if kind is OperationKind.OTHER:
        return ""
    text = path.decode("ascii", "replace")
    return _PLACEHOLDERS.sub(lambda match: f"/{match['key']}/{{{match['key'].rstrip('s')}}}", text)


class SpanEncoder:
    """Encodes spans, whose times it takes to Unix time."""

    def __init__(self, epoch_ns: Callable[[], int]) -> None:
        """
        Args:
            epoch_ns: Unix time in nanoseconds at which the monotonic clock was 0.
        """
        self._epoch_ns = epoch_ns

    def encode(self, span: Span) -> list[bytes]:
        """Encode a span; of a request that waited, that of its waiting as well."""
        if isinstance(span, AttemptSpan):
            return [self._attempt(span)]
        found = [self._request(span)]
        if span.queue_id:
            found.append(self._queue(span))
        return found

    def _span(
        self,
        ids: tuple[bytes, bytes, bytes, bytes],
        name: str,
        kind: int,
        times: tuple[float, float],
        attributes: Attributes,
        error: str,
    ) -> bytes:
        trace_id, span_id, parent_id, state = ids
        epoch_ns = self._epoch_ns()
        start_ns, end_ns = (epoch_ns + int(each * 1e9) for each in times)
        parts = [
            _bytes(1, bytes.fromhex(trace_id.decode())),
            _bytes(2, bytes.fromhex(span_id.decode())),
            _bytes(3, state) if state else b"",
            _bytes(4, bytes.fromhex(parent_id.decode())) if parent_id else b"",
            _bytes(5, name.encode()),
            _int(6, kind),
            _fixed64(7, start_ns),
            _fixed64(8, max(start_ns, end_ns)),
            *[_bytes(9, _attribute(key, value)) for key, value in attributes],
        ]
        if error:
            parts.append(_bytes(9, _attribute("error.type", error)))
            parts.append(_bytes(15, _int(3, _ERROR)))
        return b"".join(parts)

    def _request(self, span: RequestSpan) -> bytes:
        is_grpc = span.protocol is _GRPC
        attributes: Attributes = []
        for fact in FACTS:
            key = fact.grpc if is_grpc else fact.http
            if key and (value := fact.read(span)) is not None:
                attributes.append((key, value))
        if span.request_id:
            attributes.append(("triton_lb.request_id", span.request_id))
        if span.is_late:
            attributes.append(("triton_lb.late", True))
        code = span.grpc_status if is_grpc else span.status
        error = ""
        if span.reason is not None and span.reason not in CLIENTS_FAULT:
            error = span.reason.value
        elif is_span_error(span.protocol, code):
            error = code_label(span.protocol, code)
        name = _add_protocol(attributes, span)
        ids = (span.trace_id, span.span_id, span.parent_id, span.state)
        times = (span.started_at, span.ended_at)
        return self._span(ids, name, _SERVER, times, attributes, error)

    def _queue(self, span: RequestSpan) -> bytes:
        attributes: Attributes = []
        if span.queue_why:
            attributes.append(("triton_lb.queue_why", span.queue_why))
        if span.queue_position is not None:
            attributes.append(("triton_lb.queue_position", span.queue_position))
        if span.is_late:
            attributes.append(("triton_lb.late", True))
        ids = (span.trace_id, span.queue_id, span.span_id, span.state)
        times = (span.started_at, span.placed_at or span.ended_at)
        return self._span(ids, "queue", _INTERNAL, times, attributes, "")

    def _attempt(self, span: AttemptSpan) -> bytes:
        is_grpc = span.protocol is _GRPC
        address = span.address
        attributes: Attributes = [
            ("triton_lb.backend", span.backend),
            ("triton_lb.why", span.why.value),
            ("triton_lb.attempt", span.number),
            ("triton_lb.outcome", span.outcome.value),
            ("server.address", address.path or address.host),
        ]
        if not address.path:
            attributes.append(("server.port", address.port))
        if span.connected_at:
            wait_ms = (span.connected_at - span.began_at) * 1000
            attributes.append(("triton_lb.connect_ms", wait_ms))
        if span.first_byte_at:
            wait_ms = (span.first_byte_at - span.began_at) * 1000
            attributes.append(("triton_lb.first_byte_ms", wait_ms))
        if span.is_late:
            attributes.append(("triton_lb.late", True))
        error = ""
        if span.outcome is not Outcome.ANSWERED:
            if span.outcome is not Outcome.OVERTAKEN:
                error = OUTCOME_REASONS[span.outcome].value
        else:
            label = code_label(span.protocol, span.code)
            if is_grpc:
                attributes.append((GRPC_STATUS, label))
            else:
                attributes.append(("http.response.status_code", span.code))
            if is_failure(span.protocol, span.code):
                error = label
        if span.number > 1 and not is_grpc and span.why is Why.RETRY:
            attributes.append(("http.request.resend_count", span.number - 1))
        if not is_grpc:
            attributes.append(("http.request.method", span.method))
        name = _add_protocol(attributes, span)
        ids = (span.trace_id, span.span_id, span.parent_id, span.state)
        return self._span(ids, name, _CLIENT, (span.began_at, span.ended_at), attributes, error)


def _add_protocol(attributes: Attributes, span: Span) -> str:
    """Add what the conventions want of each span of the protocol; returns the name of the span."""
    if span.protocol is _GRPC:
        method = span.path.lstrip(b"/").decode("ascii", "replace")
        if span.operation.kind is OperationKind.OTHER:
            # Clients make up names of methods; the span's must be one of few.
            attributes.append(("rpc.method", "_OTHER"))
            name = "_OTHER"
        else:
            attributes.append(("rpc.method", method))
            name = method
        attributes.append(("rpc.system.name", "grpc"))
        return name
    route = route_of(span.operation.kind, span.path)
    method = span.method.decode("ascii", "replace")
    attributes.append(("network.protocol.version", "1.1"))
    if not route:
        return method if method in _METHODS else "HTTP"
    attributes.append(("http.route", route))
    return f"{method} {route}"


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


def rejected_spans(answer: bytes) -> int:
    """How many spans a collector has not taken, by its `ExportTraceServiceResponse`.

    Raises:
        ProtobufError: it is none.
    """
    for number, kind, start, end in fields(answer):
        if number == 1 and kind == BYTES:
            for inner, inner_kind, at, stop in fields(answer, start, end):
                if inner == 1 and inner_kind == VARINT:
                    return varint(answer, at, stop)[0]
    return 0
