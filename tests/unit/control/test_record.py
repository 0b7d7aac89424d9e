from __future__ import annotations

import dataclasses

import pytest

from lb.control.record import BackendRecord, Member
from lb.domain.backend import Address, AdminState, AppProtocol, BackendState
from lb.health.port import Finding
from lb.health.thresholds import Thresholds
from tests.fakes.backends import make_spec

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


def record_with(http: Finding | None, grpc: Finding | None) -> BackendRecord:
    """A record whose ports were probed once, where a finding is given."""
    record = BackendRecord(Member(make_spec()), now=10.0)
    for port, finding in zip(record.ports, (http, grpc), strict=True):
        if finding is not None:
            port.health.probe_sent(11.0)
            port.health.probed(finding, 0.0)
    return record


@pytest.mark.parametrize(
    ("http", "grpc", "state"),
    [
        (None, None, BackendState.STARTING),
        (Finding.READY, None, BackendState.STARTING),
        (Finding.READY, Finding.READY, BackendState.UP),
        (Finding.READY, Finding.REFUSED, BackendState.DOWN),
        (Finding.REFUSED, None, BackendState.DOWN),
    ],
)
def test_the_worst_port_is_the_state_of_the_backend(
    http: Finding | None, grpc: Finding | None, state: BackendState
) -> None:
    record = record_with(http, grpc)
    record.settle(12.0)
    assert record.state is state


def test_what_the_operator_says_comes_before_health() -> None:
    record = record_with(Finding.REFUSED, Finding.REFUSED)
    record.admin = AdminState.DRAINING
    record.settle(12.0)
    assert record.state is BackendState.DRAINING


def test_since_moves_only_when_the_state_does() -> None:
    record = record_with(Finding.READY, Finding.READY)
    record.settle(12.0)
    record.settle(13.0)
    assert record.since == 12.0


def test_a_backend_has_a_record_for_each_port_it_has() -> None:
    record = BackendRecord(Member(make_spec(grpc=None)), now=0.0)
    assert [port.protocol for port in record.ports] == [HTTP]
    assert record.port(HTTP) is record.ports[0]
    assert record.port(GRPC) is None
    assert repr(record.ports[0]) == "<PortRecord gpu-0 http starting>"
    assert repr(record) == "<BackendRecord gpu-0 starting>"


def test_changed_settings_reach_the_backend_and_its_ports() -> None:
    record = BackendRecord(Member(make_spec()), now=0.0)
    rules = Thresholds(fall=1)
    record.apply(Member(make_spec(weight=4.0), rules))
    assert record.backend.inverse_weight == 0.25
    assert all(port.health.rules is rules for port in record.ports)


def test_addresses_are_compared_port_by_port() -> None:
    record = BackendRecord(Member(make_spec()), now=0.0)
    assert record.is_at(make_spec(weight=2.0))
    assert not record.is_at(make_spec(grpc=None))
    moved = dataclasses.replace(make_spec(), http=Address(host="127.0.0.1", port=9))
    assert not record.is_at(moved)
