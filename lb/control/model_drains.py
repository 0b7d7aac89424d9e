"""Takes a backend out of the routes of models that are drained there.

A drained model gets no new requests on its backend, which keeps running sequences and serves its
other models. Unlike a model that is ejected, a drained one stays out even if no other backend has
it: its requests then find no backend.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from lb.control.routes import Routing
from lb.domain.backend import Backend
from lb.domain.model import NO_FACTS
from lb.domain.pool import ModelRoute, Placement, Placements

Drained = Mapping[bytes, frozenset[Backend]]
"""Backends on which a model is drained, by its name."""


class ModelDrains:
    """Takes drained models out of routings. What has not changed is taken over, so that nothing is
    published for nothing."""

    __slots__ = ("_drained", "_routes", "_usual")

    def __init__(self) -> None:
        self._drained: Drained = {}
        self._usual: Routing | None = None
        """What the routes were made from."""
        self._routes: Mapping[bytes, ModelRoute] = {}

    def put(self, usual: Routing, drained: Drained) -> Routing:
        """Leave drained models out of a routing."""
        if not drained:
            self._drained, self._usual, self._routes = {}, None, {}
            return usual
        before = self._usual
        if (
            before is None
            or self._drained != drained
            or before.routes is not usual.routes
            or before.placements != usual.placements
        ):
            self._drained = drained
            routes = dict(usual.routes)
            for model, out in drained.items():
                route = routes.get(model) or ModelRoute(facts=NO_FACTS)
                routes[model] = _without(route, usual.placements, out)
            self._routes = routes
        self._usual = usual
        return replace(usual, routes=self._routes)


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
