"""What a scrape reads."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lb.domain.backend import (
    LATENCY_BOUNDS_S,
    Address,
    AppProtocol,
    Backend,
    BackendSpec,
    BackendState,
)
from lb.domain.outcome import Reason
from lb.telemetry.catalogue import COLLECTED
from lb.telemetry.collector import PortStatus, make_registry
from lb.telemetry.meter import MAX_CODES, AnswerTimes, Meter
from tests.fakes.backends import make_backend
from tests.fakes.metrics import Counters, key
from tests.fakes.promtool import criticism_of
from tests.fakes.records import PlainRecord, grpc_record

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
_OF_REQUESTS = tuple(
    f"triton_lb_model_{each}" for each in ("request", "first_answer", "answer_interval")
)


def busy() -> Counters:
    """Counters of a process that has seen a little of everything."""
    backend = make_backend("gpu-0")
    port = backend.port(HTTP)
    port.attempts, port.connects, port.connect_failures = 7, 2, 1
    port.in_flight, port.connections = 1, 2
    port.bytes_sent, port.bytes_received = 300, 500
    port.codes = {200: 5, 700: 1, 800: 1}
    port.failures = {"upstream_lost": 1}
    port.latency.counts[0], port.latency.counts[-1], port.latency.sum = 4, 2, 130.5
    counters = Counters(
        backends=[backend],
        statuses=[
            PortStatus("gpu-0", HTTP, "up", is_up=True, changes=1),
            PortStatus("gpu-0", GRPC, "suspected", is_up=False, changes=3),
        ],
        dropped_access_lines=9,
        expiries=[("/tls.crt", 1_900_000_000)],
    )
    counters.meter.finished(PlainRecord(backend=backend, attempts=2))
    counters.meter.finished(grpc_record(reason=Reason.NO_BACKEND, grpc_status=14))
    counters.meter.traffic[HTTP].connections = 4
    counters.meter.traffic[HTTP].accepted = 6
    counters.meter.traffic[GRPC].connection_failed(Reason.HEAD_TOO_LARGE)
    counters.loop_lag.observe(0.002)
    return counters


def test_every_family_of_the_catalogue_is_rendered_in_order() -> None:
    names = [
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in busy().collector().collect()
    ]
    assert names == [spec.name for spec in COLLECTED]


def test_counters_of_ports_are_rendered() -> None:
    samples = busy().samples()
    port = {"backend": "gpu-0", "protocol": "http"}
    for name, value in {
        "in_flight": 1,
        "connections": 2,
        "attempts_total": 7,
        "connects_total": 2,
        "connect_failures_total": 1,
        "sent_bytes_total": 300,
        "received_bytes_total": 500,
    }.items():
        assert samples[key(f"triton_lb_backend_{name}", **port)] == value
    responses = "triton_lb_backend_responses_total"
    assert samples[key(responses, **port, code="200")] == 5
    assert samples[key(responses, **port, code="other")] == 2
    failures = "triton_lb_backend_failures_total"
    assert samples[key(failures, **port, reason="upstream_lost")] == 1


def test_requests_are_counted_by_token() -> None:
    samples = busy().samples()
    requests = "triton_lb_token_requests_total"
    assert samples[key(requests, token="team-a")] == 3
    assert samples[key(requests, token="team-b")] == 0
    assert samples[key("triton_lb_token_reload_failures_total")] == 1


def test_calls_of_our_own_are_counted_by_backend() -> None:
    counters = busy()
    backend = counters.backends[0]
    counters.own_calls.count("RepositoryIndex", backend, "ok")
    labels = {"operation": "RepositoryIndex", "backend": backend.name, "outcome": "ok"}
    assert counters.samples()[key("triton_lb_backend_own_calls_total", **labels)] == 1


def test_buckets_are_cumulative_and_end_at_the_count() -> None:
    samples = busy().samples()
    port = {"backend": "gpu-0", "protocol": "http"}
    name = "triton_lb_backend_attempt_duration_seconds"
    assert samples[key(f"{name}_bucket", **port, le="0.0005")] == 4
    assert samples[key(f"{name}_bucket", **port, le="60.0")] == 4
    assert samples[key(f"{name}_bucket", **port, le="+Inf")] == 6
    assert samples[key(f"{name}_count", **port)] == 6
    assert samples[key(f"{name}_sum", **port)] == 130.5


def test_counters_of_clients_are_rendered() -> None:
    samples = busy().samples()
    for name, labels, value in (
        ("connections", {"protocol": "http"}, 4),
        ("connections_accepted_total", {"protocol": "http"}, 6),
        ("connection_errors_total", {"protocol": "grpc", "reason": "head_too_large"}, 1),
        ("requests_total", {"backend": "gpu-0", "protocol": "http", "code": "200"}, 1),
        ("requests_total", {"backend": "", "protocol": "grpc", "code": "UNAVAILABLE"}, 1),
        ("request_errors_total", {"protocol": "grpc", "reason": "no_backend"}, 1),
        ("retries_total", {"protocol": "http"}, 1),
        ("request_duration_seconds_count", {"protocol": "http", "kind": "inference"}, 1),
        ("model_requests_total", {"model": "simple", "protocol": "http", "code": "200"}, 1),
        (
            "model_requests_total",
            {"model": "simple", "protocol": "grpc", "code": "UNAVAILABLE"},
            1,
        ),
        ("model_request_duration_seconds_count", {"model": "simple"}, 1),
        ("operation_requests_total", {"operation": "ModelInfer", "protocol": "grpc"}, 1),
    ):
        assert samples[key(f"triton_lb_{name}", **labels)] == value


def test_a_thousand_models_add_a_bounded_number_of_series() -> None:
    counters = Counters(meter=Meter(max_models=100))
    codes = (200, 400, 404, 408, 413, 429, 499, 500, 502, 503, 504, 507)
    for number in range(1000):
        model = b"model-%d" % number
        for code in codes:
            counters.meter.finished(PlainRecord(model=model, status=code))
        for protocol in AppProtocol:
            traffic = counters.meter.traffic[protocol]
            times = AnswerTimes(traffic, PlainRecord(model=model), 0.0)
            times.on_answer(0.1)
            times.on_answer(0.2)
    named = [labels for name, labels in counters.samples() if name.startswith(_OF_REQUESTS)]
    assert len({dict(labels)["model"] for labels in named}) == 101
    histograms = 3 * (len(LATENCY_BOUNDS_S) + 3)
    assert len(named) == 101 * (histograms + MAX_CODES + 1)


def test_what_is_known_of_models_is_rendered() -> None:
    samples = busy().samples()
    for name, labels, value in (
        ("backend_models_ready", {"backend": "b0"}, 3),
        ("backend_model_table_age_seconds", {"backend": "b0"}, 1.5),
        ("backend_models_missing", {"backend": "b0"}, 1),
        ("backend_settings_differing", {"backend": "b0"}, 2),
        ("backend_configurations_differing", {"backend": "b0"}, 3),
        ("model_ready_backends", {"model": "simple"}, 2),
        ("restored_total", {"kind": "model", "result": "restored"}, 4),
        ("open_sequences", {"backend": "a", "model": "m"}, 3),
        ("sequences_started_total", {}, 9),
        ("reruns_total", {}, 6),
        ("reruns_refused_total", {"why": "budget"}, 2),
        ("blocked_models", {}, 1),
        ("unkept_bodies_total", {}, 3),
        ("sequences_forgotten_total", {"why": "lost"}, 2),
    ):
        assert samples[key(f"triton_lb_{name}", **labels)] == value


def test_facts_of_the_process_are_rendered() -> None:
    samples = busy().samples()
    build = {"version": "0.1.0", "python": "3.11.7", "uvloop": ""}
    assert samples[key("triton_lb_build_info", **build)] == 1
    assert samples[key("triton_lb_start_time_seconds")] == 1_700_000_000.5
    assert samples[key("triton_lb_event_loop_lag_seconds_bucket", le="0.0025")] == 1
    assert samples[key("triton_lb_tasks")] == 17
    assert samples[key("triton_lb_held_bytes")] == 4096
    assert samples[key("triton_lb_open_requests")] == 3
    assert samples[key("triton_lb_log_dropped_total", log="access")] == 9
    expiry = key("triton_lb_certificate_expiry_timestamp_seconds", file="/tls.crt")
    assert samples[expiry] == 1_900_000_000
    assert samples[key("triton_lb_certificate_reload_failures_total")] == 2


def test_a_port_is_in_exactly_one_state() -> None:
    samples = busy().samples()
    for protocol, state in (("http", "up"), ("grpc", "suspected")):
        states = {
            dict(labels)["state"]: value
            for (name, labels), value in samples.items()
            if name == "triton_lb_backend_state" and ("protocol", protocol) in labels
        }
        assert len(states) == len(BackendState)
        assert [name for name, value in states.items() if value] == [state]


def test_up_and_changes_come_from_the_control_plane() -> None:
    samples = busy().samples()
    http, grpc = ({"backend": "gpu-0", "protocol": p} for p in ("http", "grpc"))
    assert samples[key("triton_lb_backend_up", **http)] == 1
    assert samples[key("triton_lb_backend_up", **grpc)] == 0
    assert samples[key("triton_lb_backend_state_changes_total", **grpc)] == 3


def test_the_pool_is_counted() -> None:
    samples = busy().samples()
    assert samples[key("triton_lb_pool_backends")] == 1
    assert samples[key("triton_lb_pool_eligible_backends", protocol="grpc")] == 1


def test_a_backend_without_a_port_has_no_series_for_it() -> None:
    backend = Backend(BackendSpec(name="http-only", http=Address("h", 1)))
    ports = {
        dict(labels)["protocol"]
        for name, labels in Counters(backends=[backend]).samples()
        if name == "triton_lb_backend_attempts_total"
    }
    assert ports == {"http"}


def test_series_of_a_backend_end_with_it() -> None:
    counters = busy()
    replacement = make_backend("gpu-0")
    counters.backends = [replacement]
    counters.statuses = []
    samples = counters.samples()
    assert not [
        series for series, value in samples.items() if ("backend", "gpu-0") in series[1] and value
    ]
    counters.meter.finished(PlainRecord(backend=replacement))
    requests = {"backend": "gpu-0", "protocol": "http", "code": "200"}
    assert counters.samples()[key("triton_lb_requests_total", **requests)] == 1


def test_samples_can_be_read_twice() -> None:
    family = next(iter(busy().collector().collect()))
    assert list(family.samples) == list(family.samples) != []


def test_the_page_follows_openmetrics_too() -> None:
    page = generate_openmetrics(make_registry(busy().collector())).decode()
    names = {family.name for family in text_string_to_metric_families(page)}
    assert {"triton_lb_requests", "triton_lb_backend_attempt_duration_seconds"} <= names


@pytest.mark.parametrize("counters", [busy(), Counters()], ids=["busy", "fresh"])
def test_promtool_finds_nothing_to_criticise(counters: Counters) -> None:
    page = generate_latest(make_registry(counters.collector()))
    assert criticism_of(page) == ""


def test_sources_of_backends_are_rendered_and_have_no_age_before_their_first_set() -> None:
    samples = Counters().samples()
    for name, value in (
        ("up", 0),
        ("backends", 2),
        ("updates_total", 5),
        ("failures_total", 3),
        ("age_seconds", 1.5),
    ):
        assert samples[key(f"triton_lb_source_{name}", source="dns:a")] == value
    assert samples[key("triton_lb_source_failures_total", source="file:/b")] == 1
    assert key("triton_lb_source_age_seconds", source="file:/b") not in samples
