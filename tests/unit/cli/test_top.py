"""What `triton-lb top` draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lb.admin.live import LiveView
from lb.cli.admin_client import AdminTarget
from lb.cli.top import Reading, View, draw
from lb.domain.backend import AdminState
from lb.domain.schedule import ModelQueueView
from lb.telemetry.counts import WorkerStatus
from lb.telemetry.meter import Meter
from tests.fakes.live import FakeClock, live_sources, read_live
from tests.fakes.pool import make_pool
from tests.fakes.records import PlainRecord


def document() -> dict[str, Any]:
    """Backend a has all requests, b is down; three requests wait for a model with an evil name."""
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    a = directory.find("a").backend
    queue = ModelQueueView(model=b"m\x1b[2J", version=b"", waiting={0: 3}, oldest_s=0.25)
    sources = live_sources(
        directory, meter, queued=lambda: 3, oldest_s=lambda _: 0.25, model_queues=lambda _: [queue]
    )
    view = LiveView(sources, clock)
    read_live(view)
    for _ in range(10):
        meter.finished(PlainRecord(backend=a, started_at=100.0, ended_at=100.004))
    a.in_flight = 2
    clock.now += 1.0
    return dict(read_live(view))


def test_eighty_columns_suffice() -> None:
    reading = Reading(AdminTarget("127.0.0.1:8003"), document())
    lines = draw([reading], View(), 80, 0, coloured=False).lines
    assert lines[0] == "▲ degraded: b has been down for 11s: grpc: closed."
    assert lines[1] == "10 requests/s  p50 3.8ms  p99 5.0ms  0 errors/s  3 queued"
    assert lines[3:] == [
        "  STATE      BACKEND IN FL   REQ/S SHARE     MEAN  ERR/S  WHY",
        "✕ down       b           0       0     -        -      0  grpc: closed",
        "● up         a           2       0     -        -      0  ",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_terminal_may_be_as_narrow_as_it_likes(width: int) -> None:
    reading = Reading(AdminTarget("127.0.0.1:8003"), document())
    assert len(draw([reading], View(), width, 0, coloured=False).lines) > 4


def test_variants_and_shadows_are_below_the_backends() -> None:
    shown = document()
    variant = {"percent": 5.0, "answers": 9, "errors": 1, "p99_ms": 4.0, "note": "rolled back"}
    shown["variants"] = [variant | {"name": "bert/new"}, variant | {"name": "bert (shadow)"}]
    reading = Reading(AdminTarget("127.0.0.1:8003"), shown)
    lines = draw([reading], View(), 80, 0, coloured=False).lines
    assert [" ".join(line.split()) for line in lines[6:]] == [
        "",
        "VARIANT SHARE ANSWERED ERRORS P99 NOTE",
        "bert/new 5% 9 1 4.0ms rolled back",
        "bert (shadow) 5% 9 1 4.0ms rolled back",
    ]


def test_models_show_what_waits_and_no_escape_sequences_of_theirs() -> None:
    reading = Reading(AdminTarget("127.0.0.1:8003"), document())
    lines = draw([reading], View(shows="models"), 80, 0, coloured=False).lines
    assert lines[4].split() == ["m\\x1b[2J", "2", "0", "0", "-", "-", "3", "250ms"]
    assert lines[5].split() == ["simple", "2", "10", "0", "3.8ms", "5.0ms", "0", "-"]
    assert "\x1b" not in "".join(lines)


def test_a_model_is_looked_into() -> None:
    shown = document()
    shown["models"][1] |= {"retries": 2.0, "hedges": 1.0, "waits": {"limit": 1.5}}
    learnt = {"model": "simple", "ms": 3.2, "in_flight": 2, "limit": 8, "slowed": 1.5}
    shown["backends"][0]["main_models"] = [learnt | {"model": "other"}, learnt]
    variant = {"percent": 5.0, "answers": 9, "errors": 1, "p99_ms": 4.0, "note": ""}
    names = ("simple/new", "simple (shadow)", "other/new")
    shown["variants"] = [variant | {"name": name} for name in names]
    reading = Reading(AdminTarget("127.0.0.1:8003"), shown)
    view = View(shows="model", model="simple")
    lines = draw([reading], view, 80, 0, coloured=False).lines
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "MODEL simple",
        "ready on 2 of 2 backends",
        "10 requests/s, 0 failures/s",
        "p50 3.8ms, p99 5.0ms",
        "0 queued",
        "waits: limit 1.5/s",
        "retries: 2/s",
        "of these hedges: 1/s",
        "",
        "VARIANT SHARE ANSWERED ERRORS P99 NOTE",
        "simple/new 5% 9 1 4.0ms",
        "simple (shadow) 5% 9 1 4.0ms",
        "",
        "STATE BACKEND IN FL LIMIT ALONE SLOWED",
        "✕ down b 2 8 3.2ms 1.5x",
    ]
    view.model = "gone"
    lines = draw([reading], view, 80, 0, coloured=False).lines
    assert lines[3:] == ["gone is not among the busiest models now."]


def test_below_the_models_are_variants_and_what_is_loaded_on_demand() -> None:
    shown = document()
    shown["models"][0] |= {
        "retries": 2.0,
        "hedges": 1.0,
        "not_on": ["gpu-7"],
        "waits": {"limit": 1.5},
    }
    variant = {"name": "bert/new", "percent": 5.0, "answers": 9, "errors": 1, "p99_ms": 4.0}
    shown["variants"] = [variant | {"note": ""}, variant | {"note": "not ready, gets nothing"}]
    placed = {"backend": "a", "models": ["bert", "gpt"], "room": "2 of 4", "note": "loading t5"}
    shown["placement"] = [placed, placed | {"backend": "b", "models": [], "note": ""}]
    reading = Reading(AdminTarget("127.0.0.1:8003"), shown)
    lines = draw([reading], View(shows="models"), 160, 0, coloured=False).lines
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "waits: limit 1.5/s; retries: 2/s; of these hedges: 1/s; not on gpu-7" in text
    assert "bert/new 5% 9 1 4.0ms\nbert/new 5% 9 1 4.0ms not ready, gets nothing" in text
    assert "a 2 of 4 bert, gpt" in text
    assert "loading t5" in text


def test_changes_are_listed_with_their_causes() -> None:
    directory = make_pool()
    directory.set_admin("a", AdminState.DRAINING, 110.0)
    found = read_live(LiveView(live_sources(directory), FakeClock(111.0)))
    reading = Reading(AdminTarget("127.0.0.1:8003"), dict(found))
    lines = draw([reading], View(shows="changes"), 80, 0, coloured=False).lines
    assert lines[4].split() == ["1.0s", "a", "▽", "draining", "operator"]


def test_rows_can_be_sorted_and_one_is_selected() -> None:
    reading = Reading(AdminTarget("127.0.0.1:8003"), document())
    view = View(sort="in flight", selected=1)
    drawing = draw([reading], view, 80, 24)
    assert [name for _, name in drawing.rows] == ["a", "b"]
    (marked,) = [line for line in drawing.lines if line.startswith("\x1b[7m")]
    assert marked.split()[1:3] == ["down", "b"]
    assert len(drawing.lines) <= 24


def test_several_processes_are_shown_together_and_a_lost_one_says_so() -> None:
    readings = [
        Reading(AdminTarget("lb-0:8003"), document()),
        Reading(AdminTarget("lb-1:8003"), error="cannot reach the admin API at lb-1:8003"),
    ]
    lines = draw(readings, View(), 80, 0, coloured=False).lines
    assert lines[0].startswith("lb-0:8003  ▲ degraded: b has been down")
    assert lines[-1] == "lb-1:8003  ✕ cannot reach the admin API at lb-1:8003"


def test_workers_are_listed_with_what_each_does() -> None:
    serving = WorkerStatus(
        index=0, pid=4242, starts=3, connections=12, requests=0, cpu_s=1.0, silent_s=0.1,
        in_flight=5, since_s=90.0,
    )  # fmt: skip
    away = WorkerStatus(
        index=1, pid=0, starts=1, connections=0, requests=0, cpu_s=0.0, silent_s=2.0, in_flight=0,
        since_s=2.0,
    )  # fmt: skip
    found, clock = [serving, away], FakeClock(111.0)
    live = LiveView(live_sources(make_pool(), workers=lambda: found), clock)
    read_live(live)
    clock.now += 2.0
    found[0] = replace(serving, requests=100, cpu_s=1.5)
    reading = Reading(AdminTarget("127.0.0.1:8003"), dict(read_live(live)))
    lines = draw([reading], View(shows="workers"), 80, 0, coloured=False).lines
    assert lines[1] == "  2.0s."  # the whole of "Worker 1 has been away for 2.0s."
    assert [" ".join(line.split()) for line in lines[4:]] == [
        "WORKER STATE FOR PID CLIENTS IN FL REQ/S CPU RESTARTS",
        "● 0 serving 1m30s 4242 12 5 50 25% 2",
        "✕ 1 away 2.0s - 0 0 - - 0",
    ]
    assert max(map(len, lines)) <= 80


def test_without_workers_the_view_of_them_says_why_it_is_empty() -> None:
    reading = Reading(AdminTarget("127.0.0.1:8003"), document())
    lines = draw([reading], View(shows="workers"), 80, 0, coloured=False).lines
    assert lines[4:] == ["One process serves: `workers` is 1."]
