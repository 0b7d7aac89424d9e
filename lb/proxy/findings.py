"""What was found out about an inference becomes what it is placed and queued by, for both
protocols."""

from __future__ import annotations

from collections.abc import Mapping

from lb.domain.operation import OperationKind
from lb.domain.pool import ModelRoute, Placements
from lb.kserve.inspect import Findings
from lb.proxy.exchange import Exchange, RoutingHints


def note_findings(
    exchange: Exchange,
    found: Findings,
    route: ModelRoute | None,
    regions: Mapping[bytes, Placements],
    size: int,
) -> None:
    """Note what decides where a request goes, if anything but its protocol and model does.

    Args:
        exchange: whose request was inspected.
        found: in it; nothing of what was not looked for.
        route: of its model.
        regions: those that not all backends have.
        size: bytes of the request, as far as they are announced.
    """
    step = None if route is not None and route.facts.is_stateful is False else found.step
    named = tuple([name for name in found.regions if name in regions]) if regions else ()
    if step is None and not named and (route is None or route.is_plain):
        return
    exchange.hints = hints = RoutingHints(found.version)
    hints.step = step
    hints.regions = named
    if (
        route is not None
        and route.plan is not None
        and step is None
        and exchange.operation.kind is OperationKind.INFERENCE
    ):
        hints.rows, hints.priority, hints.size = found.rows, found.priority, size
