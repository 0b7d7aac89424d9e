from __future__ import annotations

from random import Random

from lb.balancing.policies import make_policy
from lb.control.routes import Candidate, RouteBuilder, Routing, Tiers
from lb.control.trials import Trials
from lb.domain.backend import AppProtocol, Backend
from lb.domain.trial import Trial
from tests.fakes.backends import make_backend, make_spec

A, B = make_backend("a"), make_backend("b")
READY = frozenset({(b"m", b"1"), (b"n", b"1")})


def usual() -> Routing:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    up = (Candidate(A, READY),)
    tiers = Tiers(up=up, for_models=up)
    return builder.build([tiers, tiers], {b"m", b"n"}, {})


def test_the_next_request_for_a_model_goes_to_the_backend_on_trial() -> None:
    routing = Trials().put(usual(), {b"m": Trial(B)})
    route = routing.routes[b"m"]
    assert not route.is_plain
    assert route.placements is not None
    picks = [place.picker.pick() for place in route.placements if place.picker is not None]
    assert picks == [B, A]
    assert route.placements[AppProtocol.HTTP].eligible == (A,)
    other = routing.routes[b"n"]
    assert other == usual().routes[b"n"] or other.placements is None


def test_without_a_list_the_next_request_of_any_kind_is_the_trial() -> None:
    routing = Trials().put(usual(), {b"unlisted": Trial(B)})
    picker = routing.placements[AppProtocol.GRPC].picker
    assert picker is not None
    assert [picker.pick(), picker.pick()] == [B, A]


def test_a_backend_without_a_port_gets_no_trial_there() -> None:
    http_only = Backend(make_spec("c", grpc=None))
    routing = usual()
    tried = Trials().put(routing, {b"unlisted": Trial(http_only)})
    assert tried.placements[AppProtocol.GRPC] is routing.placements[AppProtocol.GRPC]
    assert tried.placements[AppProtocol.HTTP] is not routing.placements[AppProtocol.HTTP]


def test_the_same_trials_make_the_same_routing() -> None:
    trials, routing = Trials(), usual()
    given = {b"m": Trial(B)}
    first, second = trials.put(routing, given), trials.put(routing, dict(given))
    assert first.routes is second.routes
    assert first.placements == second.placements
    assert trials.put(routing, {b"m": Trial(B)}).routes is not first.routes
    assert trials.put(routing, {}) is routing
