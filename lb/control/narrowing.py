"""Models that only some backends serve, whoever else has them: those of variants that the
configuration narrows to backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lb.control.routes import Routing
from lb.domain.pool import ModelRoute, Placement, Placements
from lb.settings.model import Settings

Narrow = Mapping[tuple[bytes, bytes], frozenset[str]]
"""Names of backends by model and version; an empty version is all versions. Names are those of the
configuration: a backend goes by another one while it stands in for its successor."""


def narrow_rules(settings: Settings) -> Narrow:
    """Read from settings which models only some backends serve."""
    return {
        (each.model.encode(), (each.version or "").encode()): frozenset(each.backends)
        for own in settings.models.values()
        for each in own.variants
        if each.backends
    }


class Narrowing:
    """Takes backends out of the routes of such models."""

    def __init__(self) -> None:
        self.rules: Narrow = {}
        self._before: Routing | None = None
        self._after: Mapping[bytes, ModelRoute] = {}

    def configure(self, rules: Narrow) -> bool:
        """Go by other rules. Whether they differ."""
        differ = rules != self.rules
        self.rules, self._before = rules, None
        return differ

    def put(self, routing: Routing) -> Routing:
        """Return the routing without those backends; its `routes` are the same object as before as
        long as nothing has changed."""
        if not self.rules:
            return routing
        before = self._before
        if (
            before is None
            or routing.routes is not before.routes
            or routing.placements != before.placements
        ):
            routes = dict(routing.routes)
            for (model, version), names in self.rules.items():
                route = routes.get(model)
                if route is not None:
                    routes[model] = _narrowed(route, version, names, routing.placements)
            self._before, self._after = routing, routes
        return replace(routing, routes=self._after)


def _narrowed(
    route: ModelRoute, version: bytes, names: frozenset[str], general: Placements
) -> ModelRoute:
    usual = route.placements or general
    if version:
        own = _only(route.versions.get(version, usual), names)
        return replace(
            route, versions={**route.versions, version: own}, is_uniform=False, is_plain=False
        )
    return replace(
        route,
        placements=_only(usual, names),
        versions={each: _only(every, names) for each, every in route.versions.items()},
        is_uniform=False,
        is_plain=False,
    )


def _only(placements: Placements, names: frozenset[str]) -> Placements:
    http, grpc = placements
    return _of(http, names), _of(grpc, names)


def _of(placement: Placement, names: frozenset[str]) -> Placement:
    rest = tuple(each for each in placement.eligible if each.spec.name in names)
    picker = placement.policy.build(rest) if rest else None
    return Placement(rest, picker, placement.policy)
