"""Pages of backends merge into one that a scraper accepts."""

from __future__ import annotations

import time

import pytest

from lb.telemetry.exposition import (
    MAX_FAMILIES,
    MAX_LINE_BYTES,
    MAX_LINES,
    STEP_BYTES,
    BackendPage,
    MergedPages,
)

TRITON_PAGE = b"""\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="simple",version="1"} 3
nv_inference_request_success{model="identity",version="1"} 0
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""


def merge(*pages: tuple[str, bytes]) -> bytes:
    """The text of the merged pages."""
    merged = MergedPages()
    for backend, page in pages:
        merged.add(labelled(page, backend))
    return text_of(merged)


def labelled(text: bytes, backend: str, step: int = STEP_BYTES) -> BackendPage:
    """A page that comes in parts of so many bytes."""
    page = BackendPage(backend)
    for begin in range(0, len(text), step):
        for _ in page.read(text[begin : begin + step]):
            pass
    page.finish()
    return page


def text_of(merged: MergedPages) -> bytes:
    return b"".join(bytes(part) for each in merged.families.values() for part in each.lines())


def test_each_family_has_one_head_and_all_samples_have_the_label_first() -> None:
    assert merge(("gpu-0", TRITON_PAGE), ("gpu-1", TRITON_PAGE)).decode() == (
        "# HELP nv_inference_request_success Number of successful inference requests, "
        "all batch sizes\n"
        "# TYPE nv_inference_request_success counter\n"
        'nv_inference_request_success{backend="gpu-0",model="simple",version="1"} 3\n'
        'nv_inference_request_success{backend="gpu-0",model="identity",version="1"} 0\n'
        'nv_inference_request_success{backend="gpu-1",model="simple",version="1"} 3\n'
        'nv_inference_request_success{backend="gpu-1",model="identity",version="1"} 0\n'
        "# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]\n"
        "# TYPE nv_cpu_utilization gauge\n"
        'nv_cpu_utilization{backend="gpu-0"} 0.5\n'
        'nv_cpu_utilization{backend="gpu-1"} 0.5\n'
    )


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (b"a 1", b'a{backend="b"} 1\n'),
        (b"a{} 1e-05", b'a{backend="b"} 1e-05\n'),
        (b"a +Inf", b'a{backend="b"} +Inf\n'),
        (b"a NaN 1700000000000", b'a{backend="b"} NaN 1700000000000\n'),
        (b'a{ x = "1", y="2", } 3', b'a{backend="b",x = "1", y="2", } 3\n'),
        (b'a{x="}\\"\\\\\\n"} 1', b'a{backend="b",x="}\\"\\\\\\n"} 1\n'),
        ('a{x="µ"} 1'.encode(), 'a{backend="b",x="µ"} 1\n'.encode()),
    ],
)
def test_all_forms_of_a_sample_are_understood(line: bytes, sample: bytes) -> None:
    assert merge(("b", line)) == sample


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"a",
        b"a one",
        b"a 0x10",
        b"a 1 2 3",
        b"1a 1",
        b'{x="1"} 1',
        b'a{x="1} 1',
        b'a{x="1"y="2"} 1',
        b'a{x="1",,} 1',
        b'a{x="\\t"} 1',
        b"a{x=1} 1",
        b"<html>",
        b"# EOF",
        b"# TYPE a nonsense",
        b"# HELP a ends badly \\",
        b"# a comment",
    ],
)
def test_what_does_not_follow_the_format_is_left_out(line: bytes) -> None:
    assert merge(("b", line)) == b""


def test_parts_of_a_histogram_stay_with_it() -> None:
    page = b"""\
# TYPE h histogram
h_bucket{le="+Inf"} 1
# TYPE other gauge
other 1
h_sum 2
h_count 1
"""
    names = [line.partition(b"{")[0] for line in merge(("b", page)).splitlines()]
    assert names[:4] == [b"# TYPE h histogram", b"h_bucket", b"h_sum", b"h_count"]
    assert names[4:] == [b"# TYPE other gauge", b"other"]


def test_the_first_page_with_a_head_gives_it() -> None:
    text = merge(("a", b"m 1"), ("b", b"# TYPE m gauge\nm 2"), ("c", b"# TYPE m counter\nm 3"))
    assert text == b'# TYPE m gauge\nm{backend="a"} 1\nm{backend="b"} 2\nm{backend="c"} 3\n'


def test_a_backend_label_of_the_page_is_renamed_as_prometheus_does() -> None:
    assert merge(("b", b'm{x="backend=",backend="c"} 1')) == (
        b'm{backend="b",x="backend=",exported_backend="c"} 1\n'
    )
    assert merge(("b", b'm{exported_backend="d",backend="c"} 1')) == (
        b'm{backend="b",exported_backend="d",exported_exported_backend="c"} 1\n'
    )
    assert merge(("b", b'm{my_backend="c"} 1')) == b'm{backend="b",my_backend="c"} 1\n'


def test_names_of_backends_are_escaped() -> None:
    assert merge(('a"\\\n', b"m 1")) == b'm{backend="a\\"\\\\\\n"} 1\n'


@pytest.mark.parametrize("step", [1, 7, 100])
def test_pages_may_come_in_parts(step: int) -> None:
    merged = MergedPages()
    merged.add(labelled(TRITON_PAGE, "gpu-0", step))
    assert text_of(merged) == merge(("gpu-0", TRITON_PAGE))


@pytest.mark.parametrize("step", [100, STEP_BYTES])
def test_lines_that_are_too_long_are_left_out_and_counted(step: int) -> None:
    text = b"a 1\n" + b"x" * 3 * MAX_LINE_BYTES + b"\nb 2\n" + b"y" * 3 * MAX_LINE_BYTES
    page = labelled(text, "b", step)
    assert list(page.families) == [b"a", b"b"]
    assert page.left_out == 2


def test_families_beyond_the_bound_are_left_out_and_the_others_go_on() -> None:
    text = b"".join(b"f%d 1\n" % at for at in range(MAX_FAMILIES + 10)) + b"f0 2\n"
    page = labelled(text, "b")
    assert len(page.families) == MAX_FAMILIES
    assert page.left_out == 10
    assert bytes(page.families[b"f0"].samples[0]).count(b"\n") == 2
    assert page.size >= sum(len(each.samples[0]) for each in page.families.values())


def test_lines_beyond_the_bound_are_not_looked_at() -> None:
    page = labelled(b"a 1\n" * (MAX_LINES + 5000), "b")
    assert page.is_full
    assert bytes(page.families[b"a"].samples[0]).count(b"\n") <= MAX_LINES


@pytest.mark.parametrize(
    "line",
    [
        b'a{x="' + b"y" * 1_000_000,
        b"a{" + b'x="y",' * 200_000 + b"!",
        b"a" * 1_000_000,
        b"a " + b"1" * 1_000_000 + b"x",
        b"# HELP a " + b" " * 1_000_000 + b"\\",
    ],
    ids=["open string", "many labels", "long name", "long number", "long help"],
)
def test_hostile_lines_cost_time_in_proportion(line: bytes) -> None:
    started_at = time.process_time()
    assert merge(("b", line)) == b""
    # 0.3 s for a megabyte is ten times what it takes; a quadratic match would take hours.
    assert time.process_time() - started_at < 0.3
