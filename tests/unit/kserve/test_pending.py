from __future__ import annotations

from lb.kserve.pending import pending_counts

PAGE = b"""\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="a",version="1"} 3
nv_inference_pending_request_count{model="a",version="2"} 1.000000
nv_inference_pending_request_count{version="1",model="b.c"} 0
nv_inference_count{model="d",version="1"} 7
"""


def test_versions_of_a_model_are_added_up() -> None:
    assert pending_counts(PAGE) == {b"a": 4.0, b"b.c": 0.0}


def test_what_is_no_page_says_nothing() -> None:
    assert pending_counts(b"") == {}
    assert pending_counts(b'nv_inference_pending_request_count{model="a"} nan\n') == {}
