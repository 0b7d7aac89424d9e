"""Where requests for each model go: made anew from what every backend has.

Backends with the same models are one group, so the work grows with the number of different sets
of models and not with the number of backends. A set of backends has one placement, whoever asks:
all models that are on the same backends share its picker, one per protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import NO_FACTS, ModelFacts
from lb.domain.pool import ModelRoute, Placement, Placements, Policy
from lb.health.models import Version

_Key = tuple[AppProtocol, tuple[Backend, ...]]
_Place = Callable[[tuple[Backend, ...]], Placement]


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

    @property
    def general(self) -> tuple[Candidate, ...]:
        """Those that get what nothing special is known about."""
        return self.up or self.suspected or self.partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What a snapshot says beside its backends."""

    placements: Placements
    routes: Mapping[bytes, ModelRoute]
    regions: Mapping[bytes, Placements]
    partial: tuple[tuple[Backend, ...], tuple[Backend, ...]]
    knows_all: bool


class RouteBuilder:
    """Makes routings; remembers the placements of the last one, so that pickers live on."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._placements: dict[_Key, Placement] = {}
        self._used: dict[_Key, Placement] = {}

    def forget_pickers(self) -> None:
        """Weights or limits have changed: pickers read them when they are built."""
        self._placements = {}

    def build(
        self,
        tiers: Sequence[Tiers],
        names: Iterable[bytes],
        facts: Mapping[bytes, ModelFacts],
    ) -> Routing:
        """Make the routing of both protocols.

        Args:
            tiers: by protocol.
            names: all models that any backend lists.
            facts: what is known of them.
        """
        self._used = {}
        http, grpc = (
            self._placed(protocol, _backends(tiers[protocol].general)) for protocol in AppProtocol
        )
        general = (http, grpc)
        views = [
            _View(tiers[protocol], partial(self._placed, protocol)) for protocol in AppProtocol
        ]
        regions = self._regions(tiers, general)
        routes = {
            name: _route(name, facts.get(name, NO_FACTS), views, general, not regions)
            for name in names
        }
        self._placements = self._used
        return Routing(
            placements=general,
            routes=routes,
            regions=regions,
            partial=(_backends(tiers[0].partial), _backends(tiers[1].partial)),
            knows_all=all(c.is_known for each in tiers for c in each.general),
        )

    def _placed(self, protocol: AppProtocol, backends: tuple[Backend, ...]) -> Placement:
        key = (protocol, backends)
        placement = self._used.get(key)
        if placement is None:
            placement = self._placements.get(key)
            if placement is None:
                picker = self._policy.build(backends) if backends else None
                placement = Placement(backends, picker, self._policy)
            self._used[key] = placement
        return placement

    def _regions(self, tiers: Sequence[Tiers], general: Placements) -> dict[bytes, Placements]:
        """Where the regions are that not all have."""
        owners = [_by_region(each) for each in tiers]
        special: dict[bytes, Placements] = {}
        for region in owners[0].keys() | owners[1].keys():
            http, grpc = (
                self._placed(protocol, tuple(owners[protocol].get(region, ())))
                for protocol in AppProtocol
            )
            if http.eligible != general[0].eligible or grpc.eligible != general[1].eligible:
                special[region] = (http, grpc)
        return special


class _View:
    """Who of one protocol has what."""

    def __init__(self, tiers: Tiers, place: _Place) -> None:
        self._best = _Groups(tiers.for_models, place)
        self._spare = _Groups(tiers.suspected, place)

    def of_model(self, name: bytes) -> Placement | None:
        """The backends that have some version of it ready; None: no one has."""
        return self._best.with_model(name) or self._spare.with_model(name)

    def of_version(self, version: Version) -> Placement | None:
        """Those that have one version of a model ready."""
        return self._best.with_version(version) or self._spare.with_version(version)

    def versions(self, name: bytes) -> frozenset[bytes]:
        """The versions that somebody lists as ready."""
        return frozenset(self._best.versions.get(name, ())) | frozenset(
            self._spare.versions.get(name, ())
        )


class _Groups:
    """Candidates grouped by what they have ready."""

    def __init__(self, candidates: Sequence[Candidate], place: _Place) -> None:
        self._members = candidates
        self._place = place
        groups: dict[frozenset[Version] | None, int] = {}
        self._group_of = [groups.setdefault(c.ready, len(groups)) for c in candidates]
        self._placements: dict[frozenset[int], Placement | None] = {}
        self._anything = frozenset(at for ready, at in groups.items() if ready is None)
        self._models: dict[bytes, set[int]] = {}
        self._versions: dict[Version, set[int]] = {}
        self.versions: dict[bytes, set[bytes]] = {}
        for ready, at in groups.items():
            for key in ready or ():
                self._models.setdefault(key[0], set()).add(at)
                self._versions.setdefault(key, set()).add(at)
                self.versions.setdefault(key[0], set()).add(key[1])

    def with_model(self, name: bytes) -> Placement | None:
        """The backends that have a model; None: no one has."""
        return self._in_groups(self._models.get(name, frozenset()))

    def with_version(self, version: Version) -> Placement | None:
        """The backends that have one version of a model."""
        return self._in_groups(self._versions.get(version, frozenset()))

    def _in_groups(self, holders: AbstractSet[int]) -> Placement | None:
        chosen = self._anything | holders
        if chosen not in self._placements:
            backends = tuple(
                member.backend
                for member, at in zip(self._members, self._group_of, strict=True)
                if at in chosen
            )
            self._placements[chosen] = self._place(backends) if backends else None
        return self._placements[chosen]


def _route(
    name: bytes,
    facts: ModelFacts,
    views: Sequence[_View],
    general: Placements,
    no_regions: bool,
) -> ModelRoute:
    placements = _special((views[0].of_model(name), views[1].of_model(name)), general)
    ready = views[0].versions(name) | views[1].versions(name)
    usual = placements or general
    versions = {}
    for version in ready:
        key = (name, version)
        special = _special((views[0].of_version(key), views[1].of_version(key)), usual)
        if special is not None:
            versions[version] = special
    return ModelRoute(
        facts=facts,
        placements=placements,
        versions=versions,
        ready_versions=ready,
        is_plain=(
            facts.is_stateful is False and placements is None and not versions and no_regions
        ),
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


def _by_region(tiers: Tiers) -> dict[bytes, list[Backend]]:
    owners: dict[bytes, list[Backend]] = {}
    for candidate in tiers.for_models or tiers.suspected:
        for region in candidate.regions:
            owners.setdefault(region, []).append(candidate.backend)
    return owners
