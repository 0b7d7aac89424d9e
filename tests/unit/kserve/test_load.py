from __future__ import annotations

from math import isfinite

import pytest

from lb.domain.load import DeviceLoad, ModelLoad
from lb.kserve.load import STEP_BYTES, LoadPage

PAGE = b"""\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="a",version="1"} 3
nv_inference_pending_request_count{model="a",version="2"} 1.000000
nv_inference_pending_request_count{version="1",model="b.c"} 0
nv_inference_request_success{model="a",version="1"} 12
nv_inference_request_failure{model="a",reason="OTHER",version="1"} 7
nv_inference_count{model="d",version="1"} 7
nv_inference_exec_count{model="a",version="1"} 6
nv_inference_request_duration_us{model="a",version="1"} 99000000
nv_inference_compute_input_duration_us{model="a",version="1"} 1000
nv_inference_compute_infer_duration_us{model="a",version="1"} 2e+06
nv_inference_compute_infer_duration_us{gpu_uuid="GPU-1",super_model="c",model="b.c"} 5e5
nv_inference_compute_output_duration_us{gpu_uuid="GPU-1",model="a",version="1"} 3000
nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="100"} 1
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.35
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 17179869184.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1073741824
nv_gpu_memory_used_bytes{gpu_uuid="MIG-2"} 5
nv_gpu_utilization{gpu_uuid="MIG-2"} nan
nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5
nv_cpu_utilization 0.9
"""


def read(page: bytes) -> LoadPage:
    found = LoadPage()
    found.add(page)
    found.finish()
    return found


def test_versions_of_a_model_are_added_up() -> None:
    assert read(PAGE).models == {
        b"a": ModelLoad(pending=4.0, requests=12.0, executions=6.0, execution_s=2.0),
        b"b.c": ModelLoad(execution_s=0.5),
    }


def test_devices_say_what_they_know() -> None:
    assert read(PAGE).devices == (
        DeviceLoad(
            device=b"GPU-1",
            utilization=0.35,
            memory_used=float(2**30),
            memory_total=float(2**34),
        ),
        DeviceLoad(device=b"MIG-2", memory_used=5.0),
    )


def test_a_page_may_be_read_in_pieces() -> None:
    whole, parts = read(PAGE), LoadPage()
    for begin in range(0, len(PAGE), 7):
        parts.add(PAGE[begin : begin + 7])
    parts.finish()
    assert (parts.models, parts.devices) == (whole.models, whole.devices)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b'nv_inference_pending_request_count{model="a"} nan\n',
        b'nv_inference_pending_request_count{model="a"} -1\n',
        b'nv_inference_pending_request_count{model="a"} 1e999\n',
        b'nv_inference_pending_request_count{model="a"} 1e\n',
        b'nv_inference_pending_request_count{version="1"} 1\n',
        b'nv_gpu_utilization{uuid="1"} 0.5\n',
        b'nv_inference_pending_request_count{super_model="1"} 1\n',
        b'nv_inference_pending_request_count{super_model="1",version="1"} 1\n',
        b'nv_gpu_utilization{gpu_uuid="',
        b"\xff\x00 nv_gpu_utilization{} 3",
    ],
)
def test_what_is_no_page_says_nothing(page: bytes) -> None:
    found = read(page)
    assert (found.models, found.devices) == ({}, ())


def test_a_utilisation_beyond_all_is_all() -> None:
    (device,) = read(b'nv_gpu_utilization{gpu_uuid="1"} 98\n').devices
    assert device.utilization == 1.0


def test_sums_are_finite() -> None:
    line = b'nv_gpu_memory_used_bytes{gpu_uuid="1"} 1e308\n'
    (device,) = read(2 * line).devices
    assert device.memory_used is not None
    assert isfinite(device.memory_used)


def test_lines_without_end_are_left_out() -> None:
    line = b'nv_inference_pending_request_count{model="' + b"m" * 2**20 + b'"} 1\n'
    page = LoadPage()
    for begin in range(0, len(line), STEP_BYTES):
        page.add(line[begin : begin + STEP_BYTES])
        assert len(page._rest) < STEP_BYTES
    page.add(b'nv_inference_pending_request_count{model="n"} 2\n')
    assert list(page.models) == [b"n"]
    assert page.is_cut


def test_models_without_end_are_left_out() -> None:
    line = b'nv_inference_pending_request_count{model="m%d"} 1\n'
    page = read(b"".join(line % at for at in range(20_000)))
    assert len(page.models) == 10_000
    assert page.is_cut
    assert page.size > 10_000 * 100
