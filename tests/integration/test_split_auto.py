"""Batches that one Triton would take are cut where their answer comes sooner so (`split: auto`)."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import running
from lb.testing.balancer import Balancer
from lb.testing.tritons import Triton
from tests.fakes.batch_models import FIXED, MAX_ROWS, batch_tritons
from tests.fakes.otlp import CollectedSpan, collector
from tests.fakes.process import wait_until
from tests.integration.test_split import LIMIT_S, ask, metric, post

ENOUGH = 40
"""Batches of which one is cut once all Tritons are known."""
LEAVING = 5
"""Clients that leave."""
KNOWN = 2
"""Executions by which a Triton is known."""
TRITONS = ("triton-0", "triton-1", "triton-2")


@pytest.fixture(scope="module")
def tritons() -> Iterator[tuple[Triton, ...]]:
    with batch_tritons(len(TRITONS)) as started:
        yield started


@pytest.fixture
def balancer(tritons: tuple[Triton, ...]) -> Iterator[Balancer]:
    auto = {"split": "auto", "split_max_bytes": "1KiB"}
    models = {name: dict(auto) for name in ("linear", "sums")}
    with running(tritons, {"models": models}) as started:
        yield started


def batch(rows: int, model: str = "linear", columns: int = 1) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="INT32", shape=[rows, columns])
    request.raw_input_contents.append(struct.pack(f"<{rows * columns}i", *range(rows * columns)))
    return request


def cut(balancer: Balancer) -> float:
    return metric(balancer, "triton_lb_split_batches_total")


def teach(balancer: Balancer, model: str) -> None:
    """Have each Triton execute a model, by batches side by side: one after the other might all go
    to the same Triton, as long as it seems the fastest. Then nobody knows what parts would take."""

    def all_are_known() -> bool:
        answers = pool.map(
            lambda _: post(balancer.http, *body(MAX_ROWS, model), model=model), TRITONS
        )
        assert [status for status, _, _ in answers] == [200] * len(TRITONS)
        counters = (f'triton_lb_backend_attempts_total{{backend="{name}",' for name in TRITONS)
        return all(metric(balancer, counter) >= KNOWN for counter in counters)

    with ThreadPoolExecutor(len(TRITONS)) as pool:
        wait_until(all_are_known, timeout_s=LIMIT_S, what="each Triton has executed some batches")


def body(rows: int, model: str) -> tuple[bytes, dict[str, str]]:
    data = struct.pack(f"<{rows}i", *range(rows))
    tensor = {
        "name": "IN", "datatype": "INT32", "shape": [rows, 1],
        "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    content = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(content).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def test_batches_are_cut_once_it_is_known_what_they_take(balancer: Balancer) -> None:
    teach(balancer, "linear")
    known = cut(balancer)
    with grpc.insecure_channel(balancer.grpc) as channel:
        for _ in range(ENOUGH):
            answer = ask(channel, batch(MAX_ROWS))
            assert list(answer.raw_output_contents) == [*batch(MAX_ROWS).raw_input_contents]
            assert list(answer.outputs[0].shape) == [MAX_ROWS, 1]
            if cut(balancer) > known:
                break
        assert cut(balancer) > known
        before = cut(balancer)
        for _ in range(5):
            ask(channel, batch(1))
        assert cut(balancer) == before


def test_http_batches_are_cut_as_well(balancer: Balancer) -> None:
    teach(balancer, "linear")
    known = cut(balancer)
    for _ in range(ENOUGH):
        text, fields = body(MAX_ROWS, "linear")
        status, headers, answer = post(balancer.http, text, fields, model="linear")
        assert status == 200
        size = int(headers["inference-header-content-length"])
        assert answer[size:] == text[len(text) - 4 * MAX_ROWS :]
        if cut(balancer) > known:
            break
    assert cut(balancer) > known


def test_batches_of_http_clients_that_have_gone_are_not_cut(balancer: Balancer) -> None:
    teach(balancer, "linear")
    text, fields = body(MAX_ROWS, "linear")
    for _ in range(ENOUGH):
        post(balancer.http, text, fields, model="linear")
        if cut(balancer):
            break
    before = cut(balancer)
    assert before
    for _ in range(LEAVING):
        send_and_leave(balancer, text, fields)
    assert cut(balancer) == before


def send_and_leave(balancer: Balancer, text: bytes, fields: dict[str, str]) -> None:
    """Send a batch and end the connection, before the balancer has read anything of it."""
    wait_until(lambda: is_idle(balancer), timeout_s=LIMIT_S, what="the Tritons are idle")
    before = attempts(balancer)
    fields = {"Host": "balancer", "Content-Length": str(len(text)), **fields}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    host, _, port = balancer.http.rpartition(":")
    os.kill(balancer.pid, signal.SIGSTOP)
    try:
        with socket.create_connection((host, int(port)), LIMIT_S) as client:
            client.sendall(f"POST /v2/models/linear/infer HTTP/1.1\r\n{lines}\r\n".encode() + text)
    finally:
        os.kill(balancer.pid, signal.SIGCONT)
    wait_until(lambda: attempts(balancer) > before, timeout_s=LIMIT_S, what="it has run")


def is_idle(balancer: Balancer) -> bool:
    return metric(balancer, "triton_lb_backend_in_flight") == 0


def attempts(balancer: Balancer) -> float:
    return metric(balancer, "triton_lb_backend_attempts_total")


def test_each_part_of_an_http_batch_is_a_span_of_the_trace(tritons: tuple[Triton, ...]) -> None:
    with collector() as sink:
        settings = {
            "models": {"linear": {"split": "auto"}},
            "tracing": {"endpoint": sink.endpoint, "ratio": 0.0},
        }
        with running(tritons, settings) as balancer:
            teach(balancer, "linear")
            for number in range(1, ENOUGH + 1):
                before = cut(balancer)
                text, fields = body(MAX_ROWS, "linear")
                fields["traceparent"] = f"00-{number:032x}-{'b' * 16}-01"
                status, headers, answer = post(balancer.http, text, fields, model="linear")
                assert status == 200
                size = int(headers["inference-header-content-length"])
                assert answer[size:] == text[len(text) - 4 * MAX_ROWS :]
                if cut(balancer) > before:
                    break
            else:
                pytest.fail("no batch was cut")
            trace = f"{number:032x}"

            def of_trace(spans: list[CollectedSpan]) -> list[CollectedSpan]:
                return [span for span in spans if span.trace_id == trace]

            def is_complete(spans: list[CollectedSpan]) -> bool:
                return any(span.kind == "SERVER" for span in of_trace(spans))

            found = of_trace(sink.wait_for(is_complete))
            (whole,) = (span for span in found if span.kind == "SERVER")
            count = int(whole.attributes["triton_lb.parts"])
            assert count > 1

            def has_all(spans: list[CollectedSpan]) -> bool:
                return len(of_trace(spans)) >= count + 1

            parts = [span for span in of_trace(sink.wait_for(has_all)) if span.kind == "CLIENT"]
    assert len(parts) == count
    assert whole.parent_id == "b" * 16
    assert {(span.parent_id, span.name) for span in parts} == {(whole.span_id, whole.name)}
    assert {span.attributes["triton_lb.why"] for span in parts} == {"part"}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_model_with_an_output_that_is_not_by_rows_is_left_whole(
    balancer: Balancer, protocol: str
) -> None:
    teach(balancer, "sums")
    with grpc.insecure_channel(balancer.grpc) as channel:
        for _ in range(ENOUGH):
            if protocol == "grpc":
                answer = ask(channel, batch(MAX_ROWS, "sums"))
                assert [list(each.shape) for each in answer.outputs] == [[MAX_ROWS, 1], [FIXED]]
            else:
                status, headers, text = post(balancer.http, *body(MAX_ROWS, "sums"), model="sums")
                assert status == 200
                content = json.loads(text[: int(headers["inference-header-content-length"])])
                shapes = [each["shape"] for each in content["outputs"]]
                assert shapes == [[MAX_ROWS, 1], [FIXED]]
            if metric(balancer, "triton_lb_split_unfit_models_total"):
                break
        assert metric(balancer, "triton_lb_split_unfit_models_total") == 1
        before = cut(balancer)
        for _ in range(5):
            ask(channel, batch(MAX_ROWS, "sums"))
        assert cut(balancer) == before
    for name in ("triton_lb_backend_in_flight", "triton_lb_held_bytes", "triton_lb_open_requests"):
        wait_until(
            lambda name=name: metric(balancer, name) == 0, timeout_s=LIMIT_S, what=f"{name} is 0"
        )


def test_what_is_longer_than_is_held_goes_on_as_it_came(balancer: Balancer) -> None:
    teach(balancer, "linear")
    known = cut(balancer)
    with grpc.insecure_channel(balancer.grpc) as channel:
        for _ in range(5):
            answer = ask(channel, batch(MAX_ROWS, columns=8))
            assert len(answer.raw_output_contents[0]) == 4 * 8 * MAX_ROWS
    assert cut(balancer) == known
