"""Batches that are larger than a model takes, through a process before three simulated Tritons:
`simple` takes eight rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from http.client import HTTPConnection

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import running, simulated
from lb.testing.balancer import Balancer
from lb.testing.tritons import Triton
from tests.fakes.process import wait_until

LIMIT_S = 60.0
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def tritons() -> Iterator[tuple[Triton, ...]]:
    with simulated(3, models=["simple", "sleeper"]) as started:
        yield started


@pytest.fixture(scope="module")
def balancer(tritons: tuple[Triton, ...]) -> Iterator[Balancer]:
    settings = {
        "models": {"simple": {"split": "oversize", "split_max_bytes": "200KiB"}},
        "access_log": {"mode": "all"},
        "limits": {"body_bytes": "1MiB"},
    }
    with running(tritons, settings) as started:
        yield started


@pytest.fixture
def channel(balancer: Balancer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(balancer.grpc) as opened:
        yield opened


def batch(rows: int, *, typed: bool = False) -> pb.ModelInferRequest:
    """Numbers that are different in each row."""
    request = pb.ModelInferRequest(model_name="simple", id="7")
    for name, start in (("INPUT0", 0), ("INPUT1", 1_000_000)):
        numbers = [start + number * number for number in range(16 * rows)]
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[rows, 16])
        if typed:
            tensor.contents.int_contents.extend(numbers)
        else:
            request.raw_input_contents.append(struct.pack(f"<{16 * rows}i", *numbers))
    return request


def ask(
    channel: grpc.Channel,
    request: pb.ModelInferRequest,
    compression: grpc.Compression | None = None,
) -> pb.ModelInferResponse:
    answer: pb.ModelInferResponse = channel.unary_unary(
        INFER,
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )(request, timeout=LIMIT_S, compression=compression)
    return answer


def expected(rows: int) -> list[bytes]:
    left = [number * number for number in range(16 * rows)]
    sums = [2 * number + 1_000_000 for number in left]
    return [
        struct.pack(f"<{16 * rows}i", *sums),
        struct.pack(f"<{16 * rows}i", *([-1_000_000] * len(left))),
    ]


def metric(balancer: Balancer, name: str) -> float:
    host, _, port = balancer.metrics.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name)]
    return sum(map(float, values))


def log_lines(balancer: Balancer) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in balancer.log.splitlines() if line.startswith('{"time"')]
    return [line for line in lines if "parts" in line]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 9, 20, 200])
def test_grpc_batches_of_any_size_are_answered(
    channel: grpc.Channel, rows: int, typed: bool
) -> None:
    answer = ask(channel, batch(rows, typed=typed))
    assert [list(output.shape) for output in answer.outputs] == [[rows, 16]] * 2
    assert list(answer.raw_output_contents) == expected(rows)
    assert (answer.id, answer.model_version) == ("7", "1")


def test_grpc_compressed_batches_are_cut(channel: grpc.Channel) -> None:
    answer = ask(channel, batch(20), grpc.Compression.Gzip)
    assert list(answer.raw_output_contents) == expected(20)


def test_a_batch_is_one_request_in_log_and_metrics(
    balancer: Balancer, channel: grpc.Channel
) -> None:
    before = metric(balancer, "triton_lb_requests_total")
    parts = metric(balancer, "triton_lb_split_parts_total")
    request = batch(20)
    request.id = "one line"
    ask(channel, request)
    assert metric(balancer, "triton_lb_requests_total") == before + 1
    assert metric(balancer, "triton_lb_split_parts_total") == parts + 3
    wait_until(lambda: bool(log_lines(balancer)), timeout_s=LIMIT_S, what="the log")
    line = log_lines(balancer)[-1]
    assert (line["parts"], line["attempts"], line["grpc_status"]) == (3, 3, "OK")


def test_the_error_of_a_part_names_its_rows(channel: grpc.Channel) -> None:
    request = batch(20)
    request.inputs[0].name = "NOBODY"
    with pytest.raises(grpc.RpcError) as failure:
        ask(channel, request)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details().startswith("rows ")
    assert "unexpected inference input 'NOBODY' for model 'simple'" in failure.value.details()


def test_what_cannot_be_cut_goes_on_as_it_is(channel: grpc.Channel) -> None:
    request = batch(20)
    request.parameters["sequence_id"].int64_param = 5
    with pytest.raises(grpc.RpcError, match="batch-size must be <= 8 for 'simple'"):
        ask(channel, request)


def test_a_batch_that_is_too_long_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="split_max_bytes") as failure:
        ask(channel, batch(2000))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nothing_is_left_behind(balancer: Balancer, channel: grpc.Channel) -> None:
    for rows in (20, 100):
        ask(channel, batch(rows))
    wait_until(
        lambda: metric(balancer, "triton_lb_held_bytes") == 0,
        timeout_s=LIMIT_S,
        what="nothing is held",
    )
    assert metric(balancer, "triton_lb_backend_in_flight") == 0
