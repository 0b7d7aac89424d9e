"""Whatever a backend says of its load: it is read, or it says nothing."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lb.kserve.load import LoadPage
from lb.kserve.statistics import fit, measured_from_json, measured_from_message

NAMES = st.sampled_from(
    [
        b"nv_inference_pending_request_count",
        b"nv_inference_request_success",
        b"nv_inference_exec_count",
        b"nv_inference_compute_infer_duration_us",
        b"nv_gpu_utilization",
        b"nv_gpu_memory_used_bytes",
        b"nv_cpu_utilization",
    ]
)
LABELS = st.sampled_from([b"{", b"}", b'model="', b'gpu_uuid="', b'"', b",", b" ", b"\n", b"a"])
NUMBERS = st.sampled_from([b"1", b"0.5", b"nan", b"-1", b"1e400", b"x", b""])
PAGES = st.lists(NAMES | LABELS | NUMBERS | st.binary(max_size=4), max_size=60).map(b"".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "model_stats", "name", "version", "batch_stats", "batch_size", "compute_infer",
                "compute_input", "compute_output", "count", "ns",
            ]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=30,
)  # fmt: skip


@given(PAGES, st.integers(min_value=0, max_value=400))
def test_a_page_is_read_or_says_nothing(page: bytes, cut: int) -> None:
    found = LoadPage()
    found.add(page[:cut])
    found.add(page[cut:])
    for load in found.models.values():
        assert all(isfinite(each) and each >= 0 for each in (load.pending, load.execution_s))
    for device in found.devices:
        assert device.utilization is None or 0 <= device.utilization <= 1


@given(st.binary(max_size=200) | JSON.map(lambda content: json.dumps(content).encode()))
def test_statistics_are_read_or_refused(body: bytes) -> None:
    for read in (measured_from_json, measured_from_message):
        try:
            found: dict[Any, Any] = dict(read(body))
        except ValueError:
            continue
        assert all(each.mean_s > 0 for each in found.values())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62), st.integers(0, 2**62), st.floats(0, 1e12, allow_nan=False)
        ),
        max_size=6,
    )
)
def test_what_is_concluded_from_batches_is_a_time(batches: list[tuple[int, int, float]]) -> None:
    measured = fit(batches)
    if measured is not None:
        assert measured.row_s >= 0
        assert measured.base_s >= -1e-9 * measured.mean_s
        assert isfinite(measured.rows_variance)
