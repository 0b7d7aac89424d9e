"""Takes a backend out of the routes of models that are drained there, and has inferences wait for
models that are loaded on demand.

A drained model gets no new requests on its backend, which keeps running sequences and serves its
other models. Unlike a model that is ejected, a drained one stays out even if no other backend has
it: its requests then find no backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from lb.control.routes import Routing
from lb.domain.backend import Backend
from lb.domain.model import NO_FACTS
from lb.domain.pool import ModelRoute, OnDemand, Placement, Placements

OnDemands = Mapping[bytes, OnDemand]
"""By its name, what is to be said of a model in case it is loaded nowhere."""
Drained = Mapping[bytes, frozenset[Backend]]
"""Backends on which a model is drained, by its name."""


class ModelDrains:
    """Takes drained models out of routings. What has not changed is taken over, so that nothing is
    published for nothing."""

    __slots__ = ("_drained", "_on_demand", "_routes", "_served", "_usual")

    def __init__(self) -> None:
        self._drained: Drained = {}
        self._on_demand: OnDemands = {}
        self._served: Sequence[frozenset[bytes] | None] = ()
        self._usual: Routing | None = None
        """What the routes were made from."""
        self._routes: Mapping[bytes, ModelRoute] = {}

    def put(
        self,
        usual: Routing,
        drained: Drained,
        on_demand: OnDemands,
        served: Sequence[frozenset[bytes] | None] = (),
    ) -> Routing:
        """Leave drained models out of a routing, and mark those that are loaded on demand.

        Args:
            usual: the routing.
            drained: models that are drained, and where.
            on_demand: models that are loaded on demand.
            served: by protocol, the models that backends have ready and not drained; None: they may
                have any. Not needed where nothing is loaded on demand.
        """
        if not (drained or on_demand):
            self._drained, self._on_demand, self._usual, self._routes = {}, {}, None, {}
            self._served = ()
            return usual
        before = self._usual
        if (
            before is None
            or self._drained != drained
            or self._on_demand != on_demand
            or self._served != served
            or before.routes is not usual.routes
            or before.placements != usual.placements
        ):
            self._drained, self._on_demand, self._served = drained, on_demand, served
            routes = dict(usual.routes)
            for model, out in drained.items():
                route = routes.get(model) or ModelRoute(facts=NO_FACTS)
                routes[model] = _without(route, usual.placements, out)
            if on_demand:
                routes.update(_absent(routes, usual.placements, on_demand, served))
            self._routes = routes
        self._usual = usual
        return replace(usual, routes=self._routes)


def _absent(
    routes: Mapping[bytes, ModelRoute],
    general: Placements,
    on_demand: OnDemands,
    served: Sequence[frozenset[bytes] | None],
) -> Iterator[tuple[bytes, ModelRoute]]:
    """The routes of models that are loaded nowhere where a protocol leads, and on demand."""
    for model, how in on_demand.items():
        is_there = [names is None or model in names for names in served]
        route = routes.get(model)
        if route is None and not how.is_standby:
            route = ModelRoute(facts=NO_FACTS)  # all that had listed it are gone for a while
        if route is None or all(is_there):
            continue
        http, grpc = route.placements or general
        yield (
            model,
            replace(
                route,
                placements=(_if(is_there[0], http), _if(is_there[1], grpc)),
                versions={
                    version: (_if(is_there[0], http), _if(is_there[1], grpc))
                    for version, (http, grpc) in route.versions.items()
                },
                is_uniform=False,
                is_plain=False,
                on_demand=how,
            ),
        )


def _if(is_there: bool, placement: Placement) -> Placement:
    """A placement, or one without backends."""
    return placement if is_there else Placement((), None, placement.policy)


def _without(route: ModelRoute, general: Placements, out: Collection[Backend]) -> ModelRoute:
    """A route without some backends."""
    usual = route.placements or general
    versions = {
        version: _left(route.versions.get(version, usual), out) for version in route.ready_versions
    }
    return replace(
        route,
        placements=_left(usual, out),
        versions=versions,
        ready_versions=frozenset(
            version
            for version, placements in versions.items()
            if any(placement.eligible for placement in placements)
        ),
        is_uniform=False,
        is_plain=False,
    )


def _left(placements: Placements, out: Collection[Backend]) -> Placements:
    http, grpc = placements
    return _left_of(http, out), _left_of(grpc, out)


def _left_of(placement: Placement, out: Collection[Backend]) -> Placement:
    left = tuple(backend for backend in placement.eligible if backend not in out)
    if len(left) == len(placement.eligible):
        return placement
    picker = placement.policy.build(left) if left else None
    return Placement(left, picker, placement.policy)
