"""Routes made for patterns of backends are those that looking at every backend gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.control.routes import Candidate, RouteBuilder, Routing, Tiers
from lb.domain.backend import AppProtocol, Backend, BackendState
from lb.domain.model import ModelFacts
from lb.health.models import Version
from tests.fakes.backends import make_backends
from tests.fakes.relay import named_policy

UP, PARTIAL, SUSPECTED, DOWN = (
    BackendState.UP, BackendState.PARTIAL, BackendState.SUSPECTED, BackendState.DOWN,
)  # fmt: skip
NAMES = (b"m", b"n", b"o")
VERSIONS = st.tuples(st.sampled_from(NAMES), st.sampled_from((b"1", b"2")))
READY_SETS = st.none() | st.frozensets(VERSIONS, max_size=4)
BACKENDS = st.lists(
    st.tuples(
        READY_SETS, st.sampled_from((UP, PARTIAL, SUSPECTED, DOWN)), st.booleans(), st.booleans()
    ),
    max_size=7,
)
"""What each has ready, its state, and which of its two ports are in use."""

Member = tuple[Backend, frozenset[Version] | None, BackendState]
Step = tuple[
    list[tuple[frozenset[Version] | None, BackendState, bool, bool]], bool | None, frozenset[bytes]
]
"""Backends, what is known of all models, and those that are listed."""


def tiers_of(members: list[Member]) -> Tiers:
    def those(*states: BackendState) -> tuple[Candidate, ...]:
        return tuple(Candidate(b, ready) for b, ready, state in members if state in states)

    return Tiers(
        up=those(UP), partial=those(PARTIAL), suspected=those(SUSPECTED),
        for_models=those(UP, PARTIAL),
    )  # fmt: skip


def plainly(members: list[Member], name: bytes, version: bytes = b"") -> list[Backend]:
    """Who gets requests for a model, one backend looked at after the other."""

    def has(ready: frozenset[Version] | None) -> bool:
        return ready is None or any(n == name and version in (b"", v) for n, v in ready)

    for states in ((UP, PARTIAL), (SUSPECTED,)):
        found = [b for b, ready, state in members if state in states and has(ready)]
        if found:
            return found
    return generally(members) if not version else plainly(members, name)


def generally(members: list[Member]) -> list[Backend]:
    for wanted in (UP, SUSPECTED, PARTIAL):
        found = [b for b, _, state in members if state is wanted]
        if found:
            return found
    return []


@given(
    steps=st.lists(
        st.tuples(
            BACKENDS, st.sampled_from((True, False, None)), st.frozensets(st.sampled_from(NAMES))
        ),
        min_size=1,
        max_size=5,
    )
)
def test_routes_are_those_of_a_plain_look(steps: list[Step]) -> None:
    """Also when they are made out of earlier ones, whatever has changed since."""
    everybody = make_backends(*(0 for _ in range(7)))
    builder = RouteBuilder(named_policy("least_loaded"))
    for pool, stateful, names in steps:
        members: list[list[Member]] = [[], []]
        for backend, (ready, state, http, grpc) in zip(everybody, pool, strict=False):
            for protocol, is_used in ((AppProtocol.HTTP, http), (AppProtocol.GRPC, grpc)):
                if is_used:
                    members[protocol].append((backend, ready, state))
        facts = dict.fromkeys(NAMES, ModelFacts(is_stateful=stateful))
        routing = builder.build([tiers_of(each) for each in members], names, facts)
        assert routing.routes.keys() == names
        for protocol in AppProtocol:
            check(routing, members, protocol, stateful)


def check(
    routing: Routing, members: list[list[Member]], protocol: AppProtocol, stateful: bool | None
) -> None:
    mine = members[protocol]
    assert list(routing.placements[protocol].eligible) == generally(mine)
    for name, route in routing.routes.items():
        usual = route.placements or routing.placements
        assert list(usual[protocol].eligible) == plainly(mine, name)
        assert route.ready_versions == listed(members, name)
        for version in route.ready_versions:
            chosen = route.versions.get(version, usual)[protocol]
            assert list(chosen.eligible) == plainly(mine, name, version)
            assert (chosen.picker is None) == (not chosen.eligible)
        assert route.facts.is_stateful is stateful
        if route.is_plain:
            assert stateful is False
            assert list(usual[protocol].eligible) == generally(mine)


def listed(members: list[list[Member]], name: bytes) -> set[bytes]:
    """The versions of a model that somebody has ready who may get requests for it."""
    return {
        version
        for mine in members
        for _, ready, state in mine
        for each, version in ready or ()
        if each == name and state is not DOWN
    }
