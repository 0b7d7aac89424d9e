from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.control.backend_registry import ENDED_AT_ONCE
from lb.control.directory import REMOVAL_S, BackendDirectory, StillRemovingError
from lb.control.record import Member, PortRecord
from lb.domain.backend import (
    Address,
    AdminState,
    AppProtocol,
    Backend,
    BackendKind,
    BackendState,
)
from lb.domain.fault import Fault
from lb.domain.model import ModelEntry, ModelFacts, ModelState
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolSnapshot
from lb.health.models import ModelList
from lb.health.outliers import OutlierRules
from lb.health.port import Finding
from lb.health.ramp import RampRules, Ramps
from lb.probes.probe import ProbeResult
from tests.fakes.backends import make_spec

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
READY, REFUSED, TIMEOUT = Finding.READY, Finding.REFUSED, Finding.TIMEOUT


def make_directory(*names: str, ready: bool = True) -> BackendDirectory:
    """A directory of backends whose ports were all found ready at time 101."""
    directory = BackendDirectory(make_policy("least_loaded", Random(1)))
    directory.replace([Member(make_spec(name)) for name in names], 100.0)
    if ready:
        for port in directory.ports():
            found(directory, port, READY, 101.0)
    return directory


def found(directory: BackendDirectory, port: PortRecord, finding: Finding, now: float) -> None:
    directory.probe_sent(port, now)
    directory.probed(port, ProbeResult(finding, f"it was {finding.value}"), now)


def port_of(directory: BackendDirectory, name: str, protocol: AppProtocol) -> PortRecord:
    port = directory.find(name).port(protocol)
    assert port is not None
    return port


def backend_of(directory: BackendDirectory, name: str) -> Backend:
    return directory.find(name).backend


def eligible(directory: BackendDirectory, protocol: AppProtocol) -> list[str]:
    placement = directory.ref.current.placement(protocol)
    assert (placement.picker is None) == (not placement.eligible)
    return [backend.name for backend in placement.eligible]


class Publications(list[PoolSnapshot]):
    """Every snapshot that is published from now on."""

    def __init__(self, directory: BackendDirectory) -> None:
        super().__init__()
        directory.ref.subscribe(self.append)


# Eligibility


def test_nobody_is_eligible_before_the_first_answer() -> None:
    directory = make_directory("a", "b", ready=False)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == []
    assert len(directory.ref.current.backends) == 2


def test_ports_are_judged_one_by_one() -> None:
    directory = make_directory("a", "b")
    found(directory, port_of(directory, "a", GRPC), REFUSED, 102.0)
    assert eligible(directory, HTTP) == ["a", "b"]
    assert eligible(directory, GRPC) == ["b"]
    assert directory.find("a").state is BackendState.DOWN


def test_a_backend_without_a_port_is_never_eligible_for_it() -> None:
    directory = BackendDirectory(make_policy("round_robin", Random(1)))
    directory.replace([Member(make_spec("a", grpc=None)), Member(make_spec("b"))], 100.0)
    for port in directory.ports():
        found(directory, port, READY, 101.0)
    assert eligible(directory, HTTP) == ["a", "b"]
    assert eligible(directory, GRPC) == ["b"]


def test_the_picker_picks_among_the_eligible() -> None:
    directory = make_directory("a", "b")
    found(directory, port_of(directory, "a", HTTP), REFUSED, 102.0)
    picker = directory.ref.current.placement(HTTP).picker
    assert picker is not None
    assert {picker.pick() for _ in range(5)} == {backend_of(directory, "b")}


def test_suspected_backends_are_used_only_when_nothing_better_is_left() -> None:
    directory = make_directory("a", "b")
    a, b = (port_of(directory, name, HTTP) for name in "ab")
    directory.probe_sent(a, 110.0)
    directory.check(111.0)
    assert eligible(directory, HTTP) == ["b"]
    directory.probe_sent(b, 111.0)
    for tenth in range(1, 11):
        directory.check(111.0 + tenth / 10)
    assert (a.health.state, b.health.state) == (BackendState.SUSPECTED, BackendState.SUSPECTED)
    assert eligible(directory, HTTP) == ["a", "b"]
    directory.probed(a, ProbeResult(READY), 112.5)
    assert eligible(directory, HTTP) == ["a"]


def test_a_port_hangs_from_its_silence_until_it_is_up_again() -> None:
    directory = make_directory("a", "b")
    port = port_of(directory, "a", HTTP)
    directory.probe_sent(port, 110.0)
    directory.check(111.0)
    assert (port.port.is_hung, port.port.is_given_up) == (True, False)
    published: list[bool] = []
    directory.ref.subscribe(lambda _: published.append(port.port.is_given_up))
    for at in (112.0, 113.0, 114.0):
        found(directory, port, TIMEOUT, at)
    assert port.health.state is BackendState.DOWN
    assert port.port.is_hung
    assert published == [True], "it got no requests before, and what it owes is given up now"
    for at in (115.0, 116.0):
        found(directory, port, READY, at)
    assert (port.port.is_hung, port.port.is_given_up) == (False, False)
    assert published == [True, False]
    found(directory, port, REFUSED, 117.0)
    assert (port.port.is_hung, port.port.is_given_up) == (False, False), "who refuses is gone"


NOT_WELL = {
    "ready": (READY, False),
    "partial": (Finding.MODELS_NOT_READY, True),
    "unready": (Finding.MODELS_NOT_READY, False),
}


@pytest.mark.parametrize("is_looked_at", [True, False], ids=["looked at", "not looked at"])
@pytest.mark.parametrize(("finding", "has_models"), NOT_WELL.values(), ids=NOT_WELL)
def test_what_a_silent_port_owes_is_given_up_whatever_it_said_before(
    finding: Finding, has_models: bool, is_looked_at: bool
) -> None:
    """A balancer without processor time looks for stalls seldom, and sees time-outs first."""
    directory = make_directory("a", "b", ready=False)
    port = port_of(directory, "a", HTTP)
    found(directory, port, finding, 101.0)
    if has_models:
        lists(directory, "a", "m")
    told: list[tuple[bool, bool]] = []
    directory.ref.subscribe(lambda _: told.append((port.port.is_hung, port.port.is_given_up)))
    directory.probe_sent(port, 110.0)
    if is_looked_at:
        directory.check(111.0)
        assert told == [(True, False)]
    for _ in range(3):
        directory.probed(port, ProbeResult(TIMEOUT), 112.0)
    assert told[-1] == (True, True)
    told.clear()
    found(directory, port, finding, 120.0)
    directory.check(121.0)
    assert (port.port.is_hung, port.port.is_given_up) == (False, False)


def test_a_port_that_never_answered_does_not_hang() -> None:
    directory = make_directory("a", ready=False)
    port = port_of(directory, "a", HTTP)
    directory.probe_sent(port, 110.0)
    directory.check(111.0)
    for _ in range(3):
        directory.probed(port, ProbeResult(TIMEOUT), 112.0)
    assert port.health.state is BackendState.DOWN
    assert (port.port.is_hung, port.port.is_given_up) == (False, False)


@pytest.mark.parametrize(
    "is_followed", [True, False], ids=["another one answers", "nobody answers"]
)
def test_what_a_process_had_that_refuses_connections_is_given_up_in_two_steps(
    is_followed: bool,
) -> None:
    directory = make_directory("a", "b")
    port = port_of(directory, "a", HTTP)
    told: list[tuple[float, float]] = []
    directory.ref.subscribe(lambda _: told.append((port.port.left_before, port.port.lost_before)))
    found(directory, port, REFUSED, 110.0)
    assert told == [(0.0, 0.0)], "a process that exits finishes what it has"
    told.clear()
    if is_followed:
        for at in (111.0, 112.0):
            found(directory, port, READY, at)
        told.clear()
        directory.check(112.1)
    else:
        port.port.last_byte_at = 112.0
        for tenth in range(1121, 1170):
            directory.check(tenth / 10)
        assert told == [], "a byte has come for what was under way"
        directory.check(117.1)
    assert told == [(110.0, 0.0)]
    until = 1451 if is_followed else 1471
    for tenth in range(1122, until):
        directory.check(tenth / 10)
    assert list(dict.fromkeys(told)) == [(110.0, 0.0), (110.0, 110.0)]


def test_a_live_byte_clears_a_suspicion_at_the_next_look() -> None:
    directory = make_directory("a", "b")
    port = port_of(directory, "a", HTTP)
    directory.probe_sent(port, 110.0)
    directory.check(111.2)
    assert eligible(directory, HTTP) == ["b"]
    port.port.last_byte_at = 111.25
    directory.check(111.3)
    assert eligible(directory, HTTP) == ["a", "b"]


def test_a_late_look_blames_nobody() -> None:
    directory = make_directory("a", "b")
    directory.check(110.0)
    directory.probe_sent(port_of(directory, "a", HTTP), 110.0)
    directory.check(115.0)
    assert eligible(directory, HTTP) == ["a", "b"]
    directory.check(115.1)
    assert eligible(directory, HTTP) == ["b"]


# Publication


def test_a_snapshot_is_published_only_when_eligibility_changes() -> None:
    directory = make_directory("a", "b")
    published = Publications(directory)
    port = port_of(directory, "a", HTTP)
    found(directory, port, READY, 102.0)
    found(directory, port, TIMEOUT, 103.0)
    found(directory, port, READY, 104.0)
    directory.check(104.1)
    assert published == []
    found(directory, port, REFUSED, 105.0)
    assert [snapshot.generation for snapshot in published] == [directory.ref.current.generation]


def test_what_many_probes_find_in_one_turn_is_published_once() -> None:
    directory = make_directory("a", "b", "c")
    put_off: list[Callable[[], None]] = []
    directory.put_off = put_off.append
    published = Publications(directory)
    for name in ("a", "b"):
        found(directory, port_of(directory, name, HTTP), REFUSED, 102.0)
    assert eligible(directory, HTTP) == ["a", "b", "c"]
    assert published == []
    for publish in put_off:
        publish()
    assert eligible(directory, HTTP) == ["c"]
    assert len(put_off) == len(published) == 1


def test_the_operators_word_is_published_at_once() -> None:
    directory = make_directory("a", "b")
    directory.put_off = lambda _publish: None
    directory.set_admin("a", AdminState.DRAINING, 102.0)
    assert eligible(directory, HTTP) == ["b"]


def test_the_other_protocol_keeps_its_picker() -> None:
    directory = make_directory("a", "b")
    before = directory.ref.current
    found(directory, port_of(directory, "a", GRPC), REFUSED, 105.0)
    after = directory.ref.current
    assert after.generation == before.generation + 1
    assert after.placement(HTTP) is before.placement(HTTP)
    assert after.placement(GRPC) is not before.placement(GRPC)


def test_a_triton_that_closes_http_gets_no_grpc_while_others_are_there() -> None:
    directory = make_directory("a", "b")
    http, grpc = (port_of(directory, "a", protocol) for protocol in (HTTP, GRPC))
    found(directory, http, REFUSED, 105.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["b"]
    assert grpc.health.state is BackendState.SUSPECTED
    found(directory, grpc, READY, 105.1)
    assert eligible(directory, GRPC) == ["b"]
    found(directory, http, READY, 106.0)
    found(directory, http, READY, 106.1)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a", "b"]


def test_a_closed_http_port_does_not_keep_grpc_out_for_good() -> None:
    directory = make_directory("a", "b")
    found(directory, port_of(directory, "a", HTTP), REFUSED, 105.0)
    for step in range(400):
        directory.check(105.0 + step / 10)
    assert eligible(directory, GRPC) == ["a", "b"]


def test_other_servers_are_not_taken_to_exit_by_port() -> None:
    directory = BackendDirectory(make_policy("round_robin", Random(1)))
    directory.replace([Member(make_spec("a", kind=BackendKind.GENERIC))], 100.0)
    for port in directory.ports():
        found(directory, port, READY, 101.0)
    found(directory, port_of(directory, "a", HTTP), REFUSED, 105.0)
    assert port_of(directory, "a", GRPC).health.state is BackendState.UP


# Membership


def test_a_backend_lives_on_while_its_name_and_addresses_do() -> None:
    directory = make_directory("a", "b")
    a = backend_of(directory, "a")
    a.in_flight = 3
    specs = [make_spec("c"), make_spec("a", weight=2.0, max_in_flight=7)]
    directory.replace([Member(spec) for spec in specs], 110.0)
    assert [record.backend.name for record in directory.records] == ["c", "a"]
    assert backend_of(directory, "a") is a
    assert (a.in_flight, a.inverse_weight, a.max_in_flight) == (3, 0.5, 7)
    assert eligible(directory, HTTP) == ["a"]
    assert directory.ref.current.backends == (backend_of(directory, "c"), a)


def test_changed_weights_reach_the_pickers() -> None:
    directory = BackendDirectory(make_policy("round_robin", Random(1)))
    directory.replace([Member(make_spec("a")), Member(make_spec("b"))], 100.0)
    for port in directory.ports():
        found(directory, port, READY, 101.0)
    directory.replace([Member(make_spec("a", weight=1e6)), Member(make_spec("b"))], 102.0)
    picker = directory.ref.current.placement(HTTP).picker
    assert picker is not None
    assert {picker.pick() for _ in range(50)} == {backend_of(directory, "a")}


def test_changed_addresses_make_a_new_backend_that_stays_drained() -> None:
    directory = make_directory("a")
    old = backend_of(directory, "a")
    directory.set_admin("a", AdminState.DRAINING, 102.0)
    moved = dataclasses.replace(make_spec("a"), http=Address(host="127.0.0.2", port=1))
    directory.replace([Member(moved)], 103.0)
    assert backend_of(directory, "a") is not old
    assert directory.find("a").state is BackendState.DRAINING
    assert port_of(directory, "a", HTTP).health.state is BackendState.STARTING


def test_news_of_a_backend_that_left_is_ignored() -> None:
    directory = make_directory("a", "b")
    port, backend = port_of(directory, "a", HTTP), backend_of(directory, "a")
    moved = dataclasses.replace(make_spec("a"), http=Address(host="127.0.0.2", port=1))
    for members in ([Member(moved), Member(make_spec("b"))], []):
        directory.replace(members, 103.0)
        published = Publications(directory)
        directory.probed(port, ProbeResult(REFUSED), 104.0)
        directory.report(backend, HTTP, Outcome.CONNECT_REFUSED, 104.0)
        assert published == []


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ("", "there are: none"),
        ("ab", "there are: a, b"),
        ("abcdefghij", "there are: a, b, c, d, e, f, g, h, 2 more"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_others(names: str, named: str) -> None:
    with pytest.raises(LookupError, match=f"^there is no backend 'x'; {named}$"):
        make_directory(*names).set_admin("x", AdminState.DRAINING, 1.0)


# The operator


@pytest.mark.parametrize("state", [AdminState.DRAINING, AdminState.DISABLED])
def test_a_backend_that_is_not_enabled_gets_nothing_new_until_it_is(state: AdminState) -> None:
    directory = make_directory("a", "b")
    directory.set_admin("a", state, 102.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["b"]
    directory.set_admin("a", AdminState.ENABLED, 103.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a", "b"]


def test_a_drained_backend_is_still_probed_and_comes_back_only_if_healthy() -> None:
    directory = make_directory("a", "b")
    directory.set_admin("a", AdminState.DRAINING, 102.0)
    found(directory, port_of(directory, "a", HTTP), REFUSED, 103.0)
    assert directory.find("a").state is BackendState.DRAINING
    directory.set_admin("a", AdminState.ENABLED, 104.0)
    assert eligible(directory, HTTP) == ["b"]
    assert directory.find("a").state is BackendState.DOWN


def test_emptiness_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    directory = make_directory("a", "b")
    backend_of(directory, "a").in_flight = 1
    directory.set_admin("a", AdminState.DRAINING, 102.0)
    caplog.set_level(logging.INFO)
    directory.check(102.1)
    assert directory.find("a").empty_since is None
    backend_of(directory, "a").in_flight = 0
    directory.check(102.2)
    directory.check(102.3)
    assert directory.find("a").empty_since == 102.2
    assert [record.message for record in caplog.records] == ["backend is empty"]


# Live traffic


def test_a_refused_connection_takes_the_port_out_and_wakes_its_probe() -> None:
    directory = make_directory("a", "b")
    port = port_of(directory, "a", GRPC)
    woken: list[bool] = []
    port.wake = lambda: woken.append(True)
    directory.report(port.backend, GRPC, Outcome.CONNECT_REFUSED, 102.0)
    assert eligible(directory, GRPC) == ["b"]
    assert eligible(directory, HTTP) == ["a", "b"]
    assert woken == [True]


@pytest.mark.parametrize("outcome", Outcome)
def test_other_failures_take_nothing_out_and_only_doubtful_ones_wake_the_probe(
    outcome: Outcome,
) -> None:
    if outcome is Outcome.CONNECT_REFUSED:
        return
    directory = make_directory("a", "b")
    port = port_of(directory, "a", HTTP)
    woken: list[bool] = []
    port.wake = lambda: woken.append(True)
    for _ in range(10):
        directory.report(port.backend, HTTP, outcome, 102.0)
    assert eligible(directory, HTTP) == ["a", "b"]
    doubtful = {
        Outcome.CONNECT_TIMEOUT, Outcome.CONNECT_FAILED, Outcome.LOST, Outcome.PROTOCOL_ERROR,
        Outcome.STALLED, Outcome.SILENT, Outcome.LATE,
    }  # fmt: skip
    assert bool(woken) == (outcome in doubtful)
    assert (port.health.next_probe_at(Random(1)) == 101.1) == (outcome in doubtful)


# The log


def test_each_change_of_state_is_logged_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    directory = make_directory("a", "b")
    directory.begin()
    port = port_of(directory, "a", HTTP)
    caplog.set_level(logging.INFO)
    for step, finding in enumerate((TIMEOUT, TIMEOUT, TIMEOUT, TIMEOUT, READY, READY, READY)):
        found(directory, port, finding, 102.0 + step)
    fields = [
        {name: getattr(record, name) for name in ("backend", "protocol", "from", "to", "why")}
        for record in caplog.records
    ]
    same = {"backend": "a", "protocol": "http"}
    assert fields == [
        {**same, "from": "up", "to": "down", "why": "it was timeout"},
        {**same, "from": "down", "to": "up", "why": "ready"},
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert port.changes == 3


def test_the_operators_word_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    directory = make_directory("a")
    caplog.set_level(logging.INFO)
    for _ in range(3):
        directory.set_admin("a", AdminState.DRAINING, 102.0)
    assert [record.message for record in caplog.records] == ["backend administered"]


# Models


def test_a_server_that_loads_a_model_serves_those_that_it_has_ready() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m", "n")
    published = Publications(directory)
    for port in directory.find("a").ports:
        for step in range(3):
            found(directory, port, Finding.MODELS_NOT_READY, 110.0 + step)
    assert directory.find("a").state is BackendState.PARTIAL
    snapshot = published[-1]
    assert eligible(directory, HTTP) == ["b"]
    assert snapshot.usable(HTTP) == {backend_of(directory, "a"), backend_of(directory, "b")}
    lists(directory, "a", "m")
    assert where(directory, "m") == ["a", "b"]
    assert where(directory, "n") == ["b"]


def test_a_server_without_ready_models_that_is_not_ready_is_unready() -> None:
    directory = make_directory("a", ready=False)
    for port in directory.find("a").ports:
        found(directory, port, Finding.MODELS_NOT_READY, 101.0)
    assert directory.find("a").state is BackendState.UNREADY
    lists(directory, "a", "m")
    states = [directory.find("a").state]
    assert eligible(directory, HTTP) == ["a"]
    assert directory.ref.current.is_served(b"m", b"", HTTP)
    lists(directory, "a")
    states.append(directory.find("a").state)
    assert states == [BackendState.PARTIAL, BackendState.UNREADY]


def test_an_unready_server_gets_requests_when_nobody_else_is_left() -> None:
    directory = make_directory("a", "b", ready=False)
    published = Publications(directory)
    for port in directory.find("a").ports:
        found(directory, port, Finding.MODELS_NOT_READY, 101.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a"]
    assert [published[-1].ready(protocol) for protocol in (HTTP, GRPC)] == [(), ()]
    for port in directory.find("b").ports:
        found(directory, port, READY, 102.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["b"]
    assert published[-1].ready(GRPC) == (backend_of(directory, "b"),)


def test_an_unready_server_that_exits_gets_nothing_and_its_models_are_forgotten() -> None:
    directory = make_directory("a", ready=False)
    lists(directory, "a")
    for port in directory.find("a").ports:
        found(directory, port, Finding.MODELS_NOT_READY, 101.0)
    assert directory.find("a").models.lists is True
    for port in directory.find("a").ports:
        found(directory, port, Finding.REFUSED, 102.0)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == []
    assert directory.find("a").state is BackendState.DOWN
    assert directory.find("a").models.lists is None


def test_a_partial_server_that_exits_is_down_at_once() -> None:
    directory = make_directory("a", ready=False)
    for port in directory.find("a").ports:
        found(directory, port, Finding.MODELS_NOT_READY, 101.0)
        lists(directory, "a", "m")
        states = [port.health.state]
        found(directory, port, Finding.NOT_READY, 102.0)
        states.append(port.health.state)
        assert states == [BackendState.PARTIAL, BackendState.DOWN]


def test_what_a_backend_had_is_forgotten_when_its_last_port_closes() -> None:
    directory = make_directory("a", "b")
    lists(directory, "a", "m")
    lists(directory, "b", "m")
    found(directory, port_of(directory, "a", HTTP), TIMEOUT, 110.0)
    found(directory, port_of(directory, "a", GRPC), TIMEOUT, 110.0)
    assert directory.find("a").models.lists
    found(directory, port_of(directory, "a", HTTP), REFUSED, 111.0)
    found(directory, port_of(directory, "a", GRPC), REFUSED, 111.0)
    assert directory.find("a").models.lists is None
    assert directory.find("a").models.names == frozenset()
    found(directory, port_of(directory, "a", GRPC), READY, 112.0)
    found(directory, port_of(directory, "a", GRPC), READY, 113.0)
    assert where(directory, "m", GRPC) == ["b"]
    assert eligible(directory, GRPC) == ["a", "b"]


@pytest.mark.parametrize("finder", ["probe", "request"])
def test_a_list_counts_no_more_once_a_port_of_its_backend_refuses_connections(finder: str) -> None:
    """The process has ended, and what answers next at the other port may be another one."""
    directory = make_directory("a", "b")
    record, http, grpc = directory.find("a"), *directory.find("a").ports

    def refuse(now: float) -> None:
        if finder == "probe":
            found(directory, grpc, REFUSED, now)
        else:
            directory.report(record.backend, GRPC, Outcome.CONNECT_REFUSED, now)

    lists(directory, "a", "m", "n")
    lists(directory, "b", "m")
    woken: list[str] = []
    http.wake = lambda: woken.append("probe")
    record.wake = lambda: woken.append("list")
    refuse(110.0)
    assert {"probe", "list"} <= set(woken), "both are due now"
    assert http.health.next_probe_at(Random(1)) < 102.0
    assert where(directory, "m") == ["b"]
    assert b"n" in directory.ref.current.routes
    assert not directory.ref.current.routes[b"n"].is_ready
    lists(directory, "a", "m")
    assert where(directory, "m") == ["a", "b"]
    refuse(111.0)
    assert where(directory, "m") == ["a", "b"], "nothing new"


def test_a_lost_connection_is_a_reason_to_ask_for_the_list() -> None:
    directory = make_directory("a", "b")
    woken: list[str] = []
    directory.find("a").wake = lambda: woken.append("a")
    for moment in range(10):
        directory.report(backend_of(directory, "a"), GRPC, Outcome.LOST, 110.0 + moment / 100)
    assert woken == ["a"]


def test_a_backend_that_has_no_version_of_a_model_gets_no_requests_for_it() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m", "n")
    woken: list[str] = []
    directory.find("a").wake = lambda: woken.append("a")
    directory.misplaced(backend_of(directory, "a"), b"x", b"", 119.5)
    directory.misplaced(backend_of(directory, "a"), b"m", None, 120.0)
    assert (where(directory, "m"), where(directory, "n")) == (["b"], ["a", "b"])
    directory.misplaced(backend_of(directory, "a"), b"m", None, 120.1)
    directory.misplaced(backend_of(directory, "a"), b"x", None, 120.1)
    assert woken == ["a", "a"], "at once, and for each contradiction once"
    lists(directory, "a", "m", "n", now=121.0)
    assert where(directory, "m") == ["a", "b"]


@pytest.mark.parametrize("state", [AdminState.DISABLED, AdminState.DRAINING, None])
def test_a_model_whose_only_backend_gets_no_requests_is_not_asked_of_others(
    state: AdminState | None,
) -> None:
    directory = make_directory("a", "b", "c")
    for name, models in {"a": "mn", "b": "n", "c": "n"}.items():
        lists(directory, name, *models)
    if state is not None:
        directory.set_admin("a", state, 110.0)
    else:
        for port in directory.find("a").ports:
            found(directory, port, Finding.REFUSED, 110.0)
    assert (where(directory, "m"), where(directory, "n")) == ([], ["b", "c"])
    assert directory.ref.current.is_served(b"m", b"", HTTP) is False
    if state is not None:
        directory.set_admin("a", AdminState.ENABLED, 120.0)
        assert where(directory, "m") == ["a"]
    else:
        for _ in range(3):
            for port in directory.find("a").ports:
                found(directory, port, READY, 120.0)
        lists(directory, "a", "n", now=120.0)
        assert b"m" not in directory.ref.current.routes, "it has been unloaded"


def test_a_model_whose_only_backend_was_removed_is_unknown() -> None:
    directory = make_directory("a", "b")
    lists(directory, "a", "m")
    lists(directory, "b", "n")
    directory.replace([Member(make_spec("b"))], 110.0)
    assert b"m" not in directory.ref.current.routes


def test_an_answer_that_contradicts_the_list_routes_around_it_and_asks_again() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m")
    woken: list[str] = []
    directory.find("a").wake = lambda: woken.append("a")
    directory.misplaced(backend_of(directory, "a"), b"m", b"7", 119.0)
    assert where(directory, "m") == ["a", "b"]
    directory.misplaced(backend_of(directory, "a"), b"m", b"1", 120.0)
    assert where(directory, "m") == ["b"]
    assert woken == ["a"]
    directory.misplaced(backend_of(directory, "a"), b"m", b"1", 121.0)
    assert woken == ["a"]


def test_an_answer_about_an_unknown_version_only_asks_for_a_list() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m")
    woken: list[str] = []
    directory.find("a").wake = lambda: woken.append("a")
    directory.misplaced(backend_of(directory, "a"), b"m", b"", 120.0)
    assert where(directory, "m") == ["a", "b"]
    assert woken == ["a"]


def test_a_model_that_nobody_has_is_looked_for_everywhere_only_now_and_then() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m")
    woken: list[str] = []
    directory.find("b").wake = lambda: woken.append("b")
    for moment in range(100):
        backend = backend_of(directory, "a")
        directory.misplaced(backend, b"n%d" % moment, b"", 120.0 + moment / 100)
    assert woken == ["b"]
    directory.misplaced(backend_of(directory, "a"), b"n", b"", 121.0)
    assert woken == ["b", "b"]


@pytest.mark.parametrize("model", [b"nobody", b"m"])
def test_clients_that_ask_for_what_is_not_there_do_not_keep_a_backend_busy(model: bytes) -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m")
    woken: list[str] = []
    directory.find("a").wake = lambda: woken.append("a")
    for moment in range(100):
        directory.misplaced(backend_of(directory, "a"), model, b"", 120.0 + moment / 100)
    assert woken == ["a"]
    directory.misplaced(backend_of(directory, "a"), model, b"", 121.0)
    assert woken == ["a", "a"]


def test_backends_that_do_not_list_models_are_served_by_kind() -> None:
    directory = BackendDirectory(make_policy("least_loaded", Random(1)))
    directory.replace(
        [Member(make_spec("a")), Member(make_spec("g", kind=BackendKind.GENERIC))], 100.0
    )
    for port in directory.ports():
        found(directory, port, READY, 101.0)
    lists(directory, "a", "m")
    assert where(directory, "m") == ["a", "g"]
    assert directory.ref.current.is_served(b"x", b"", HTTP) is None


def test_nothing_is_published_when_a_list_says_the_same() -> None:
    directory = make_directory("a", "b")
    for name in "ab":
        lists(directory, name, "m")
    published = Publications(directory)
    for name in "ab":
        lists(directory, name, "m")
    directory.facts_changed({})
    assert published == []
    directory.facts_changed({b"m": ModelFacts(is_stateful=False)})
    assert published[-1].routes[b"m"].is_plain


def test_news_of_a_backend_that_left_are_ignored() -> None:
    directory = make_directory("a", "b")
    record = directory.find("a")
    directory.replace([Member(make_spec("b"))], 110.0)
    published = Publications(directory)
    record.models.listed(ModelList([ModelEntry(b"m", b"1", ModelState.READY)]), 111.0)
    directory.models_changed(record, 111.0)
    directory.misplaced(record.backend, b"m", b"1", 112.0)
    assert published == []


def lists(directory: BackendDirectory, name: str, *models: str, now: float = 105.0) -> None:
    record = directory.find(name)
    record.models.listed(
        ModelList([ModelEntry(m.encode(), b"1", ModelState.READY) for m in models]), now
    )
    directory.models_changed(record, now)


def where(directory: BackendDirectory, model: str, protocol: AppProtocol = HTTP) -> list[str]:
    snapshot = directory.ref.current
    placements = snapshot.routes[model.encode()].placements or snapshot.placements
    return [backend.name for backend in placements[protocol].eligible]


def test_the_roster_names_who_answers_ready_or_not() -> None:
    directory = make_directory("a", "b", "c")
    found(directory, port_of(directory, "a", GRPC), REFUSED, 110.0)
    for step in range(3):
        found(directory, port_of(directory, "b", HTTP), Finding.MODELS_NOT_READY, 110.0 + step)
    directory.set_admin("c", AdminState.DISABLED, 112.0)
    roster = [(reach.backend.name, reach.open) for reach in directory.roster()]
    assert roster == [("a", (True, False)), ("b", (True, True))]


# Death, of which sequences are told


def test_a_backend_dies_when_its_last_port_stops_to_answer() -> None:
    directory = make_directory("a", "b")
    backend = backend_of(directory, "a")
    backend.open_sequences = 3
    found(directory, port_of(directory, "a", HTTP), Finding.REFUSED, 105.0)
    assert (backend.deaths, backend.open_sequences) == (0, 3)
    found(directory, port_of(directory, "a", GRPC), Finding.REFUSED, 106.0)
    found(directory, port_of(directory, "a", GRPC), Finding.REFUSED, 107.0)
    assert (backend.deaths, backend.open_sequences) == (1, 0)
    found(directory, port_of(directory, "a", GRPC), Finding.READY, 108.0)
    found(directory, port_of(directory, "a", GRPC), Finding.REFUSED, 109.0)
    assert backend.deaths == 2
    assert backend_of(directory, "b").deaths == 0


def test_a_server_that_answers_that_it_is_not_ready_lives() -> None:
    directory = make_directory("a")
    backend = backend_of(directory, "a")
    for protocol in (HTTP, GRPC):
        for _ in range(5):
            found(directory, port_of(directory, "a", protocol), Finding.NOT_READY, 105.0)
    assert eligible(directory, GRPC) == []
    assert backend.deaths == 0
    # It dies without another change of its ports' state.
    found(directory, port_of(directory, "a", HTTP), Finding.REFUSED, 106.0)
    found(directory, port_of(directory, "a", GRPC), Finding.REFUSED, 106.0)
    assert backend.deaths == 1


def test_a_refused_connection_of_live_traffic_is_a_death_when_it_was_the_last_port() -> None:
    directory = make_directory("a")
    backend = backend_of(directory, "a")
    directory.report(backend, HTTP, Outcome.CONNECT_REFUSED, 105.0)
    assert backend.deaths == 0
    directory.report(backend, GRPC, Outcome.CONNECT_REFUSED, 105.0)
    assert backend.deaths == 1


def test_who_drains_keeps_sequences_and_who_is_disabled_does_not() -> None:
    directory = make_directory("a", "b")
    a = backend_of(directory, "a")
    a.open_sequences = 1
    directory.set_admin("a", AdminState.DRAINING, 105.0)
    assert a.open_sequences == 1
    directory.check(105.0)
    assert directory.find("a").empty_since is None
    directory.set_admin("a", AdminState.DISABLED, 105.1)
    assert (a.deaths, a.open_sequences) == (1, 0)
    directory.check(105.2)
    assert directory.find("a").empty_since is not None


# Leaving


def without_a(directory: BackendDirectory, now: float) -> list[Backend]:
    """Remove a from among a and b; returns the list of those whose connections are cut."""
    cut: list[Backend] = []
    directory.cut = cut.append
    directory.replace([Member(make_spec("b"))], now)
    return cut


def test_a_removed_backend_without_requests_is_gone_at_once() -> None:
    directory = make_directory("a", "b")
    a = backend_of(directory, "a")
    assert without_a(directory, 105.0) == [a]
    assert [record.backend.name for record in directory.records] == ["b"]
    assert directory.ref.current.backends == (backend_of(directory, "b"),)
    assert a.deaths == 1


@pytest.mark.parametrize("count", ["in_flight", "open_sequences"])
def test_a_removed_backend_finishes_what_it_has_and_gets_nothing_new(count: str) -> None:
    directory = make_directory("a", "b")
    a = backend_of(directory, "a")
    setattr(a, count, 1)
    cut = without_a(directory, 105.0)
    directory.check(105.1)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["b"]
    assert directory.find("a").state is BackendState.REMOVING
    assert directory.ref.current.backends == (backend_of(directory, "b"), a)
    assert [reach.backend.name for reach in directory.roster()] == ["b"]
    assert (cut, a.deaths) == ([], 0)
    setattr(a, count, 0)
    directory.check(105.2)
    assert (cut, a.deaths) == ([a], 1)
    assert directory.ref.current.backends == (backend_of(directory, "b"),)


def test_what_a_removed_backend_does_not_finish_in_time_is_cut() -> None:
    directory = make_directory("a", "b")
    directory.removal_s = 1.0
    a = backend_of(directory, "a")
    a.in_flight = a.open_sequences = 1
    cut = without_a(directory, 105.0)
    for now in (105.4, 105.9):
        directory.check(now)
    assert cut == []
    directory.check(106.0)
    assert cut == [a]
    assert (a.deaths, a.open_sequences) == (1, 0)


def test_those_that_leave_serve_until_the_first_newcomer_is_probed() -> None:
    directory = make_directory("a", "b")
    directory.set_admin("b", AdminState.DRAINING, 104.0)
    cut: list[Backend] = []
    directory.cut = cut.append
    directory.replace([Member(make_spec("c")), Member(make_spec("d"))], 105.0)
    directory.check(105.1)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a"]
    found(directory, port_of(directory, "c", HTTP), READY, 105.2)
    assert (eligible(directory, HTTP), eligible(directory, GRPC)) == (["c"], ["a"])
    directory.check(105.3)
    assert [backend.name for backend in cut] == ["b"]
    found(directory, port_of(directory, "c", GRPC), READY, 105.4)
    directory.check(105.5)
    assert [backend.name for backend in cut] == ["b", "a"]
    assert eligible(directory, GRPC) == ["c"]


def test_those_that_leave_stand_in_until_one_newcomer_has_been_up() -> None:
    directory = make_directory("a")
    cut: list[Backend] = []
    directory.cut = cut.append
    directory.replace([Member(make_spec("c"))], 105.0)
    for protocol in (HTTP, GRPC):
        found(directory, port_of(directory, "c", protocol), REFUSED, 105.2)
    for now in (110.0, 110.1, 105.0 + 2 * REMOVAL_S, 105.1 + 2 * REMOVAL_S):
        directory.check(now)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a"]
    now = 106.0 + 2 * REMOVAL_S
    backend_of(directory, "a").in_flight = 1
    for protocol in (HTTP, GRPC):
        for _ in range(3):
            found(directory, port_of(directory, "c", protocol), READY, now)
        assert eligible(directory, protocol) == ["c"]
    directory.check(now + 0.1)
    assert cut == [], "what runs there has its time from now on"
    for protocol in (HTTP, GRPC):
        found(directory, port_of(directory, "c", protocol), REFUSED, now + 0.2)
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == []


def test_a_backend_that_stands_in_for_its_successor_serves_what_only_its_name_may_serve() -> None:
    directory = make_directory("a")
    lists(directory, "a", "m", "n")
    directory.narrow({(b"m", b""): frozenset({"a"}), (b"n", b"1"): frozenset({"b"})}, 105.0)
    address = Address(host="127.0.0.1", port=2)
    directory.replace([Member(make_spec("a", http=address, grpc=address))], 105.0)
    assert where(directory, "m") == eligible(directory, HTTP) == ["a~1"]
    assert directory.ref.current.is_served(b"m", b"", HTTP)
    assert not directory.ref.current.is_served(b"n", b"1", HTTP)


def test_nobody_stands_in_for_none_or_for_those_that_were_up() -> None:
    directory = make_directory("a", "b")
    directory.replace([Member(make_spec("b"))], 105.0)
    found(directory, port_of(directory, "b", HTTP), REFUSED, 105.2)
    assert eligible(directory, HTTP) == []
    directory = make_directory("a")
    directory.replace([Member(make_spec("c"))], 105.0)
    assert eligible(directory, HTTP) == ["a"]
    directory.replace([], 106.0)
    assert eligible(directory, HTTP) == []


def test_a_newcomer_that_is_up_before_it_is_enabled_relieves_them_then() -> None:
    directory = make_directory("a")
    directory.replace([Member(make_spec("c"))], 105.0)
    directory.set_admin("c", AdminState.DRAINING, 105.1)
    found(directory, port_of(directory, "c", HTTP), READY, 105.2)
    assert eligible(directory, HTTP) == ["a"]
    directory.set_admin("c", AdminState.ENABLED, 105.3)
    assert eligible(directory, HTTP) == ["c"]


def test_hundreds_that_begin_at_once_have_their_shares_set_once() -> None:
    directory = make_directory(*(f"b{number}" for number in range(200)), ready=False)
    directory.ramps.rules = RampRules()
    looks: list[int] = []
    put_off: list[Callable[[], None]] = []
    directory.put_off = put_off.append

    class Counted(Ramps):
        def advance(self, serving: Iterable[Backend], now: float) -> bool:
            looks.append(len(list(serving)))
            return super().advance(serving, now)

    directory.ramps = Counted(directory.ramps.rules)
    for port in tuple(directory.ports()):
        found(directory, port, READY, 102.0)
    assert looks == []
    for publish in put_off:
        publish()
    assert looks == [200]
    assert len(eligible(directory, HTTP)) == 200


def test_nothing_can_be_said_of_a_backend_that_leaves() -> None:
    directory = make_directory("a", "b")
    backend_of(directory, "a").in_flight = 1
    without_a(directory, 105.0)
    with pytest.raises(StillRemovingError, match="backend a has been removed; add it again"):
        directory.set_admin("a", AdminState.ENABLED, 106.0)


def test_what_a_draining_backend_does_not_finish_within_its_limit_is_cut() -> None:
    directory = make_directory("a", "b")
    cut: list[Backend] = []
    directory.cut = cut.append
    a = backend_of(directory, "a")
    a.in_flight = 1
    directory.set_admin("a", AdminState.DRAINING, 105.0, 0.3)
    directory.check(105.2)
    assert (directory.find("a").state, cut) == (BackendState.DRAINING, [])
    directory.check(105.4)
    assert (directory.find("a").state, cut) == (BackendState.DISABLED, [a])
    directory.check(105.5)
    assert cut == [a]


def test_a_backend_that_drains_without_a_limit_has_all_the_time() -> None:
    directory = make_directory("a", "b")
    a = backend_of(directory, "a")
    a.in_flight = 1
    directory.set_admin("a", AdminState.DRAINING, 105.0, 0.3)
    directory.set_admin("a", AdminState.DRAINING, 105.1)
    for step in range(10):
        directory.check(105.2 + step / 4)
    assert directory.find("a").state is BackendState.DRAINING


# How requests fare


def judging(*names: str) -> BackendDirectory:
    """A directory whose backends all have the models m and n, and have answered well."""
    directory = make_directory(*names)
    directory.passive.configure(OutlierRules(), 101.0)
    entries = [ModelEntry(name, b"1", ModelState.READY) for name in (b"m", b"n")]
    for record in directory.records:
        record.models.listed(ModelList(entries), 101.0)
        directory.models_changed(record, 101.0)
    directory.check(101.1)
    for model in (b"m", b"n"):
        for record in directory.records:
            for _ in range(40):
                directory.passive.answered(record.backend, model, 0.02, 101.2)
    return directory


def fail(directory: BackendDirectory, name: str, model: bytes, now: float = 101.3) -> None:
    for _ in range(10):
        directory.passive.failed(backend_of(directory, name), model, Fault.ERROR, 0.001, now)


def serving(directory: BackendDirectory, model: bytes) -> list[str]:
    route = directory.ref.current.routes[model]
    placements = route.placements or directory.ref.current.placements
    return [backend.name for backend in placements[GRPC].eligible]


def test_a_model_that_fails_on_one_backend_goes_to_the_others() -> None:
    directory = judging("a", "b", "c")
    fail(directory, "b", b"m")
    assert serving(directory, b"m") == ["a", "c"]
    assert serving(directory, b"n") == ["a", "b", "c"]
    assert eligible(directory, HTTP) == ["a", "b", "c"]
    assert directory.ref.current.is_served(b"m", b"", GRPC)


def test_a_backend_on_which_most_models_fail_gets_nothing() -> None:
    directory = judging("a", "b", "c")
    fail(directory, "b", b"m")
    fail(directory, "b", b"n")
    assert eligible(directory, HTTP) == eligible(directory, GRPC) == ["a", "c"]
    assert serving(directory, b"m") == ["a", "c"]


def test_probation_gives_one_request_and_its_answer_decides() -> None:
    directory = judging("a", "b", "c")
    fail(directory, "b", b"m")
    for tenth in range(60):
        directory.check(101.4 + tenth / 10)
    route = directory.ref.current.routes[b"m"]
    assert route.placements is not None
    assert not route.is_plain
    picker = route.placements[GRPC].picker
    assert picker is not None
    picks = [picker.pick() for _ in range(3)]
    assert [each.name for each in picks if each].count("b") == 1
    directory.passive.answered(backend_of(directory, "b"), b"m", 0.02, 107.5)
    assert serving(directory, b"m") == ["a", "b", "c"]


def test_the_last_one_is_used_whatever_it_answers() -> None:
    directory = judging("a", "b")
    fail(directory, "b", b"m")
    fail(directory, "b", b"n")
    assert eligible(directory, GRPC) == ["a"]
    for port in directory.find("a").ports:
        found(directory, port, REFUSED, 101.5)
    assert eligible(directory, GRPC) == ["b"]
    assert serving(directory, b"m") == ["b"]


def test_a_process_that_was_replaced_is_not_judged_by_the_one_before() -> None:
    directory = judging("a", "b", "c")
    fail(directory, "b", b"m")
    fail(directory, "b", b"n")
    ports = directory.find("b").ports
    for port in ports:
        found(directory, port, REFUSED, 101.5)
    for at in (101.6, 101.7):
        for port in ports:
            found(directory, port, READY, at)
    assert eligible(directory, GRPC) == ["a", "b", "c"]


# Slow start


def ramping(*names: str) -> BackendDirectory:
    directory = make_directory(*names, ready=False)
    directory.ramps.rules = RampRules()
    for port in directory.ports():
        found(directory, port, READY, 101.0)
    return directory


def come_back(directory: BackendDirectory, name: str) -> None:
    """It is down at 110, and is up again at 120."""
    ports = directory.find(name).ports
    for port in ports:
        found(directory, port, REFUSED, 110.0)
    for at in (119.9, 120.0):
        for port in ports:
            found(directory, port, READY, at)


def test_all_that_begin_together_have_all_of_their_share() -> None:
    directory = ramping("a", "b")
    assert [record.backend.share for record in directory.records] == [1.0, 1.0]


def test_one_that_comes_back_gets_its_share_little_by_little() -> None:
    directory = ramping("a", "b")
    for tenth in range(100):
        directory.check(101.0 + tenth / 10)
    come_back(directory, "b")
    a, b = backend_of(directory, "a"), backend_of(directory, "b")
    assert (a.share, b.share) == (1.0, 0.1)
    directory.check(124.9)
    directory.check(125.0)
    assert b.share == pytest.approx(0.5)
    generation = directory.ref.current.generation
    directory.check(125.1)
    assert directory.ref.current.generation == generation
    directory.check(130.4)
    directory.check(130.5)
    assert b.share == 1.0


def test_who_was_out_for_its_errors_begins_slowly_as_well() -> None:
    directory = judging("a", "b", "c")
    directory.ramps.rules = RampRules()
    fail(directory, "b", b"m")
    fail(directory, "b", b"n")
    for tenth in range(60):
        directory.check(101.4 + tenth / 10)
    b = backend_of(directory, "b")
    assert b.share == 1.0
    for model in (b"m", b"n"):
        directory.passive.answered(b, model, 0.02, 107.5)
    assert b.share == pytest.approx(0.1)


# Many at once


def test_of_a_thousand_backends_that_leave_at_once_each_iteration_ends_a_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"b{number}" for number in range(1000)]
    directory = make_directory(*names, ready=False)
    put_off: list[Callable[[], None]] = []
    directory.put_off = put_off.append
    cut: list[str] = []
    directory.cut = lambda backend: cut.append(backend.name)
    busy = [backend_of(directory, name) for name in names[500:]]
    for backend in busy:
        backend.in_flight = 1
    caplog.set_level(logging.INFO)
    caplog.clear()
    directory.replace([], 102.0)
    assert set(directory.ref.current.backends) == set(busy), "those that finish nothing are gone"
    steps = [(len(cut), len(caplog.messages))]
    while put_off:
        put_off.pop()()
        steps.append((len(cut), len(caplog.messages)))
    before = ((0, 0), *steps)
    for (cut_before, lines_before), (cut_now, lines_now) in zip(before, steps, strict=False):
        assert cut_now - cut_before <= ENDED_AT_ONCE
        assert lines_now - lines_before <= 2 * ENDED_AT_ONCE
    assert sorted(cut) == sorted(names[:500])
    assert (
        caplog.messages.count("backend removed") == caplog.messages.count("backend leaves") == 500
    )
    for backend in busy:
        backend.in_flight = 0
    directory.check(103.0)
    while put_off:
        put_off.pop()()
    assert sorted(cut) == sorted(names)
    assert directory.ref.current.backends == ()
