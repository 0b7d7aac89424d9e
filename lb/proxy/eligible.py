"""Which backends may get a request, with all that is known of it."""

from __future__ import annotations

from typing import Final

from lb.domain.pool import Placement, PoolRef
from lb.proxy.exchange import Exchange, RoutingHints

NO_HINTS: Final = RoutingHints()


def placement_of(exchange: Exchange, pool: PoolRef) -> Placement:
    """The backends that may get an exchange as the pool is now: those of its model and version, and
    of the regions of shared memory that it names."""
    snapshot = pool.current
    protocol = exchange.protocol
    placement = snapshot.placements[protocol]
    hints = exchange.hints or NO_HINTS
    route = snapshot.routes.get(exchange.model)
    if route is not None:
        special = route.versions.get(hints.version, route.placements)
        if special is not None:
            placement = special[protocol]
    for region in hints.regions:
        owners = snapshot.regions.get(region)
        if owners is not None:
            both = tuple(b for b in placement.eligible if b in owners[protocol].eligible)
            # With none left the backend's own word about the region is the answer.
            if both:
                placement = Placement(both, placement.policy.build(both), placement.policy)
    return placement
