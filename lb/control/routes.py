"""Where requests for each model go, worked out from what every backend has.

While the same backends may get requests, only the routes of models that have changed are made
anew. A set of backends has one placement, whoever asks: all models that are on the same backends
share its picker, one per protocol, and those of which the same is known share their route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from lb.control.holders import Holders, Pattern
from lb.control.plans import Planner
from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import NO_FACTS, ModelFacts
from lb.domain.pool import ModelRoute, Picker, Placement, Placements, Policy
from lb.domain.schedule import QueuePlan
from lb.health.models import Version

_Key = tuple[AppProtocol, tuple[Backend, ...]]
_Place = Callable[[tuple[Backend, ...]], Placement]
_Owners = dict[bytes, tuple[tuple[Backend, ...], tuple[Backend, ...]]]
_SPARE: Final = 64
"""Placements and routes that changes may leave behind, beside as many as are in use."""


class Candidate(NamedTuple):
    """A backend that may get requests of one protocol."""

    backend: Backend
    ready: frozenset[Version] | None
    """What it has ready; None: it cannot list that, and may have anything."""
    is_known: bool = True
    """Whether it has listed its models; until then it gets those that nobody else has."""
    regions: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Tiers:
    """The candidates of one protocol, each in the order of the pool."""

    up: tuple[Candidate, ...] = ()
    partial: tuple[Candidate, ...] = ()
    """Some of their models are ready."""
    suspected: tuple[Candidate, ...] = ()
    """Used when there is nothing better."""
    for_models: tuple[Candidate, ...] = ()
    """Those of `up` and `partial`."""
    unready: tuple[Candidate, ...] = ()
    """Used when there is nobody else: they have no model ready, and say so themselves."""

    @property
    def general(self) -> tuple[Candidate, ...]:
        """Those that get what nothing special is known about."""
        return self.up or self.suspected or self.partial or self.unready

    @property
    def is_unready(self) -> bool:
        """Whether nobody but unready backends is left."""
        return bool(self.unready) and not (self.up or self.suspected or self.partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What a snapshot says beside its backends."""

    placements: Placements
    routes: Mapping[bytes, ModelRoute]
    regions: Mapping[bytes, Placements]
    partial: tuple[tuple[Backend, ...], tuple[Backend, ...]]
    knows_all: bool
    only_unready: tuple[bool, bool]


class RouteBuilder:
    """Makes routings. What has not changed since the last one is taken over, pickers too."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        """Another one counts from the next `forget_pickers` on."""
        self.planner = Planner()
        """Likewise."""
        self._earlier: dict[_Key, Placement] = {}
        """To be taken over while all is made anew."""
        self._placements: dict[_Key, Placement] = {}
        """Made or taken over since then."""
        self._enough = 0
        """With more of them, some are certainly out of use."""
        self._holders = Holders()
        self._shape: object = None
        """All that routes follow from beside patterns and facts; None: begin anew."""
        self._views: tuple[_View, ...] = ()
        self._shared: dict[tuple[Pattern, ModelFacts, QueuePlan | None, bool], ModelRoute] = {}
        self._names: AbstractSet[bytes] = frozenset()
        self._missed: AbstractSet[bytes] = frozenset()
        self._facts: Mapping[bytes, ModelFacts] = {}
        self._routes: dict[bytes, ModelRoute] = {}
        """Never changed any more, as it was given away."""

    def forget_pickers(self) -> None:
        """Weights or limits have changed: pickers read them when they are built."""
        self._placements = {}
        self._shape = None

    def build(
        self,
        tiers: Sequence[Tiers],
        names: AbstractSet[bytes],
        facts: Mapping[bytes, ModelFacts],
        missed: AbstractSet[bytes] = frozenset(),
    ) -> Routing:
        """Make the routing of both protocols.

        Args:
            tiers: by protocol. What a backend has ready is the same in both.
            names: all models that any backend lists.
            facts: what is known of them; neither may change afterwards.
            missed: of `names`, those that backends had ready which get no requests now. Where no
                candidate has one of them its requests find no backend: a candidate would say that
                there is no such model.

        Returns:
            Its `routes` are the same object as before exactly when none of them has changed.
        """
        changed = self._holders.update(_ready(tiers))
        owners = _special_regions(tiers)
        shape = (*map(_shape, tiers), bool(owners))
        if shape != self._shape or self._holds_too_much():
            self._begin_anew(tiers)
            changed |= names
            self._shape = shape
        http, grpc = (self._general(p, _backends(tiers[p].general)) for p in AppProtocol)
        general = (http, grpc)
        changed |= names - self._names
        if facts is not self._facts:
            changed |= _changed_facts(self._facts, facts)
        changed |= missed ^ self._missed
        self._names, self._facts, self._missed = names, facts, missed
        self._replace_routes(changed & names, general, no_regions=not owners)
        regions = {
            region: (self._placed(AppProtocol.HTTP, http), self._placed(AppProtocol.GRPC, grpc))
            for region, (http, grpc) in owners.items()
        }
        if not self._enough:
            self._earlier, self._enough = {}, 2 * len(self._placements) + _SPARE
        return Routing(
            placements=general,
            routes=self._routes,
            regions=regions,
            partial=(_backends(tiers[0].partial), _backends(tiers[1].partial)),
            knows_all=all(c.is_known for each in tiers for c in each.general),
            only_unready=(tiers[0].is_unready, tiers[1].is_unready),
        )

    def _holds_too_much(self) -> bool:
        return (
            len(self._placements) > self._enough
            or len(self._shared) > 2 * len(self._names) + _SPARE
        )

    def _begin_anew(self, tiers: Sequence[Tiers]) -> None:
        self._earlier, self._placements, self._enough = self._placements, {}, 0
        self._shared = {}
        self.planner.follow(_everybody(tiers))
        bits = self._holders.bits
        self._views = tuple(
            _View(tiers[protocol], bits, partial(self._placed, protocol))
            for protocol in AppProtocol
        )

    def _replace_routes(
        self,
        changed: AbstractSet[bytes],
        general: Placements,
        *,
        no_regions: bool,
    ) -> None:
        names, facts, missed = self._names, self._facts, self._missed
        before, patterns, shared = self._routes, self._holders.patterns, self._shared
        news: dict[bytes, ModelRoute] = {}
        same: dict[tuple[int, int], bool] = {}
        for name in changed:
            known = facts.get(name, NO_FACTS)
            pattern = patterns.get(name, ())
            is_missed = not pattern and name in missed
            key = (pattern, known, self.planner.plan(name, known), is_missed)
            route = shared.get(key)
            if route is None:
                route = shared[key] = _route(*key, self._views, general, no_regions)
            old = before.get(name)
            # Many share one route, so most need no comparison of their own.
            pair = (id(old), id(route))
            if pair not in same:
                same[pair] = old == route
            if not same[pair]:
                news[name] = route
        gone = before.keys() - names
        if gone:
            before = {name: route for name, route in before.items() if name not in gone}
        if news or gone:
            self._routes = before | news

    def _general(self, protocol: AppProtocol, backends: tuple[Backend, ...]) -> Placement:
        placement = self._placed(protocol, backends)
        if isinstance(placement.picker, _LaterPicker):
            # Nearly all requests are placed by it: it should cost one call and not two.
            placement = Placement(backends, self.policy.build(backends), self.policy)
            self._placements[protocol, backends] = placement
        return placement

    def _placed(self, protocol: AppProtocol, backends: tuple[Backend, ...]) -> Placement:
        key = (protocol, backends)
        placement = self._placements.get(key)
        if placement is None:
            placement = self._earlier.get(key)
            if placement is None:
                picker = _LaterPicker(backends, self.policy) if backends else None
                placement = Placement(backends, picker, self.policy)
            self._placements[key] = placement
        return placement


class _LaterPicker:
    """Is built for its first request: there can be a set of backends for each model."""

    __slots__ = ("_backends", "_picker", "_policy")

    def __init__(self, backends: tuple[Backend, ...], policy: Policy) -> None:
        self._backends = backends
        self._policy = policy
        self._picker: Picker | None = None

    def pick(self) -> Backend | None:
        """Return the backend for one request; None when all are full."""
        if self._picker is None:
            self._picker = self._policy.build(self._backends)
        return self._picker.pick()


class _View:
    """Who of one protocol has what, while the same backends may get requests."""

    def __init__(self, tiers: Tiers, bits: Mapping[Backend, int], place: _Place) -> None:
        self._tiers = [
            [(each.backend, bits[each.backend], each.ready is None) for each in candidates]
            for candidates in (tiers.for_models, tiers.suspected)
        ]
        self._place = place
        self._found: dict[int, Placement | None] = {}

    def of(self, holders: int) -> Placement | None:
        """Those of some backends that may get requests, and all that may have anything; None:
        there is none."""
        if holders not in self._found:
            self._found[holders] = self._find(holders)
        return self._found[holders]

    def _find(self, holders: int) -> Placement | None:
        for members in self._tiers:
            found = tuple(backend for backend, bit, is_any in members if is_any or holders & bit)
            if found:
                return self._place(found)
        return None


def _ready(tiers: Sequence[Tiers]) -> dict[Backend, frozenset[Version]]:
    """What all candidates have that may get requests for their models."""
    nothing = frozenset[Version]()
    return {
        each.backend: each.ready or nothing
        for of_protocol in tiers
        for each in (*of_protocol.for_models, *of_protocol.suspected)
    }


def _everybody(tiers: Sequence[Tiers]) -> list[Backend]:
    """All candidates, each once."""
    found = {
        each.backend: None
        for of_protocol in tiers
        for each in (*of_protocol.for_models, *of_protocol.suspected, *of_protocol.unready)
    }
    return list(found)


def _shape(tiers: Tiers) -> object:
    """What placements follow from, but for what backends have."""
    candidates = (*tiers.for_models, *tiers.suspected)
    return (
        _backends(tiers.for_models),
        _backends(tiers.suspected),
        _backends(tiers.general),
        tuple(each.backend for each in candidates if each.ready is None),
    )


def _changed_facts(
    before: Mapping[bytes, ModelFacts], now: Mapping[bytes, ModelFacts]
) -> set[bytes]:
    changed = {name for name, facts in now.items() if before.get(name) is not facts}
    changed.update(before.keys() - now.keys())
    return changed


def _route(
    pattern: Pattern,
    facts: ModelFacts,
    plan: QueuePlan | None,
    is_missed: bool,
    views: Sequence[_View],
    general: Placements,
    no_regions: bool,
) -> ModelRoute:
    holders = 0
    for _, each in pattern:
        holders |= each
    found = views[0].of(holders), views[1].of(holders)
    if is_missed:
        nobody = Placement((), None, general[0].policy)
        found = found[0] or nobody, found[1] or nobody
    placements = _special(found, general)
    usual = placements or general
    versions = {}
    for version, each in pattern:
        special = _special((views[0].of(each), views[1].of(each)), usual)
        if special is not None:
            versions[version] = special
    is_uniform = facts.is_stateful is False and placements is None and not versions and no_regions
    return ModelRoute(
        facts=facts,
        placements=placements,
        versions=versions,
        ready_versions=frozenset(version for version, _ in pattern),
        is_uniform=is_uniform,
        plan=plan,
        is_plain=is_uniform and plan is None,
    )


def _special(
    found: tuple[Placement | None, Placement | None], usual: Placements
) -> Placements | None:
    """The placements where they are others than usual; None where they are the same."""
    http, grpc = found[0] or usual[0], found[1] or usual[1]
    if http is usual[0] and grpc is usual[1]:
        return None
    if http.eligible == usual[0].eligible and grpc.eligible == usual[1].eligible:
        return None
    return http, grpc


def _backends(candidates: Sequence[Candidate]) -> tuple[Backend, ...]:
    return tuple(candidate.backend for candidate in candidates)


def _special_regions(tiers: Sequence[Tiers]) -> _Owners:
    """The regions that not all have, and who has them, by protocol."""
    http, grpc = map(_by_region, tiers)
    usual = tuple(_backends(each.general) for each in tiers)
    special: _Owners = {}
    for region in http.keys() | grpc.keys():
        found = (tuple(http.get(region, ())), tuple(grpc.get(region, ())))
        if found != usual:
            special[region] = found
    return special


def _by_region(tiers: Tiers) -> dict[bytes, list[Backend]]:
    owners: dict[bytes, list[Backend]] = {}
    for candidate in tiers.for_models or tiers.suspected:
        for region in candidate.regions:
            owners.setdefault(region, []).append(candidate.backend)
    return owners
