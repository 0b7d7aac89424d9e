"""Traces of the balancer and of real Tritons are one trace.

Tritons export by OpenTelemetry, with a rate of 0, so that they record only requests with a trace
context. Triton 2.51 loses about one in ten contexts that come over gRPC: its source reads the value
without its length, so that what lies behind it in memory would be part of the flags. So nothing
here rests on the spans of a single gRPC request at a Triton.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hpack import Encoder

from lb.kserve import inference_pb2 as pb
from tests.fakes.otlp import CollectedSpan, Collector, collector
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import call_with_block
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import Target
from tests.triton.tensors import milliseconds
from tests.triton.test_split import inputs as batch
from tests.wire import frames as fr

Ask = Callable[[Target, dict[str, str], int], None]
STATE = "vendor=1"
TRIES = 10
"""One in 10^9 runs loses as many."""


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    """Where Tritons and balancers send spans."""
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, records: Records, spans: Collector
) -> Iterator[tuple[RealTriton, ...]]:
    """Two Tritons that trace requests with a context, and no others."""
    options = [
        f"--trace-config={option}"
        for option in (
            "mode=opentelemetry", "rate=0", "level=TIMESTAMPS", "count=-1",
            f"opentelemetry,url={spans.endpoint}", "opentelemetry,bsp_schedule_delay=200",
        )
    ]  # fmt: skip
    workspace = tmp_path_factory.mktemp("traced")
    with RealTriton.several(2, workspace, records.directory, *options) as running:
        yield running


@pytest.fixture
def balancer(
    tmp_path: Path, traced: tuple[RealTriton, ...], spans: Collector, request: Any
) -> Iterator[RunningBalancer]:
    """A balancer before both that traces what its clients trace; a test may set more."""
    tracing = {"endpoint": spans.endpoint, "ratio": 0.0}
    sections = {"tracing": tracing, **getattr(request, "param", {})}
    yield from RunningBalancer.run(tmp_path, traced, **sections)


def context(number: int, flags: str = "01") -> dict[str, str]:
    """A trace context with a trace id of its own."""
    return {"traceparent": f"00-{number:032x}-00f067aa0ba902b7-{flags}", "tracestate": STATE}


def ask_http(target: Target, headers: dict[str, str], sleep_ms: int) -> None:
    with httpclient.InferenceServerClient(target.http, network_timeout=60.0) as client:
        client.infer("sleeper", milliseconds(httpclient, sleep_ms), headers=headers)


def ask_grpc(target: Target, headers: dict[str, str], sleep_ms: int) -> None:
    with grpcclient.InferenceServerClient(target.grpc) as client:
        client.infer("sleeper", milliseconds(grpcclient, sleep_ms), headers=headers)


def ask_stream(target: Target, headers: dict[str, str], sleep_ms: int) -> None:
    done = threading.Event()
    with grpcclient.InferenceServerClient(target.grpc) as client:
        client.start_stream(lambda result, error: done.set(), headers=headers)
        client.async_stream_infer("sleeper", milliseconds(grpcclient, sleep_ms))
        assert done.wait(60.0)
        client.stop_stream()


ALL = pytest.mark.parametrize("ask", [ask_http, ask_grpc, ask_stream])


def of_trace(found: list[CollectedSpan], number: int) -> list[CollectedSpan]:
    return [span for span in found if span.trace_id == f"{number:032x}"]


def trace(
    spans: Collector, number: int, ours: int, roots: int, *, timeout_s: float = 60.0
) -> list[CollectedSpan]:
    """Wait for a trace with so many spans of ours, and so many requests at Tritons."""

    def is_whole(found: list[CollectedSpan]) -> bool:
        mine = of_trace(found, number)
        requests = [span for span in mine if span.name == "InferRequest"]
        return sum(span.is_ours for span in mine) >= ours and len(requests) >= roots

    return of_trace(spans.wait_for(is_whole, timeout_s=timeout_s), number)


def joined(spans: Collector, target: Target, ask: Ask, first: int) -> list[CollectedSpan]:
    """Ask with new contexts from `first` on, until a Triton has kept one; returns that trace."""
    for number in range(first, first + TRIES):
        ask(target, context(number), 10)
        trace(spans, number, 2, 0)
        try:
            return trace(spans, number, 2, 1, timeout_s=5.0)
        except TimeoutError:
            continue
    raise AssertionError(f"no Triton has kept any of {TRIES} contexts")


@ALL
def test_spans_of_a_triton_belong_to_the_attempt_that_asked_it(
    balancer: RunningBalancer, spans: Collector, ask: Ask
) -> None:
    first = 0x1000 + 0x100 * [ask_http, ask_grpc, ask_stream].index(ask)
    found = joined(spans, balancer.target, ask, first)
    (server,) = (span for span in found if span.kind == "SERVER" and span.is_ours)
    (attempt,) = (span for span in found if span.kind == "CLIENT")
    (root,) = (span for span in found if span.name == "InferRequest")
    assert server.parent_id == "00f067aa0ba902b7"
    assert server.state == STATE
    assert attempt.parent_id == server.span_id
    assert attempt.attributes["triton_lb.why"] == "first"
    assert root.parent_id == attempt.span_id
    assert server.start_ns <= attempt.start_ns <= root.start_ns + 5_000_000


@pytest.mark.parametrize(
    "balancer", [{"models": {"simple": {"split": "oversize"}}}], indirect=["balancer"]
)
def test_spans_of_tritons_belong_to_the_parts_of_a_batch(
    balancer: RunningBalancer, spans: Collector
) -> None:
    with httpclient.InferenceServerClient(balancer.target.http, network_timeout=60.0) as client:
        client.infer("simple", batch(httpclient, "simple", 20), headers=context(0x6000))
    found = trace(spans, 0x6000, 4, 3)
    parts = {span.span_id for span in found if span.kind == "CLIENT"}
    roots = [span for span in found if span.name == "InferRequest"]
    assert len(parts) == 3
    assert {span.parent_id for span in roots} == parts


@ALL
def test_a_triton_exports_nothing_of_a_context_that_is_not_sampled(
    balancer: RunningBalancer, spans: Collector, ask: Ask
) -> None:
    first = 0x2000 + 0x100 * [ask_http, ask_grpc, ask_stream].index(ask)
    numbers = range(first, first + TRIES)
    for number in numbers:
        ask(balancer.target, context(number, "00"), 10)
    # What a Triton records later it exports later, or with it; both were asked.
    joined(spans, balancer.target, ask, first + TRIES)
    joined(spans, balancer.target, ask, first + 2 * TRIES)
    assert [span for number in numbers for span in of_trace(spans.spans, number)] == []


def in_background(ask: Ask, target: Target, headers: dict[str, str], sleep_ms: int) -> Any:
    """Ask in a thread of its own; returns what waits for the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ask(target, headers, sleep_ms)
        except BaseException as error:  # shown in the test's thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> None:
        thread.join(60.0)
        assert not failures, failures

    return end


UNARY = pytest.mark.parametrize("ask", [ask_http, ask_grpc])


@UNARY
def test_a_trace_shows_who_died_and_who_answered(
    balancer: RunningBalancer,
    traced: tuple[RealTriton, ...],
    spans: Collector,
    ask: Ask,
) -> None:
    number = 0x3000 + [ask_http, ask_grpc].index(ask)
    end = in_background(ask, balancer.target, context(number), 3000)
    wait_until(lambda: balancer.in_flight() == 1, timeout_s=30.0, what="the request runs")
    (name,) = (view.name for view in balancer.backends().values() if view.in_flight)
    victim = next(triton for triton in traced if triton.name == name)
    victim.kill9()
    try:
        end()
        found = trace(spans, number, 3, int(ask is ask_http))
    finally:
        victim.restart()
        victim.wait_ready()
    (server,) = (span for span in found if span.kind == "SERVER" and span.is_ours)
    first, second = sorted(
        (span for span in found if span.kind == "CLIENT"), key=lambda span: span.start_ns
    )
    assert [first.attributes["triton_lb.why"], second.attributes["triton_lb.why"]] == [
        "first", "retry",
    ]  # fmt: skip
    assert first.attributes["triton_lb.backend"] == name
    assert first.is_error
    assert first.attributes["error.type"] == "upstream_lost"
    assert second.attributes["triton_lb.backend"] != name
    assert not second.is_error
    assert not server.is_error
    assert {first.parent_id, second.parent_id} == {server.span_id}
    roots = {span.parent_id for span in found if span.name == "InferRequest"}
    assert roots <= {second.span_id}


def is_hedged(spans: Collector, target: Target, ask: Ask, number: int) -> bool:
    """Trace a long request after some short ones; whether it was sent twice. How long is usual is
    sampled a few times a second, so it may take some rounds until that is known."""
    for _ in range(60):
        ask(target, {}, 1)
    ask(target, context(number), 1500)
    try:
        trace(spans, number, 3, 0, timeout_s=5.0)
    except TimeoutError:
        return False
    return True


HEDGED = {"hedging": {"enabled": True, "quantile": 0.5, "max_ratio": 1.0}}


@UNARY
@pytest.mark.parametrize("balancer", [HEDGED], indirect=True, ids=["hedged"])
def test_both_attempts_of_a_hedged_request_are_in_its_trace(
    balancer: RunningBalancer, spans: Collector, ask: Ask
) -> None:
    first = 0x4000 + 0x100 * [ask_http, ask_grpc].index(ask)
    number = next(
        each for each in range(first, first + TRIES) if is_hedged(spans, balancer.target, ask, each)
    )
    found = trace(spans, number, 3, 2 * int(ask is ask_http))
    (server,) = (span for span in found if span.kind == "SERVER" and span.is_ours)
    attempts = {span.attributes["triton_lb.why"]: span for span in found if span.kind == "CLIENT"}
    assert attempts.keys() == {"first", "hedge"}
    assert {span.parent_id for span in attempts.values()} == {server.span_id}
    roots = {span.parent_id for span in found if span.name == "InferRequest"}
    assert roots <= {span.span_id for span in attempts.values()}


@UNARY
@pytest.mark.parametrize(
    "balancer", [{"scheduling": {"max_requests_per_backend": 1}}], indirect=True, ids=["queue"]
)
def test_the_time_in_the_queue_is_a_span(
    balancer: RunningBalancer, spans: Collector, ask: Ask
) -> None:
    first = 0x5000 + 0x100 * [ask_http, ask_grpc].index(ask)
    ask(balancer.target, {}, 1)
    wait_until(
        lambda: any(
            each["model"] == "sleeper" for each in balancer._admin("GET", "/api/v1/queue")["models"]
        ),
        timeout_s=30.0,
        what="the model is scheduled",
    )
    ends = [
        in_background(ask, balancer.target, context(number), 400)
        for number in range(first, first + 5)
    ]
    for end in ends:
        end()
    found = [span for number in range(first, first + 5) for span in trace(spans, number, 2, 0)]
    queues = [span for span in found if span.name == "queue"]
    assert queues
    for queue in queues:
        (server,) = (span for span in found if span.span_id == queue.parent_id)
        (attempt,) = (
            span for span in found if span.parent_id == server.span_id and span.kind == "CLIENT"
        )
        assert queue.kind == "INTERNAL"
        assert queue.attributes["triton_lb.queue_why"] in ("limit", "faster")
        assert server.start_ns == queue.start_ns
        assert queue.end_ns <= attempt.start_ns + 1000


def _infer_message() -> bytes:
    request = pb.ModelInferRequest(model_name="sleeper")
    request.inputs.add(name="MILLISECONDS", datatype="INT32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    message: bytes = request.SerializeToString()
    return message


@pytest.mark.parametrize("huffman", [False, True])
def test_a_triton_keeps_most_contexts_in_metadata_however_they_are_encoded(
    traced: tuple[RealTriton, ...], spans: Collector, huffman: bool
) -> None:
    """Calls to a Triton itself. Whether it keeps all is its own matter: see above."""
    first = 0x6000 + 0x100 * huffman
    block = Encoder()
    block.header_table_size = 0
    message = fr.message(_infer_message())
    for number in range(first, first + 50):
        fields = fr.request_fields(
            *((key.encode(), value.encode()) for key, value in context(number).items()),
            path=b"/inference.GRPCInferenceService/ModelInfer",
        )
        call_with_block(traced[0].target.grpc, block.encode(fields, huffman=huffman), message)
    asked = {f"{number:032x}" for number in range(first, first + 50)}
    spans.wait_for(
        lambda found: (
            len(asked & {span.trace_id for span in found if span.name == "InferRequest"}) > 25
        )
    )
