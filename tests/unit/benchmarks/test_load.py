"""The side-by-side benchmark's own arithmetic: bodies, frames, cells, medians, tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.load import payloads
from benchmarks.load.processes import Child, Cores
from benchmarks.load.tally import percentile, tally
from lb.kserve import inference_pb2 as pb


def test_small_grpc_request_is_a_valid_message_of_the_stated_size() -> None:
    prefixed = payloads.small_grpc_request()
    request = pb.ModelInferRequest.FromString(prefixed[5:])
    assert len(prefixed) == 5 + payloads.SMALL_GRPC_BYTES
    assert request.SerializeToString() == prefixed[5:]
    assert request.model_name == "simple"
    assert list(request.inputs[0].shape) == [1, 16]


@pytest.mark.parametrize("size", [16 * 1024, payloads.IMAGE_BYTES, payloads.LARGE_BYTES])
def test_tensor_requests_carry_the_stated_bytes(size: int) -> None:
    request = pb.ModelInferRequest.FromString(payloads.tensor_grpc_request(size)[5:])
    body, json_head = payloads.tensor_http_request(size)
    assert len(request.raw_input_contents[0]) == size
    assert len(body) - json_head == size
    tensor = json.loads(body[:json_head])["inputs"][0]
    assert tensor["parameters"] == {"binary_data_size": size}
    assert tensor["shape"] == list(request.inputs[0].shape) == [1, size // 4]


def test_answers_carry_16_bytes_or_4_mib() -> None:
    small = payloads.GRPC_ANSWERS[payloads.INFER_PATH[1:]]
    for answer, size in ((small, 16), (payloads.LARGE_GRPC_ANSWER, 4 << 20)):
        response = pb.ModelInferResponse.FromString(answer[5:])
        assert len(response.raw_output_contents[0]) == size
        assert list(response.outputs[0].shape) == [1, size // 4]


def test_small_http_request_has_the_stated_size_and_is_json() -> None:
    body = payloads.small_http_request()
    assert len(body) == payloads.SMALL_HTTP_BYTES
    assert json.loads(body)["inputs"][0]["data"] == [1] * 16


def test_answers_of_the_health_calls_say_true() -> None:
    for path in ("ServerReady", "ServerLive"):
        answer = payloads.GRPC_ANSWERS[f"inference.GRPCInferenceService/{path}"]
        assert pb.ServerReadyResponse.FromString(answer[5:]).ready


def test_percentile_takes_the_value_below_which_the_share_lies() -> None:
    ordered = list(range(100))
    assert percentile(ordered, 0.5) == 50
    assert percentile(ordered, 0.999) == 99
    assert percentile([], 0.5) == 0


def test_tally_counts_only_what_was_answered() -> None:
    counted = tally([3.0, 1.0, 2.0], seconds=2.0, errors=1)
    assert counted == {
        "requests": 3.0,
        "seconds": 2.0,
        "errors": 1.0,
        "p50_us": 2.0,
        "p99_us": 3.0,
        "p999_us": 3.0,
    }


def test_cores_are_read_and_checked_against_the_usable_ones() -> None:
    core = min(os.sched_getaffinity(0))
    assert Cores.parse(f"{core},{core}") == Cores(core, core, core)
    with pytest.raises(ValueError, match="usable cores"):
        Cores.parse("0")
    with pytest.raises(ValueError, match="usable cores"):
        Cores.parse("0,99999")


def test_cpu_of_a_process_tree_includes_children_that_ended(tmp_path: Path) -> None:
    work = "python3 -c 'sum(range(4000000))'; sleep 60"
    child = Child("tree", ["sh", "-c", work], min(os.sched_getaffinity(0)), tmp_path / "log")
    try:
        child.wait_until(lambda: child.cpu_s() >= 0.03, timeout_s=20.0)
        assert child.rss_bytes() > 0
    finally:
        child.stop()
    assert child.cpu_s() == 0
