"""What a backend has, as JSON."""

from __future__ import annotations

from typing import Any

from lb.control.model_views import ModelsView


def render_models(view: ModelsView) -> dict[str, Any]:
    """The models of one backend, as `Models` of the OpenAPI document says."""
    return {
        "listed": view.listed,
        "age_s": None if view.age_s is None else round(view.age_s, 3),
        "models": [
            {
                "name": line.name,
                "version": line.version,
                "state": line.state,
                "reason": line.reason,
            }
            for line in view.models
        ],
        "regions": list(view.regions),
        "drift": {
            "models": list(view.drift.models),
            "configurations": list(view.drift.configurations),
            "settings": list(view.drift.settings),
        },
    }
