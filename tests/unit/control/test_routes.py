from __future__ import annotations

from random import Random

from lb.balancing.policies import make_policy
from lb.control.plans import LimitBy, LineRule, Planner, PlanRules
from lb.control.routes import Candidate, RouteBuilder, Routing, Tiers
from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import ModelFacts
from lb.domain.pool import Placement
from lb.health.models import Version
from tests.fakes.backends import make_backend

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
A, B, C = (make_backend(name) for name in "abc")
STATELESS = ModelFacts(is_stateful=False)


def having(backend: Backend, *models: str, regions: tuple[bytes, ...] = ()) -> Candidate:
    """A backend with models ready: `name` is its version 1, `name:2` another."""
    ready = frozenset(_version(model) for model in models)
    return Candidate(backend, ready, regions=frozenset(regions))


def _version(text: str) -> Version:
    name, _, version = text.partition(":")
    return name.encode(), (version or "1").encode()


def unlisted(backend: Backend) -> Candidate:
    return Candidate(backend, None, is_known=False)


def tiers(
    *up: Candidate,
    partial: tuple[Candidate, ...] = (),
    suspected: tuple[Candidate, ...] = (),
    unready: tuple[Candidate, ...] = (),
) -> Tiers:
    return Tiers(up, partial, suspected, for_models=up + partial, unready=unready)


def build(http: Tiers, grpc: Tiers | None = None, *names: bytes) -> Routing:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    grpc = http if grpc is None else grpc
    listed = frozenset(names or (b"m", b"n"))
    return builder.build([http, grpc], listed, dict.fromkeys(listed, STATELESS))


def backends(placement: Placement) -> str:
    assert (placement.picker is None) == (not placement.eligible)
    return "".join(backend.name for backend in placement.eligible)


def where(routing: Routing, model: bytes, protocol: AppProtocol = HTTP) -> str:
    """The backends that a request for a model may go to."""
    return backends((routing.routes[model].placements or routing.placements)[protocol])


def test_a_model_that_all_have_needs_no_second_look() -> None:
    routing = build(tiers(having(A, "m", "n"), having(B, "m", "n")))
    assert routing.routes[b"m"].placements is None
    assert routing.routes[b"m"].is_plain
    assert routing.knows_all
    assert where(routing, b"m") == "ab"


def test_a_model_goes_to_those_that_have_it() -> None:
    routing = build(tiers(having(A, "m", "n"), having(B, "n"), having(C, "m", "n")))
    assert where(routing, b"m") == "ac"
    assert not routing.routes[b"m"].is_plain
    assert where(routing, b"n") == "abc"
    assert routing.routes[b"n"].is_plain


def test_a_model_that_nobody_has_ready_goes_anywhere() -> None:
    routing = build(tiers(having(A, "n"), having(B, "n")))
    assert where(routing, b"m") == "ab"
    assert not routing.routes[b"m"].is_ready
    assert routing.routes[b"n"].is_ready


def test_who_cannot_list_models_may_have_any() -> None:
    routing = build(tiers(having(A, "m"), having(B), unlisted(C)))
    assert where(routing, b"m") == "ac"
    assert where(routing, b"n") == "c"
    assert not routing.knows_all


def test_who_has_not_listed_yet_gets_what_nobody_else_has() -> None:
    unknown = Candidate(B, frozenset(), is_known=False)
    routing = build(tiers(having(A, "m"), unknown))
    assert where(routing, b"m") == "a"
    assert where(routing, b"n") == "ab"
    assert not routing.knows_all


def test_partial_backends_get_the_models_that_they_have() -> None:
    routing = build(tiers(having(A, "m", "n"), partial=(having(B, "m"),)))
    assert backends(routing.placements[HTTP]) == "a"
    assert where(routing, b"m") == "ab"
    assert where(routing, b"n") == "a"
    assert routing.partial == ((B,), (B,))


def test_partial_backends_get_everything_when_nothing_better_is_left() -> None:
    routing = build(tiers(partial=(having(A, "m"), having(B, "m", "n"))))
    assert backends(routing.placements[HTTP]) == "ab"
    assert where(routing, b"n") == "b"


def test_unready_backends_get_requests_when_nobody_else_is_left() -> None:
    for better in (
        tiers(having(A, "m"), unready=(having(B),)),
        tiers(partial=(having(A, "m"),), unready=(having(B),)),
        tiers(suspected=(having(A, "m"),), unready=(having(B),)),
    ):
        routing = build(better)
        assert where(routing, b"m") == where(routing, b"n") == "a"
        assert routing.only_unready == (False, False)
    routing = build(tiers(unready=(having(A), having(B))), tiers(having(B, "m")))
    assert where(routing, b"m", HTTP) == where(routing, b"n", HTTP) == "ab"
    assert where(routing, b"m", GRPC) == "b"
    assert routing.only_unready == (True, False)


def test_a_suspected_backend_gets_what_only_it_has() -> None:
    routing = build(tiers(having(A, "n"), suspected=(having(B, "m", "n"),)))
    assert where(routing, b"m") == "b"
    assert where(routing, b"n") == "a"


def test_protocols_are_placed_one_by_one() -> None:
    routing = build(tiers(having(A, "m"), having(B)), tiers(having(B)), b"m")
    assert where(routing, b"m", HTTP) == "a"
    assert where(routing, b"m", GRPC) == "b"  # nobody there has it: its own word is the answer


def test_versions_that_are_elsewhere_have_places_of_their_own() -> None:
    routing = build(tiers(having(A, "m:1", "m:2"), having(B, "m:1"), having(C, "m:1")), None, b"m")
    route = routing.routes[b"m"]
    assert route.placements is None
    assert route.versions.keys() == {b"2"}
    assert backends(route.versions[b"2"][HTTP]) == "a"
    assert route.ready_versions == {b"1", b"2"}
    assert not route.is_plain


def test_equal_sets_of_backends_share_their_picker() -> None:
    routing = build(tiers(having(A, "m", "n"), having(B, "m", "n"), having(C)))
    m, n = (routing.routes[name].placements for name in (b"m", b"n"))
    assert m is not None
    assert n is not None
    assert m[HTTP].picker is n[HTTP].picker
    assert m[HTTP].picker is not m[GRPC].picker


def test_pickers_live_on_until_weights_change() -> None:
    builder = RouteBuilder(make_policy("round_robin", Random(1)))
    both = [tiers(having(A, "m"), having(B, "m"))] * 2
    first = builder.build(both, frozenset({b"m"}), {})
    again = builder.build(both, frozenset({b"m"}), {})
    assert again.placements[HTTP].picker is first.placements[HTTP].picker
    builder.forget_pickers()
    assert builder.build(both, frozenset({b"m"}), {}).placements[HTTP].picker is not (
        first.placements[HTTP].picker
    )


def test_pickers_of_sets_that_are_gone_are_not_kept() -> None:
    builder = RouteBuilder(make_policy("round_robin", Random(1)))
    both, one = [tiers(having(A), having(B))] * 2, [tiers(having(A))] * 2
    first = builder.build(both, frozenset(), {}).placements[HTTP].picker
    builder.build(one, frozenset(), {})
    assert builder.build(both, frozenset(), {}).placements[HTTP].picker is not first


def test_a_model_is_plain_only_when_it_is_certainly_stateless() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    both = [tiers(having(A, "m", "n", "o"))] * 2
    facts = {b"m": STATELESS, b"n": ModelFacts(is_stateful=True)}
    routes = builder.build(both, frozenset({b"m", b"n", b"o"}), facts).routes
    assert [routes[name].is_plain for name in (b"m", b"n", b"o")] == [True, False, False]
    assert routes[b"n"].facts.is_stateful


def test_regions_that_not_all_have_are_looked_for() -> None:
    routing = build(
        tiers(
            having(A, "m", regions=(b"r", b"everywhere")), having(B, "m", regions=(b"everywhere",))
        )
    )
    assert routing.regions.keys() == {b"r"}
    assert backends(routing.regions[b"r"][HTTP]) == "a"
    assert not routing.routes[b"m"].is_plain


def test_regions_that_all_have_are_not() -> None:
    routing = build(tiers(having(A, "m", regions=(b"r",)), having(B, "m", regions=(b"r",))))
    assert routing.regions == {}
    assert routing.routes[b"m"].is_plain


# Taking over what has not changed


def test_only_the_routes_of_models_that_changed_are_others() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    names = frozenset({b"m", b"n"})
    before = builder.build([tiers(having(A, "m", "n"), having(B, "m", "n"))] * 2, names, {})
    after = builder.build([tiers(having(A, "m", "n"), having(B, "n"))] * 2, names, {})
    assert after.routes[b"n"] is before.routes[b"n"]
    assert where(after, b"m") == "a"
    assert where(before, b"m") == "ab"  # it was given away: nobody may change it


def test_routes_are_the_same_object_while_none_of_them_changes() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    names = frozenset({b"m"})
    before = builder.build([tiers(having(A, "m"), having(B, "m"))] * 2, names, {b"m": STATELESS})
    fewer = [tiers(having(A, "m"))] * 2
    after = builder.build(fewer, names, {b"m": ModelFacts(is_stateful=False)})
    assert after.routes is before.routes
    assert backends(after.placements[HTTP]) == "a"


def test_names_that_nobody_lists_any_more_are_gone() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    both = [tiers(having(A, "m"))] * 2
    builder.build(both, frozenset({b"m", b"n"}), {})
    assert builder.build(both, frozenset({b"m"}), {}).routes.keys() == {b"m"}


def test_what_many_changes_leave_behind_is_forgotten() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    pool = [make_backend(f"b{number}") for number in range(10)]
    for at in range(2**10):
        members = [having(each, *("m" * (at >> n & 1))) for n, each in enumerate(pool)]
        builder.build([tiers(*members)] * 2, frozenset({b"m"}), {})
        assert len(builder._placements) < 100
        assert len(builder._shared) < 100


def test_a_set_that_becomes_the_general_one_is_picked_from_directly() -> None:
    policy = make_policy("least_loaded", Random(1))
    builder = RouteBuilder(policy)
    names = frozenset({b"m"})
    special = builder.build([tiers(having(A, "m"), having(B, "m"), having(C))] * 2, names, {})
    placements = special.routes[b"m"].placements
    assert placements is not None
    general = builder.build([tiers(having(A, "m"), having(B, "m"))] * 2, names, {})
    kind = type(policy.build((A, B)))
    assert isinstance(general.placements[HTTP].picker, kind)
    for placement in (placements[HTTP], general.placements[HTTP]):
        assert placement.picker is not None
        assert {placement.picker.pick() for _ in range(4)} == {A, B}


def test_a_scheduled_model_is_uniform_and_not_plain() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    builder.planner = Planner(PlanRules(usual=LineRule(by=LimitBy.CONFIGURATION)))
    both = tiers(having(A, "m", "n"), having(B, "m", "n"))
    facts = {b"m": ModelFacts(is_stateful=False, instances=2), b"n": STATELESS}
    names = frozenset(facts)
    first = builder.build([both, both], names, facts)
    m, n = first.routes[b"m"], first.routes[b"n"]
    assert m.plan is not None
    assert (m.is_uniform, m.is_plain) == (True, False)
    assert n.plan is None
    assert (n.is_uniform, n.is_plain) == (True, True)
    assert builder.build([both, both], names, facts).routes is first.routes
    builder.planner = Planner()
    builder.forget_pickers()
    assert builder.build([both, both], names, facts).routes[b"m"].is_plain


def test_a_model_that_nobody_has_who_gets_requests_is_not_asked_of_others() -> None:
    builder = RouteBuilder(make_policy("least_loaded", Random(1)))
    names = missed = frozenset({b"m", b"n"})
    one = tiers(having(A, "n"))
    routing = builder.build([one, one], names, {}, missed)
    assert (where(routing, b"m"), where(routing, b"n")) == ("", "a")
    assert builder.build([one, one], names, {}, missed).routes is routing.routes
    routing = builder.build([one, one], names, {})
    assert (where(routing, b"m"), where(routing, b"n")) == ("a", "a"), "nobody had it"
    any_model = tiers(having(A, "n"), Candidate(B, None))
    routing = builder.build([any_model, any_model], names, {}, missed)
    assert where(routing, b"m") == "b", "it may have it"
