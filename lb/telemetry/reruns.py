"""What became of requests that may have run and might go again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunCounts:
    """Counters, and what is so now."""

    count: int = 0
    """Requests that went again."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Those that did not, by why."""
    blocked_models: int = 0
    """Models of which none goes again for now."""
    unkept_bodies: int = 0
    """Requests that would not have fitted into memory."""
    hedges: int = 0
    """Requests that were sent to a second backend beside the first."""
    hedges_won: int = 0
    """Those that the second one answered first."""
    hedges_refused: int = 0
    """Requests that were not, since the budget was spent."""


def rerun_rows(read: Callable[[], RerunCounts]) -> dict[str, Rows]:
    """Rows of the metrics, by name."""

    def refused() -> Iterable[tuple[tuple[str, ...], float]]:
        return [((why,), count) for why, count in sorted(read().refused.items())]

    return {
        "triton_lb_reruns_total": lambda: [((), read().count)],
        "triton_lb_reruns_refused_total": refused,
        "triton_lb_blocked_models": lambda: [((), read().blocked_models)],
        "triton_lb_unkept_bodies_total": lambda: [((), read().unkept_bodies)],
        "triton_lb_hedges_total": lambda: [((), read().hedges)],
        "triton_lb_hedges_won_total": lambda: [((), read().hedges_won)],
        "triton_lb_hedges_refused_total": lambda: [((), read().hedges_refused)],
    }
