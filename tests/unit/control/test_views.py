from __future__ import annotations

import pytest

from lb.control.views import backend_view, port_statuses, quantile
from lb.domain.backend import LATENCY_BOUNDS_S, AdminState, AppProtocol, BackendState
from lb.telemetry.collector import PortStatus
from tests.fakes.pool import make_pool

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


def test_a_view_says_state_reason_and_load() -> None:
    directory = make_pool()
    backend = directory.find("a").backend
    backend.in_flight = 5
    http, grpc = backend.port(HTTP), backend.port(GRPC)
    http.in_flight, http.connections, grpc.in_flight = 3, 4, 2
    http.codes = {200: 7, 500: 1}
    grpc.codes = {0: 2}
    http.failures = {"upstream_lost": 3}
    a, b = (backend_view(record, 111.0) for record in directory.records)
    assert (a.name, a.state, a.why, a.since_s) == ("a", BackendState.UP, "", 10.0)
    assert (a.in_flight, a.served, a.weight, a.max_in_flight, a.empty) == (5, 10, 2.0, 8, False)
    assert [port.protocol for port in a.ports] == [HTTP, GRPC]
    port = a.ports[0]
    assert (port.address, port.in_flight, port.connections) == ("127.0.0.1:8000", 3, 4)
    assert (port.served, port.failed, port.changes) == (8, 3, 1)
    assert (b.state, b.why, b.empty) == (BackendState.DOWN, "grpc: closed", True)
    assert [port.state for port in b.ports] == [BackendState.UP, BackendState.DOWN]


def test_the_operator_comes_first_in_the_reason() -> None:
    directory = make_pool()
    directory.set_admin("b", AdminState.DRAINING, 105.0)
    view = backend_view(directory.find("b"), 106.0)
    assert (view.state, view.why, view.since_s) == (
        BackendState.DRAINING, "operator; grpc: closed", 1.0,
    )  # fmt: skip


def test_latency_covers_both_ports() -> None:
    directory = make_pool()
    backend = directory.find("a").backend
    backend.port(HTTP).latency.counts[0] = 50
    backend.port(GRPC).latency.counts[-1] = 50
    view = backend_view(directory.find("a"), 111.0)
    assert view.latency.p50_s == LATENCY_BOUNDS_S[0]
    assert view.latency.p99_s == LATENCY_BOUNDS_S[-1]
    assert view.ports[0].latency.p99_s == pytest.approx(0.99 * LATENCY_BOUNDS_S[0])
    assert backend_view(directory.find("b"), 111.0).latency.p50_s is None


def test_statuses_say_who_may_get_requests() -> None:
    directory = make_pool()
    directory.set_admin("a", AdminState.DISABLED, 105.0)
    assert list(port_statuses(directory)) == [
        PortStatus("a", HTTP, "disabled", is_up=False, changes=1),
        PortStatus("a", GRPC, "disabled", is_up=False, changes=1),
        PortStatus("b", HTTP, "up", is_up=True, changes=1),
        PortStatus("b", GRPC, "down", is_up=False, changes=1),
    ]


def test_a_quantile_is_linear_inside_its_bucket() -> None:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    assert quantile(counts, 0.5) is None
    counts[1] = 10
    low, high = LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[1]
    assert quantile(counts, 0.5) == pytest.approx((low + high) / 2)
    assert quantile(counts, 1.0) == pytest.approx(high)


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    counts = [0] * len(LATENCY_BOUNDS_S) + [3]
    assert quantile(counts, 0.5) == LATENCY_BOUNDS_S[-1]
