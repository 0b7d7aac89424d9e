"""The live document: rates from differences, the verdict, and what it costs nobody."""

from __future__ import annotations

import json
from dataclasses import replace

from lb.admin.live import LiveView
from lb.admin.live_document import LiveBackend, LiveDocument
from lb.control.directory import BackendDirectory
from lb.control.record import Member
from lb.domain.backend import Address, AdminState, AppProtocol, BackendSpec
from lb.domain.outcome import Reason
from lb.domain.schedule import ModelQueueView
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from lb.telemetry.counts import WorkerStatus
from lb.telemetry.meter import Meter
from tests.fakes.live import FakeClock, live_sources, read_live
from tests.fakes.pool import make_pool
from tests.fakes.records import PlainRecord, grpc_record
from tests.fakes.relay import named_policy


def settle(directory: BackendDirectory, now: float) -> None:
    """Have all probes of b end well, as often as it takes to be up again."""
    for port in (*directory.find("b").ports,) * 3:
        directory.probe_sent(port, now)
        directory.probed(port, ProbeResult(Finding.READY, latency_s=0.001), now)


def members(count: int) -> list[Member]:
    """Backends `gpu-0` and so on."""
    addresses = (Address("127.0.0.1", 1000 + number) for number in range(count))
    return [
        Member(BackendSpec(name=f"gpu-{number}", http=address))
        for number, address in enumerate(addresses)
    ]


def large_pool(count: int, now: float) -> BackendDirectory:
    """Backends `gpu-0` and so on, all of them up."""
    directory = BackendDirectory(named_policy("least_loaded"))
    directory.replace(members(count), now)
    for record in directory.records:
        for port in record.ports:
            directory.probe_sent(port, now)
            directory.probed(port, ProbeResult(Finding.READY, latency_s=0.001), now)
    return directory


def backend(document: LiveDocument, name: str) -> LiveBackend:
    return next(each for each in document["backends"] if each["name"] == name)


def test_rates_and_quantiles_are_of_the_last_seconds() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    a = directory.find("a").backend
    view = LiveView(live_sources(directory, meter), clock)
    for _ in range(1000):  # long ago, and slow
        meter.finished(PlainRecord(backend=a, started_at=100.0, ended_at=105.0))
    first = read_live(view)
    assert first["summary"]["requests"] is None
    assert first["window_s"] is None
    for _ in range(30):
        meter.finished(grpc_record(backend=a, started_at=100.0, ended_at=100.004))
    a.port(AppProtocol.GRPC).codes[0] = 30
    clock.now += 2.0
    second = read_live(view)
    assert second["window_s"] == 2.0
    assert second["summary"]["requests"] == 15.0
    assert 2.5 <= (second["summary"]["p50_ms"] or 0) <= 5.0
    assert (second["summary"]["p99_ms"] or 0) <= 5.0
    assert (backend(second, "a")["requests"], backend(second, "a")["share"]) == (15.0, 1.0)
    assert (backend(second, "b")["requests"], backend(second, "b")["share"]) == (0.0, 0.0)


def test_it_is_made_in_steps_and_the_newest_one_is_kept() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    read_live(view)
    before = view.text
    clock.now += 1.0
    steps = view.make()
    next(steps)
    assert (view.text, view.age_s) == (before, 1.0)
    assert len(list(steps)) >= 3
    assert view.text != before
    assert view.age_s == 0.0


def test_a_backend_may_come_or_go_while_it_is_made() -> None:
    directory, clock = large_pool(3, now=100.0), FakeClock(111.0)
    for later in (2, 4):  # one leaves, then two come
        view = LiveView(live_sources(directory), clock)
        steps = view.make()
        next(steps)
        before = [each.backend.name for each in directory.records]
        directory.replace(members(later), clock.now)
        assert len(directory.records) == later
        assert len(list(steps)) >= 3
        names = [each["name"] for each in json.loads(view.text)["backends"]]
        assert sorted(names) == sorted(before)


def test_rows_of_a_large_pool_are_renewed_in_turn_and_a_change_of_state_at_once() -> None:
    directory, clock = large_pool(120, now=100.0), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    read_live(view)
    clock.now += 1.0
    read_live(view)  # two readings of each make rates
    for record in directory.records:
        record.backend.in_flight = 7
    renewed = []
    for _ in range(3):
        clock.now += 1.0
        shown = read_live(view)["backends"]
        renewed.append({each["name"] for each in shown if each["in_flight"] == 7})
    assert [len(names) for names in renewed] == [40, 80, 120]
    for record in directory.records:
        record.backend.in_flight = 8
    away = [f"gpu-{number}" for number in range(0, 120, 10)]
    for name in away:
        directory.set_admin(name, AdminState.DRAINING, clock.now)
    clock.now += 1.0
    document = read_live(view)
    for name in away:
        assert backend(document, name)["state"] == "draining"
        assert backend(document, name)["in_flight"] == 8


def test_models_are_shown_by_how_busy_they_are_and_renewed_in_turn() -> None:
    directory, meter, clock = make_pool(), Meter(max_models=200), FakeClock(111.0)
    a = directory.find("a").backend
    view = LiveView(live_sources(directory, meter), clock)

    def ask(number: int, count: int = 1) -> None:
        for _ in range(count):
            meter.finished(grpc_record(backend=a, model=f"m-{number:03}".encode()))

    for number in range(150):
        ask(number)
    read_live(view)
    for number in range(50, 150):
        ask(number)
    clock.now += 1.0
    rows = read_live(view)["models"]
    assert [each["name"] for each in rows] == [f"m-{number:03}" for number in range(149, 49, -1)]
    assert {each["requests"] for each in rows} == {1.0}
    ask(7, 100)  # one that is not shown
    for _ in range(3):
        clock.now += 1.0
        document = read_live(view)
    assert document["models_total"] == 150
    first = document["models"][0]
    assert first["name"] == "m-007"
    assert (first["requests"] or 0) >= 25.0


def test_further_attempts_are_counted_for_their_model() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    a = directory.find("a").backend
    hedges: dict[bytes, int] = {}
    view = LiveView(live_sources(directory, meter, hedges=lambda: hedges), clock)
    read_live(view)
    for attempts in (1, 2, 3):
        meter.finished(grpc_record(backend=a, attempts=attempts))
    (model,) = meter.traffic[AppProtocol.GRPC].models
    hedges[model] = 2
    clock.now += 1.0
    document = read_live(view)
    assert document["summary"]["retries"] == 3.0
    assert [(each["retries"], each["hedges"]) for each in document["models"]] == [(3.0, 2.0)]


def test_what_was_read_when_somebody_last_looked_makes_no_rates() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    read_live(view)
    clock.now += 1.0
    assert view.has_rates
    clock.now += 3600.0
    assert not view.has_rates
    assert read_live(view)["summary"]["requests"] is None


def test_errors_are_told_by_reason_and_clients_own_ones_raise_no_alarm() -> None:
    directory, meter, clock = make_pool(), Meter(), FakeClock(111.0)
    settle(directory, 110.0)
    view = LiveView(live_sources(directory, meter), clock)
    read_live(view)
    a = directory.find("a").backend
    for _ in range(96):
        meter.finished(PlainRecord(backend=a))
    for _ in range(4):
        meter.finished(PlainRecord(status=429, reason=Reason.RATE_LIMITED))
    meter.finished(PlainRecord(backend=a, status=0, reason=Reason.CLIENT_GONE))
    clock.now += 1.0
    summary = read_live(view)["summary"]
    assert (summary["verdict"], summary["why"]) == ("good", "All 2 backends are up.")
    assert summary["errors"] == {"rate_limited": 4.0}
    for _ in range(2):
        meter.finished(PlainRecord(status=502, reason=Reason.UPSTREAM_LOST))
    meter.finished(PlainRecord(backend=a, status=500))
    clock.now += 1.0
    summary = read_live(view)["summary"]
    assert summary["errors"] == {"rate_limited": 2.0, "upstream_lost": 1.0, "backend_status": 0.5}
    assert summary["verdict"] == "degraded"
    assert summary["why"] == "1.5 requests per second fail, most with upstream_lost."


def test_the_sentence_names_the_worst_backend_and_why() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    view = LiveView(live_sources(directory), clock)
    summary = read_live(view)["summary"]
    assert (summary["verdict"], summary["up"], summary["backends"]) == ("degraded", 1, 2)
    assert summary["why"] == "b has been down for 10s: grpc: closed."
    assert [each["name"] for each in read_live(view)["backends"]] == ["b", "a"]
    directory.set_admin("b", AdminState.DRAINING, 111.5)
    clock.now += 1.0
    summary = read_live(view)["summary"]
    assert (summary["verdict"], summary["why"]) == ("good", "1 backend is up; b is draining.")
    directory.set_admin("a", AdminState.DISABLED, 112.5)
    clock.now += 1.0
    summary = read_live(view)["summary"]
    assert (summary["verdict"], summary["why"]) == ("bad", "No backend can take requests.")


def test_requests_that_wait_long_are_worth_a_word() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    settle(directory, 110.0)
    queue = ModelQueueView(model=b"m", version=b"", waiting={0: 3, 2: 1}, oldest_s=4.0)
    sources = live_sources(
        directory, queued=lambda: 4, oldest_s=lambda _: 4.0, model_queues=lambda _: [queue]
    )
    document = read_live(LiveView(sources, clock))
    assert document["summary"]["why"] == "The oldest queued request has waited for 4.0s."
    (model,) = document["models"]
    assert (model["name"], model["queued"], model["oldest_ms"]) == ("m", 4, 4000.0)


def test_states_of_the_last_minutes_and_their_causes_are_kept() -> None:
    directory, clock = make_pool(), FakeClock(111.0)
    settle(directory, 105.0)
    directory.set_admin("b", AdminState.DRAINING, 109.0)
    document = read_live(LiveView(live_sources(directory), clock))
    assert backend(document, "b")["past"] == [
        [11.0, "starting"], [10.0, "down"], [6.0, "up"], [2.0, "draining"],
    ]  # fmt: skip
    newest, before = document["changes"][:2]
    assert newest == {
        "age_s": 2.0, "at": 1_799_999_998.0, "backend": "b", "subject": "", "before": "enabled",
        "after": "draining", "why": "operator",
    }  # fmt: skip
    assert (before["backend"], before["subject"], before["after"]) == ("b", "grpc", "up")
    clock.now += 1000.0
    document = read_live(LiveView(live_sources(directory), clock))
    assert backend(document, "b")["past"] == [[1002.0, "draining"]]


def test_words_of_a_backend_that_are_no_text_do_not_end_it() -> None:
    directory = make_pool()
    port, _ = directory.find("b").ports
    port.why = "half of a pair: \ud83d"
    document = read_live(LiveView(live_sources(directory), FakeClock(111.0)))
    assert "\ud83d" in document["summary"]["why"]


def worker(index: int) -> WorkerStatus:
    """One that has served for a minute."""
    return WorkerStatus(
        index=index, pid=100 + index, starts=1, connections=3, requests=1000, cpu_s=20.0,
        silent_s=0.1, in_flight=2, since_s=60.0,
    )  # fmt: skip


def test_workers_are_shown_with_their_rates_and_one_that_is_away_is_a_reason_for_alarm() -> None:
    directory, clock = large_pool(2, now=100.0), FakeClock(111.0)
    found = [worker(0), worker(1), worker(2)]
    view = LiveView(live_sources(directory, workers=lambda: found), clock)
    first = read_live(view)
    assert [each["requests"] for each in first["workers"]] == [None, None, None]
    assert first["summary"]["verdict"] == "good"
    clock.now += 2.0
    found[0] = replace(found[0], requests=1030, cpu_s=21.0)
    found[1] = replace(found[1], pid=0, connections=0, in_flight=0, since_s=1.0)
    found[2] = replace(found[2], pid=777, starts=2, requests=5, cpu_s=0.3, since_s=1.5)
    second = read_live(view)
    rows = [
        (each["state"], each["since_s"], each["restarts"], each["requests"], each["cpu"])
        for each in second["workers"]
    ]
    assert rows == [
        ("serving", 60.0, 0, 15.0, 0.5),
        ("away", 1.0, 0, None, None),
        ("serving", 1.5, 1, None, None),  # another process, which counts from 0
    ]
    summary = second["summary"]
    assert (summary["verdict"], summary["why"]) == ("degraded", "Worker 1 has been away for 1.0s.")


def test_a_worker_that_tells_nothing_stands_still() -> None:
    directory, clock = large_pool(1, now=100.0), FakeClock(111.0)
    silent = replace(worker(0), silent_s=4.0)
    document = read_live(LiveView(live_sources(directory, workers=lambda: [silent]), clock))
    (row,) = document["workers"]
    assert (row["state"], row["since_s"]) == ("silent", 4.0)
    assert document["summary"]["why"] == "Worker 0 has been silent for 4.0s."
