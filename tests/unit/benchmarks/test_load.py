"""The side-by-side benchmark's own arithmetic: bodies, frames, cells, medians, tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hyperframe.frame import Frame

from benchmarks.load import frames, payloads, report
from benchmarks.load.bench import Plan, Result, Sample
from benchmarks.load.cells import CELLS, select
from benchmarks.load.drivers import percentile
from benchmarks.load.processes import Child, Cores
from lb.kserve import inference_pb2 as pb


def _sample(cpu_us: float) -> Sample:
    return Sample(cpu_us, 1000.0, 1.0, 2.0, 3.0, 1 << 20, 0.9, 0.0, 0.5)


def _plan() -> Plan:
    return Plan(select(["http-small-16"]), ["triton-lb", "envoy"], 3, 1.0, 2, Cores(0, 1, 1))


def test_small_grpc_request_is_a_valid_message_of_the_stated_size() -> None:
    prefixed = payloads.small_grpc_request()
    request = pb.ModelInferRequest.FromString(prefixed[5:])
    assert len(prefixed) == 5 + payloads.SMALL_GRPC_BYTES
    assert request.SerializeToString() == prefixed[5:]
    assert request.model_name == "simple"
    assert list(request.inputs[0].shape) == [1, 16]


def test_image_requests_carry_one_image() -> None:
    request = pb.ModelInferRequest.FromString(payloads.image_grpc_request()[5:])
    body, json_head = payloads.image_http_request()
    assert len(request.raw_input_contents[0]) == payloads.IMAGE_BYTES
    assert len(body) - json_head == payloads.IMAGE_BYTES
    sizes = json.loads(body[:json_head])["inputs"][0]["parameters"]
    assert sizes == {"binary_data_size": payloads.IMAGE_BYTES}


def test_small_http_request_has_the_stated_size_and_is_json() -> None:
    body = payloads.small_http_request()
    assert len(body) == payloads.SMALL_HTTP_BYTES
    assert json.loads(body)["inputs"][0]["data"] == [1] * 16


def test_answers_of_the_health_calls_say_true() -> None:
    for path in ("ServerReady", "ServerLive"):
        answer = payloads.GRPC_ANSWERS[f"inference.GRPCInferenceService/{path}"]
        assert pb.ServerReadyResponse.FromString(answer[5:]).ready


@pytest.mark.parametrize("step", [97, 1009, 16384, 100_000])
def test_frame_reader_finds_the_same_frames_at_every_split(step: int) -> None:
    sent = [
        (frames.SETTINGS, 0, 0, b""),
        (frames.HEADERS, frames.END_HEADERS, 1, b"x" * 300),
        (frames.DATA, frames.END_STREAM, 1, b"y" * 70_000),
        (frames.PING, frames.ACK, 0, b"12345678"),
    ]
    wire = b"".join(frames.frame(*each) for each in sent)
    reader = frames.FrameReader()
    found = [
        each
        for start in range(0, len(wire), step)
        for each in reader.feed(wire[start : start + step])
    ]
    assert found == sent


def test_frames_are_what_another_implementation_reads() -> None:
    wire = frames.frame(frames.DATA, frames.END_STREAM, 5, b"abc")
    parsed, length = Frame.parse_frame_header(memoryview(wire[:9]))
    parsed.parse_body(memoryview(wire[9:]))
    assert (type(parsed).__name__, parsed.stream_id, length) == ("DataFrame", 5, 3)
    assert parsed.data == b"abc"
    assert parsed.flags == {"END_STREAM"}


def test_cell_names_are_distinct_and_patterns_select_by_name() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert [cell.name for cell in select(["grpc-small-8x*"])] == [
        "grpc-small-8x1",
        "grpc-small-8x8",
    ]
    assert all(cell.core for cell in select([]))


def test_a_pattern_without_a_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="no cell is called 'nonsense'"):
        select(["nonsense"])


def test_percentile_takes_the_value_below_which_the_share_lies() -> None:
    ordered = list(range(100))
    assert percentile(ordered, 0.5) == 50
    assert percentile(ordered, 0.999) == 99
    assert percentile([], 0.5) == 0


def test_median_is_taken_over_rounds_and_absent_after_an_error() -> None:
    samples = [_sample(30.0), _sample(10.0), _sample(20.0)]
    median = Result(samples).median()
    assert median is not None
    assert median.cpu_us == 20.0
    assert Result(samples, error="closed").median() is None


def test_tables_show_the_ratio_to_envoy_and_failures() -> None:
    plan = _plan()
    row = {
        "direct": Result([_sample(0.0)]),
        "triton-lb": Result([_sample(20.0)]),
        "envoy": Result([_sample(50.0)]),
    }
    text = report.as_text(plan, {"date": "today"}, {"http-small-16": row})
    assert "20.0 (0.40)" in text
    row["triton-lb"].samples = [_sample(20.0), _sample(80.0), _sample(30.0)]
    row["envoy"].samples = [_sample(50.0), _sample(160.0), _sample(60.0)]
    text = report.as_text(plan, {"date": "today"}, {"http-small-16": row})
    assert "30.0 (0.50)" in text
    row["envoy"].samples = [_sample(50.0)]
    row["triton-lb"].error = "3 errors"
    page = report.as_markdown(plan, {"date": "today"}, {"http-small-16": row})
    assert "| failed | 50.0 |" in page
    stored = json.loads(report.as_json(plan, {}, {"http-small-16": row}))
    assert stored["cells"]["http-small-16"]["proxies"]["envoy"]["median"]["cpu_us"] == 50.0


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
