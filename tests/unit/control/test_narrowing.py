"""Models that only some backends serve."""

from __future__ import annotations

from dataclasses import replace

from lb.control.narrowing import Narrowing
from lb.control.routes import Routing
from lb.domain.backend import Backend
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, Placements
from tests.fakes.backends import make_backend
from tests.fakes.relay import named_policy

NAMES = ("gpu-0", "gpu-1", "gpu-2")


def placed(*backends: Backend) -> Placements:
    policy = named_policy("round_robin")
    placement = Placement(backends, policy.build(backends) if backends else None, policy)
    return placement, placement


class Bench:
    def __init__(self) -> None:
        self.backends = [make_backend(name=name) for name in NAMES]
        route = ModelRoute(
            facts=ModelFacts(is_stateful=False),
            ready_versions=frozenset({b"1", b"3"}),
            versions={b"3": placed(*self.backends[1:])},
            is_uniform=True,
            is_plain=True,
        )
        self.routing = Routing(
            placements=placed(*self.backends),
            routes={b"m": route, b"other": route},
            regions={},
            partial=((), ()),
            knows_all=True,
            only_unready=(False, False),
        )

    def served_by(self, narrowing: Narrowing, version: bytes = b"") -> list[str]:
        routing = narrowing.put(self.routing)
        route = routing.routes[b"m"]
        placements = route.versions.get(version) or route.placements or routing.placements
        return [each.name for each in placements[0].eligible]


def test_without_rules_nothing_changes() -> None:
    bench = Bench()
    assert Narrowing().put(bench.routing) is bench.routing


def test_a_model_is_served_by_the_named_backends_alone() -> None:
    bench, narrowing = Bench(), Narrowing()
    assert narrowing.configure({(b"m", b""): frozenset({"gpu-0", "gpu-2"})})
    assert bench.served_by(narrowing) == ["gpu-0", "gpu-2"]
    assert bench.served_by(narrowing, b"3") == ["gpu-2"]
    routing = narrowing.put(bench.routing)
    assert not routing.routes[b"m"].is_plain
    assert routing.routes[b"other"] is bench.routing.routes[b"other"]
    picker = routing.routes[b"m"].placements
    assert picker is not None
    assert picker[0].picker is not None


def test_a_version_is_narrowed_apart_from_the_others() -> None:
    bench, narrowing = Bench(), Narrowing()
    narrowing.configure({(b"m", b"3"): frozenset({"gpu-1"})})
    assert bench.served_by(narrowing) == list(NAMES)
    assert bench.served_by(narrowing, b"3") == ["gpu-1"]


def test_a_model_without_any_of_its_backends_is_served_by_none() -> None:
    bench, narrowing = Bench(), Narrowing()
    narrowing.configure({(b"m", b""): frozenset({"gpu-9"})})
    assert bench.served_by(narrowing) == []


def test_routes_stay_the_same_object_while_nothing_changes() -> None:
    bench, narrowing = Bench(), Narrowing()
    rules = {(b"m", b""): frozenset({"gpu-0"})}
    narrowing.configure(rules)
    before = narrowing.put(bench.routing).routes
    assert narrowing.put(replace(bench.routing)).routes is before
    assert narrowing.put(replace(bench.routing, routes=dict(bench.routing.routes))).routes is not (
        before
    )
    assert not narrowing.configure(rules)
