"""Spans as OTLP, read by the published classes."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lb.domain.backend import AppProtocol, parse_address
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.domain.why import Why
from lb.telemetry.otlp import (
    SpanEncoder,
    encode_request,
    encode_resource,
    rejected_spans,
    route_of,
)
from lb.telemetry.spans import FIRST_SPAN, AttemptSpan, Span
from lb.telemetry.spans import spans_of as make_spans
from lb.wire.trace_context import TraceContext
from tests.fakes.backends import make_backend
from tests.fakes.otlp import CollectedSpan, spans_of
from tests.fakes.records import INFER, PlainRecord, grpc_record, request_record

OTHER = Operation("other", OperationKind.OTHER)
EPOCH_NS = 1_700_000_000_000_000_000


def sent(*spans: Span) -> list[CollectedSpan]:
    encoder = SpanEncoder(lambda: EPOCH_NS)
    encoded = [each for span in spans for each in encoder.encode(span)]
    return spans_of(encode_request(encode_resource({"service.name": "lb"}), "1.0", encoded))


def request_span(record: Any, *, is_late: bool = False, has_waited: bool = False) -> Span:
    context = TraceContext(b"a" * 32, b"c" * 16, 1, b"v=1")
    (span,) = make_spans(request_record(record, 1, context, is_late=is_late, has_waited=has_waited))
    return span


def attempt_span(
    record: Any,
    *,
    is_late: bool = False,
    why: Why = Why.FIRST,
    number: int = 1,
    outcome: Outcome = Outcome.ANSWERED,
    code: int = 0,
) -> Span:
    trace = (1, None, is_late, record.protocol, INFER, record.method, record.path)
    address = parse_address("10.0.0.7:8001")
    return AttemptSpan(
        trace, (FIRST_SPAN, why, "gpu-0", address, number, 1.0, 1.001, 1.5, 2.0, outcome, code)
    )


def test_a_request_over_http_is_told_by_the_conventions() -> None:
    record = PlainRecord(backend=make_backend("gpu-0"))
    (span,) = sent(request_span(record))
    assert (span.service, span.kind, span.is_error) == ("lb", "SERVER", False)
    assert (span.trace_id, span.span_id, span.parent_id) == ("a" * 32, f"{2:016x}", "c" * 16)
    assert span.state == "v=1"
    assert span.name == f"{record.method.decode()} /v2/models/{{model}}/infer"
    assert span.start_ns == EPOCH_NS + int(record.started_at * 1e9)
    assert span.end_ns == EPOCH_NS + int(record.ended_at * 1e9)
    attributes = span.attributes
    assert attributes["http.request.method"] == record.method.decode()
    assert attributes["http.route"] == "/v2/models/{model}/infer"
    assert attributes["url.path"] == record.path.decode()
    assert attributes["http.response.status_code"] == record.status
    assert attributes["triton_lb.model"] == record.model.decode()
    assert attributes["triton_lb.backend"] == "gpu-0"
    assert "rpc.method" not in attributes


def test_a_call_is_told_by_the_conventions() -> None:
    (span,) = sent(request_span(grpc_record(backend=make_backend("gpu-0"), grpc_status=14)))
    assert span.name == "inference.GRPCInferenceService/ModelInfer"
    assert span.attributes["rpc.system.name"] == "grpc"
    assert span.attributes["rpc.method"] == span.name
    assert span.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert span.attributes["error.type"] == "UNAVAILABLE"
    assert span.is_error
    assert "http.request.method" not in span.attributes


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"status": 400}, None),
        ({"status": 500}, "500"),
        ({"status": 503, "reason": Reason.NO_BACKEND}, "no_backend"),
        ({"status": 200, "reason": Reason.CLIENT_GONE}, None),
        ({"status": 429, "reason": Reason.RATE_LIMITED}, None),
    ],
)
def test_only_what_is_our_fault_or_a_backends_is_an_error(
    facts: dict[str, Any], error: str | None
) -> None:
    (span,) = sent(request_span(PlainRecord(**facts)))
    assert span.is_error is (error is not None)
    assert span.attributes.get("error.type") == error


def test_a_request_that_waited_has_a_span_of_its_waiting() -> None:
    record = PlainRecord(started_at=1.0, placed_at=1.5, ended_at=2.0)
    whole, queue = sent(request_span(record, has_waited=True))
    assert (queue.name, queue.kind, queue.parent_id) == ("queue", "INTERNAL", whole.span_id)
    assert queue.end_ns - queue.start_ns == 500_000_000


def test_a_request_says_why_it_waited_and_what_its_client_calls_it() -> None:
    record = PlainRecord(request_id=b"r-1", started_at=1.0, placed_at=0.0, ended_at=2.0)
    trace, facts, rare = request_record(record, is_late=True, has_waited=True)[:3]
    assert rare is not None
    whole, queue = sent(*make_spans((trace, facts, (*rare[:4], 3, "limit"), None)))
    assert whole.attributes["triton_lb.request_id"] == "r-1"
    assert queue.attributes == {
        "triton_lb.queue_why": "limit", "triton_lb.queue_position": 3, "triton_lb.late": True,
    }  # fmt: skip
    assert queue.end_ns - queue.start_ns == 1_000_000_000, "it never left the queue"


@pytest.mark.parametrize(
    ("facts", "told", "is_error"),
    [
        ({}, {"triton_lb.why": "first", "rpc.response.status_code": "OK"}, False),
        ({"code": 3}, {"error.type": "INVALID_ARGUMENT"}, True),
        ({"outcome": Outcome.LOST}, {"error.type": "upstream_lost"}, True),
        ({"outcome": Outcome.OVERTAKEN, "why": Why.HEDGE}, {"triton_lb.why": "hedge"}, False),
    ],
)
def test_an_attempt_says_how_it_ended(
    facts: dict[str, Any], told: dict[str, Any], is_error: bool
) -> None:
    (span,) = sent(attempt_span(grpc_record(), **facts))
    assert (span.kind, span.is_error) == ("CLIENT", is_error)
    assert span.attributes["server.address"] == "10.0.0.7"
    assert span.attributes["server.port"] == 8001
    assert told.items() <= span.attributes.items()


def test_an_attempt_that_never_connected_has_no_times_and_a_unix_socket_no_port() -> None:
    trace = (1, None, False, AppProtocol.HTTP, INFER, b"POST", b"/v2/models/simple/infer")
    address = parse_address("unix:/run/triton.sock")
    facts = (FIRST_SPAN, Why.FIRST, "gpu-0", address, 1, 1.0, 0.0, 0.0, 2.0, Outcome.LOST, 0)
    (span,) = sent(AttemptSpan(trace, facts))
    assert span.attributes["server.address"] == "/run/triton.sock"
    missing = {"server.port", "triton_lb.connect_ms", "triton_lb.first_byte_ms"}
    assert not missing & span.attributes.keys()


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (grpc_record(operation=OTHER, path=b"/made.Up/Method"), "_OTHER"),
        (PlainRecord(operation=OTHER, method=b"BREW", path=b"/made/up"), "HTTP"),
        (PlainRecord(operation=OTHER, path=b"/made/up"), "POST"),
    ],
)
def test_names_of_spans_are_few_whatever_clients_make_up(record: Any, name: str) -> None:
    (span,) = sent(request_span(record))
    assert span.name == name
    assert "http.route" not in span.attributes


def test_a_retry_over_http_counts_how_often_it_was_sent_again() -> None:
    (span,) = sent(attempt_span(PlainRecord(), why=Why.RETRY, number=3, code=200))
    assert span.attributes["http.request.resend_count"] == 2
    assert span.attributes["http.response.status_code"] == 200


def test_a_late_decision_says_so() -> None:
    found = sent(
        request_span(PlainRecord(), is_late=True), attempt_span(PlainRecord(), is_late=True)
    )
    assert all(span.attributes["triton_lb.late"] is True for span in found)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (b"/v2/models/resnet/versions/3/infer", "/v2/models/{model}/versions/{version}/infer"),
        (b"/v2/repository/models/a/load", "/v2/repository/models/{model}/load"),
        (b"/v1/models/a:predict", "/v1/models/{model}:predict"),
        (b"/v2", "/v2"),
        (
            b"/v2/systemsharedmemory/region/x/register",
            "/v2/systemsharedmemory/region/{region}/register",
        ),
    ],
)
def test_routes_hold_no_names_that_clients_choose(path: bytes, route: str) -> None:
    assert route_of(OperationKind.INFERENCE, path) == route
    assert route_of(OperationKind.OTHER, path) == ""


def test_long_and_strange_texts_are_valid_and_cut() -> None:
    record = PlainRecord(path=b"/" + b"\xff" * 5000, model=b"\xff\x00" * 2000)
    (span,) = sent(request_span(record))
    assert len(span.attributes["url.path"]) <= 1024
    assert len(span.attributes["triton_lb.model"]) <= 1024


def test_the_whole_request_is_one_that_the_classes_write_alike() -> None:
    spans = SpanEncoder(lambda: EPOCH_NS).encode(request_span(PlainRecord()))
    body = encode_request(encode_resource({"service.name": "lb"}), "1.0", spans)
    assert ExportTraceServiceRequest.FromString(body).SerializeToString() == body


def test_rejected_spans_are_read_from_the_answer() -> None:
    answer = ExportTraceServiceResponse()
    assert rejected_spans(answer.SerializeToString()) == 0
    answer.partial_success.error_message = "no"
    answer.partial_success.rejected_spans = 300
    # Unknown fields may be added to the message and to what is in it.
    inner = b"\x1d\0\0\0\0" + answer.partial_success.SerializeToString()
    assert rejected_spans(b"\x18\x07\x0a" + bytes((len(inner),)) + inner) == 300
