"""Models that are loaded on demand, in the live document."""

from __future__ import annotations

from typing import Final

from lb.admin.live_document import LivePlacement
from lb.control.model_placement import PlacementStatus
from lb.domain.names import readable

_NAMED: Final = 12
"""Models of a backend that are named; the others are counted."""


def placement_rows(status: PlacementStatus) -> list[LivePlacement]:
    """Describe the backends whose models are loaded on demand, and what is done there."""
    rows = {
        name: LivePlacement(backend=name, models=[], room="", note="") for name in status.managed
    }
    counts = dict.fromkeys(rows, 0)
    for placed in status.models:
        counts[placed.backend] += 1
        if counts[placed.backend] <= _NAMED:
            state = "" if placed.state == "ready" else f" ({placed.state})"
            rows[placed.backend]["models"].append(readable(placed.model) + state)
    for name, row in rows.items():
        if counts[name] > _NAMED:
            row["models"].append(f"and {counts[name] - _NAMED} more")
        most = f" of {status.max_models}" if status.max_models else ""
        row["room"] = f"{counts[name]}{most}"
    verb = "would load" if status.mode == "observe" else "loading"
    for step in status.steps:
        evicted = ", ".join(map(readable, step.evict))
        if step.model is None:
            note = f"{'would unload' if status.mode == 'observe' else 'unloading'} {evicted}"
        else:
            note = f"{verb} {readable(step.model)}" + (f" in place of {evicted}" if evicted else "")
        if step.backend in rows:
            rows[step.backend]["note"] = note
    for model, backend, failure in status.failures:
        if backend in rows and not rows[backend]["note"]:
            rows[backend]["note"] = f"{readable(model)} was not loaded: {failure.error}"
    return list(rows.values())
