from __future__ import annotations

from lb.admin.models import Backend
from lb.cli.demo.balancer import Listeners
from lb.cli.demo.load import RequestTally
from lb.cli.demo.table import addresses, comparison, redraw, table
from tests.fakes.views import backend

ROWS = [
    Backend.model_validate(each)
    for each in (
        backend("triton-0", in_flight=2, served=12345, latency={"p50_ms": 2.34, "p99_ms": 10.0}),
        backend("b", state="down", why="http: refused"),
    )
]


def test_table_aligns_texts_left_and_numbers_right() -> None:
    assert table(ROWS, ())[:3] == [
        "  backend    state   in flight   served     p50      p99",
        "  triton-0   up              2    12345   2.3ms   10.0ms",
        "  b          down            0        0       -        -  http: refused",
    ]


def test_table_tells_what_became_of_the_requests() -> None:
    clean = RequestTally("HTTP", right=2)
    clean.recent_s.extend([0.001, 0.002])
    spoilt = RequestTally("gRPC", failed=1, problem="UNAVAILABLE: no backend")
    assert table((), (clean, spoilt))[-2:] == [
        "  HTTP   2 right, 0 wrong, 0 failed   p50 2.0ms   p99 2.0ms",
        "  gRPC   0 right, 0 wrong, 1 failed   p50 -   p99 -   last: UNAVAILABLE: no backend",
    ]


def test_addresses_are_those_of_the_four_listeners() -> None:
    lines = "\n".join(addresses(Listeners("h:1", "h:2", "h:3", "h:4")))
    for address in ("http://h:1", "h:2", "http://h:3/metrics", "http://h:4/api/v1/backends"):
        assert f"  {address}\n" in lines
    assert "curl http://h:1/v2/models/simple" in lines
    assert "open     http://h:4/\n" in lines


def test_a_triton_that_does_not_run_is_a_row_that_says_so() -> None:
    rows = table(ROWS, (), {"b": "was killed by SIGKILL"})
    assert rows[2].endswith("  was killed by SIGKILL; http: refused")


def test_both_policies_are_compared_on_the_same_arrivals() -> None:
    ours, theirs = RequestTally("HTTP", right=2), RequestTally("HTTP", right=1, failed=1)
    ours.recent_s.extend([0.001, 0.002])
    theirs.recent_s.extend([0.08])
    assert comparison((ours,), (theirs,)) == (
        "  p99 of the same arrivals: triton-lb 2.0ms (0 failed), round robin 80.0ms (1 failed)"
    )


def test_redraw_replaces_the_lines_drawn_before_and_never_wraps() -> None:
    assert redraw(["abc", "d"], 0, 2) == "ab\nd\n"
    assert redraw(["abc"], 2, 80) == "\x1b[2F\x1b[Jabc\n"
