"""Stands in for a collector of traces: reads OTLP over HTTP with the published classes."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.fakes.process import wait_until

KINDS = {0: "UNSPECIFIED", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}


@dataclass(frozen=True)
class CollectedSpan:
    """One span, whoever sent it. Ids are hexadecimal, times are Unix nanoseconds."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether triton-lb sent it."""
        return self.service == "triton-lb"


def spans_of(body: bytes) -> list[CollectedSpan]:
    """The spans of a request in protobuf."""
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for group in request.resource_spans:
        resource = {each.key: _value(each.value) for each in group.resource.attributes}
        for scope in group.scope_spans:
            found += [
                CollectedSpan(
                    service=resource.get("service.name", ""),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    state=span.trace_state,
                    name=span.name,
                    kind=KINDS[span.kind],
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    is_error=span.status.code == 2,
                    attributes={each.key: _value(each.value) for each in span.attributes},
                )
                for span in scope.spans
            ]
    return found


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def _spans_of_json(body: bytes) -> list[CollectedSpan]:
    """The spans of a request in JSON, whose ids are hexadecimal: what Triton 2.51 sends."""
    found = []
    for group in json.loads(body).get("resourceSpans", ()):
        resource = _attributes(group.get("resource", {}))
        for scope in group.get("scopeSpans", ()):
            found += [
                CollectedSpan(
                    service=str(resource.get("service.name", "")),
                    trace_id=span["traceId"].lower(),
                    span_id=span["spanId"].lower(),
                    parent_id=span.get("parentSpanId", "").lower(),
                    state=span.get("traceState", ""),
                    name=span["name"],
                    kind=KINDS[int(span.get("kind", 0))],
                    start_ns=int(span["startTimeUnixNano"]),
                    end_ns=int(span["endTimeUnixNano"]),
                    is_error=int(span.get("status", {}).get("code", 0)) == 2,
                    attributes=_attributes(span),
                )
                for span in scope.get("spans", ())
            ]
    return found


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    return {
        each["key"]: next(iter(each.get("value", {}).values()), None)
        for each in node.get("attributes", ())
    }


@dataclass
class Answer:
    """What the collector says to a request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    rejected: int = 0
    hangs: bool = False
    """It says nothing until the collector is closed."""


class Collector:
    """One on a port of its own, in threads of its own."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        """All that was taken."""
        self.requests: list[dict[str, str]] = []
        """Headers of all requests, in lower case."""
        self.bodies: list[bytes] = []
        self.answers: list[Answer] = []
        """Of the next requests, one each; then all is taken."""
        self.usual = Answer()
        self._closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where spans are to be sent."""
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        if handler.headers.get("content-encoding", "") == "gzip":
            body = gzip.decompress(body)
        answer = self.answers.pop(0) if self.answers else self.usual
        self.requests.append({key.lower(): value for key, value in handler.headers.items()})
        self.bodies.append(body)
        if answer.hangs:
            self._closing.wait()
            handler.close_connection = True
            return
        if answer.status == 200:
            is_json = "json" in handler.headers.get("content-type", "")
            self.spans += (_spans_of_json if is_json else spans_of)(body)
        reply = ExportTraceServiceResponse()
        if answer.rejected:
            reply.partial_success.rejected_spans = answer.rejected
        text = reply.SerializeToString()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def wait_for(
        self, what: Callable[[list[CollectedSpan]], bool], *, timeout_s: float = 60.0
    ) -> list[CollectedSpan]:
        """Wait until the spans are such; returns them.

        Raises:
            TimeoutError: they never were.
        """
        wait_until(lambda: what(list(self.spans)), timeout_s=timeout_s, what="spans have come")
        return list(self.spans)

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collector() -> Iterator[Collector]:
    """One that runs while the block does."""
    running = Collector()
    try:
        yield running
    finally:
        running.close()
