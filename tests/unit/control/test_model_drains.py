"""Models that are drained on one backend get no new requests there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.model_drains import ModelDrains
from lb.control.record import Member
from lb.control.routes import Candidate, RouteBuilder, Routing, Tiers
from lb.domain.backend import Address, AdminState, AppProtocol
from lb.domain.model import NO_FACTS, ModelEntry, ModelState
from lb.domain.pool import ModelRoute, OnDemand, PoolSnapshot
from lb.health.models import ModelList, Version
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from tests.fakes.backends import make_backend, make_spec

A, B = make_backend("a"), make_backend("b")
PROTOCOLS = tuple(AppProtocol)


def routing(a: frozenset[Version] | None, b: frozenset[Version] | None) -> Routing:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    up = (Candidate(A, a), Candidate(B, b))
    tiers = Tiers(up=up, for_models=up)
    names = {name for ready in (a, b) for name, _ in ready or ()}
    return builder.build([tiers, tiers], names, {})


def eligible(routing: Routing, model: bytes, version: bytes = b"") -> list[str]:
    """Names of the backends that may get a model, which are the same in both protocols."""
    route = routing.routes[model]
    placements = route.versions.get(version) or route.placements or routing.placements
    found = {tuple(backend.name for backend in placements[each].eligible) for each in PROTOCOLS}
    (names,) = found
    for each in PROTOCOLS:
        assert (placements[each].picker is None) == (not names)
    return list(names)


BOTH = frozenset({(b"m", b"1"), (b"n", b"1")})


def test_a_drained_model_goes_elsewhere_and_others_stay() -> None:
    usual = routing(BOTH, BOTH)
    drained = ModelDrains().put(usual, {b"m": frozenset({A})}, {})
    assert eligible(drained, b"m") == eligible(drained, b"m", b"1") == ["b"]
    assert not drained.routes[b"m"].is_plain
    assert drained.routes[b"m"].ready_versions == {b"1"}
    assert drained.routes[b"n"] is usual.routes[b"n"]
    assert drained.placements is usual.placements


def test_a_model_that_is_drained_wherever_it_is_ready_has_no_backend() -> None:
    drained = ModelDrains().put(routing(BOTH, frozenset()), {b"m": frozenset({A})}, {})
    assert eligible(drained, b"m") == []
    assert drained.routes[b"m"].ready_versions == frozenset()


def test_only_the_drained_versions_holder_is_left_out() -> None:
    newer = frozenset({(b"m", b"1"), (b"m", b"2")})
    drained = ModelDrains().put(routing(newer, BOTH), {b"m": frozenset({A})}, {})
    assert eligible(drained, b"m", b"1") == ["b"]
    assert eligible(drained, b"m", b"2") == []
    assert drained.routes[b"m"].ready_versions == {b"1"}


def test_a_backend_that_lists_nothing_gets_no_drained_model_either() -> None:
    drained = ModelDrains().put(routing(None, None), {b"m": frozenset({B})}, {})
    assert eligible(drained, b"m") == ["a"]


def test_the_same_drains_make_the_same_routes() -> None:
    drains, usual = ModelDrains(), routing(BOTH, BOTH)
    first = drains.put(usual, {b"m": frozenset({A})}, {})
    assert drains.put(usual, {b"m": frozenset({A})}, {}).routes is first.routes
    assert drains.put(usual, {b"n": frozenset({A})}, {}).routes is not first.routes
    assert drains.put(usual, {}, {}) is usual


def make_directory() -> BackendDirectory:
    directory = BackendDirectory(make_policy("least_loaded", Random(1)))
    directory.replace([Member(make_spec(name)) for name in ("a", "b")], 100.0)
    for port in directory.ports():
        directory.probe_sent(port, 101.0)
        directory.probed(port, ProbeResult(Finding.READY), 101.0)
    for record in directory.records:
        entry = ModelEntry(b"m", b"1", ModelState.READY)
        record.models.listed(ModelList([entry]), 101.0)
        directory.models_changed(record, 101.0)
    return directory


def where(snapshot: PoolSnapshot) -> list[str]:
    placements = snapshot.routes[b"m"].placements or snapshot.placements
    return [backend.name for backend in placements[AppProtocol.GRPC].eligible]


def test_the_operator_drains_a_model_and_enables_it_again() -> None:
    directory = make_directory()
    directory.drain_model("a", b"m", is_drained=True, now=110.0)
    published = directory.ref.current
    assert where(published) == ["b"]
    assert directory.find("a").state.value == "up"
    assert directory.find("a").why == "drained models: m"
    assert next((c.subject, c.after, c.why) for c in directory.changes.newest_first()) == (
        "m", "draining", "operator",
    )  # fmt: skip
    directory.drain_model("a", b"m", is_drained=True, now=111.0)
    assert directory.ref.current is published
    directory.drain_model("b", b"m", is_drained=True, now=111.0)
    assert where(directory.ref.current) == []
    assert directory.ref.current.is_served(b"m", b"", AppProtocol.GRPC) is False
    for name in ("a", "b"):
        directory.drain_model(name, b"m", is_drained=False, now=112.0)
    assert where(directory.ref.current) == ["a", "b"]
    assert directory.find("a").why == ""


def test_a_drain_of_a_model_outlives_restarts_and_new_addresses() -> None:
    directory = make_directory()
    directory.drain_model("a", b"m", is_drained=True, now=110.0)
    record = directory.find("a")
    for port in record.ports:
        directory.probe_sent(port, 111.0)
        directory.probed(port, ProbeResult(Finding.REFUSED), 111.0)
    assert record.drained_models == {b"m"}
    moved = make_spec("a", http=Address("127.0.0.9", 1))
    directory.replace([Member(moved), Member(make_spec("b"))], 112.0)
    assert directory.find("a") is not record
    assert directory.find("a").drained_models == {b"m"}
    assert directory.find("a").admin is AdminState.ENABLED


def test_inferences_wait_for_models_that_are_loaded_nowhere_and_on_demand() -> None:
    waits = OnDemand(60.0)
    standby = OnDemand(60.0, is_standby=True)
    on_demand = {b"m": waits, b"n": waits, b"gone": waits, b"unlisted": standby}
    drains = ModelDrains()
    usual = routing(frozenset({(b"n", b"1")}), frozenset())
    listed = replace(usual, routes={**usual.routes, b"m": ModelRoute(facts=NO_FACTS)})
    has_n = (frozenset({b"n"}),) * 2
    marked = drains.put(listed, {}, on_demand, has_n)
    assert marked.routes.keys() == {b"m", b"n", b"gone"}
    for model in (b"m", b"gone"):
        assert marked.routes[model].on_demand is waits
        assert eligible(marked, model) == []
    assert marked.routes[b"n"] is listed.routes[b"n"]
    assert drains.put(listed, {}, dict(on_demand), has_n).routes is marked.routes
    # What is about to be unloaded is loaded again for the requests that come meanwhile.
    evicted = drains.put(listed, {b"n": frozenset({A})}, on_demand, (frozenset(),) * 2)
    assert evicted.routes[b"n"].on_demand is waits
    # One that may have any model may have it.
    unsaid = drains.put(listed, {}, on_demand, (None, None))
    assert unsaid.routes[b"m"].on_demand is None


def test_inferences_wait_in_the_protocol_in_which_no_backend_has_the_model() -> None:
    """A Triton has closed its gRPC port, and it is not known yet whether it has died."""
    usual = routing(frozenset({(b"n", b"1")}), frozenset())
    marked = ModelDrains().put(usual, {}, {b"n": OnDemand(60.0)}, (frozenset({b"n"}), frozenset()))
    placements = marked.routes[b"n"].placements
    assert placements is not None
    assert [each.eligible for each in placements] == [(A,), ()]
