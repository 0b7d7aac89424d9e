"""The live document: rates from differences, the verdict, and what it costs nobody."""

from __future__ import annotations

import json

from lb.admin.live import LiveView
from lb.admin.live_document import LiveBackend, LiveDocument
from lb.control.directory import BackendDirectory
from lb.domain.backend import AdminState, AppProtocol
from lb.domain.outcome import Reason
from lb.domain.schedule import ModelQueueView
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from lb.telemetry.meter import Meter
from tests.fakes.live import FakeClock, live_sources
from tests.fakes.pool import make_pool
from tests.fakes.records import PlainRecord, grpc_record


def settle(directory: BackendDirectory, now: float) -> None:
    """Have all probes of b end well, as often as it takes to be up again."""
    for port in (*directory.find("b").ports,) * 3:
        directory.probe_sent(port, now)
        directory.probed(port, ProbeResult(Finding.READY, latency_s=0.001), now)


def backend(document: LiveDocument, name: str) -> LiveBackend:
    return next(each for each in document["backends"] if each["name"] == name)


def test_rates_and_quantiles_are_of_the_last_seconds() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    a = directory.find("a").backend
    view = LiveView(live_sources(directory, meter), clock)
    for _ in range(1000):  # long ago, and slow
        meter.finished(PlainRecord(backend=a, started_at=100.0, ended_at=105.0))
    first = view.document()
    assert first["summary"]["requests"] is None
    assert first["window_s"] is None
    for _ in range(30):
        meter.finished(grpc_record(backend=a, started_at=100.0, ended_at=100.004))
    a.port(AppProtocol.GRPC).codes[0] = 30
    clock.now += 2.0
    second = view.document()
    assert second["window_s"] == 2.0
    assert second["summary"]["requests"] == 15.0
    assert 2.5 <= (second["summary"]["p50_ms"] or 0) <= 5.0
    assert (second["summary"]["p99_ms"] or 0) <= 5.0
    assert (backend(second, "a")["requests"], backend(second, "a")["share"]) == (15.0, 1.0)
    assert (backend(second, "b")["requests"], backend(second, "b")["share"]) == (0.0, 0.0)


def test_it_is_computed_once_a_second_whoever_asks() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    first = view.document()
    clock.now += 0.5
    assert view.document() is first
    clock.now += 0.5
    assert view.document() is not first


def test_what_was_read_when_somebody_last_looked_makes_no_rates() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    view.document()
    clock.now += 1.0
    assert view.has_rates
    clock.now += 3600.0
    assert not view.has_rates
    assert view.document()["summary"]["requests"] is None


def test_errors_are_told_by_reason_and_clients_own_ones_raise_no_alarm() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    settle(directory, 110.0)
    view = LiveView(live_sources(directory, meter), clock)
    view.document()
    a = directory.find("a").backend
    for _ in range(96):
        meter.finished(PlainRecord(backend=a))
    for _ in range(4):
        meter.finished(PlainRecord(status=429, reason=Reason.RATE_LIMITED))
    meter.finished(PlainRecord(backend=a, status=0, reason=Reason.CLIENT_GONE))
    clock.now += 1.0
    summary = view.document()["summary"]
    assert (summary["verdict"], summary["why"]) == ("good", "All 2 backends are up.")
    assert summary["errors"] == {"rate_limited": 4.0}
    for _ in range(2):
        meter.finished(PlainRecord(status=502, reason=Reason.UPSTREAM_LOST))
    meter.finished(PlainRecord(backend=a, status=500))
    clock.now += 1.0
    summary = view.document()["summary"]
    assert summary["errors"] == {"rate_limited": 2.0, "upstream_lost": 1.0, "backend_status": 0.5}
    assert summary["verdict"] == "degraded"
    assert summary["why"] == "1.5 requests per second fail, most with upstream_lost."


def test_the_sentence_names_the_worst_backend_and_why() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    summary = view.document()["summary"]
    assert (summary["verdict"], summary["up"], summary["backends"]) == ("degraded", 1, 2)
    assert summary["why"] == "b is down for 10s: grpc: closed."
    assert [each["name"] for each in view.document()["backends"]] == ["b", "a"]
    directory.set_admin("b", AdminState.DRAINING, 111.5)
    clock.now += 1.0
    summary = view.document()["summary"]
    assert (summary["verdict"], summary["why"]) == ("good", "1 backend is up; b is draining.")
    directory.set_admin("a", AdminState.DISABLED, 112.5)
    clock.now += 1.0
    summary = view.document()["summary"]
    assert (summary["verdict"], summary["why"]) == ("bad", "No backend can take requests.")


def test_requests_that_wait_long_are_worth_a_word() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    settle(directory, 110.0)
    queue = ModelQueueView(model=b"m", version=b"", waiting={0: 3, 2: 1}, oldest_s=4.0)
    sources = live_sources(
        directory, queued=lambda: 4, oldest_s=lambda _: 4.0, model_queues=lambda _: [queue]
    )
    document = LiveView(sources, clock).document()
    assert document["summary"]["why"] == "The oldest queued request has waited for 4.0s."
    (model,) = document["models"]
    assert (model["name"], model["queued"], model["oldest_ms"]) == ("m", 4, 4000.0)


def test_states_of_the_last_minutes_and_their_causes_are_kept() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    settle(directory, 105.0)
    directory.set_admin("b", AdminState.DRAINING, 109.0)
    document = LiveView(live_sources(directory), clock).document()
    assert backend(document, "b")["past"] == [
        (11.0, "starting"), (10.0, "down"), (6.0, "up"), (2.0, "draining"),
    ]  # fmt: skip
    newest, before = document["changes"][:2]
    assert newest == {
        "age_s": 2.0, "backend": "b", "subject": "", "before": "enabled", "after": "draining",
        "why": "operator",
    }  # fmt: skip
    assert (before["backend"], before["subject"], before["after"]) == ("b", "grpc", "up")
    clock.now += 1000.0
    document = LiveView(live_sources(directory), clock).document()
    assert backend(document, "b")["past"] == [(1002.0, "draining")]


def test_words_of_a_backend_that_are_no_text_do_not_end_it() -> None:
    directory = make_pool()
    port, _ = directory.find("b").ports
    port.why = "half of a pair: \ud83d"
    document = json.loads(LiveView(live_sources(directory), FakeClock(111.0)).text())
    assert "\ud83d" in document["summary"]["why"]
