"""Gives trials to backends that are ejected: one request each, whose answer decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lb.balancing.trial import TrialPicker
from lb.control.routes import Routing
from lb.domain.backend import AppProtocol
from lb.domain.pool import ModelRoute, Placement, Placements
from lb.domain.trial import Trial


class Trials:
    """Puts trials into routings. What has not changed is taken over, so that nothing is published
    for nothing."""

    __slots__ = ("_placements", "_routes", "_trials", "_usual")

    def __init__(self) -> None:
        self._trials: Mapping[bytes, Trial] = {}
        self._usual: Routing | None = None
        """What the next two were made from."""
        self._placements: Placements | None = None
        self._routes: Mapping[bytes, ModelRoute] = {}

    def put(self, usual: Routing, trials: Mapping[bytes, Trial]) -> Routing:
        """Give the next request for each of some models to the backend of its trial.

        Where no backend lists the model, that is the next request for any.
        """
        if not trials:
            self._trials, self._usual, self._placements, self._routes = {}, None, None, {}
            return usual
        before = self._usual
        if (
            before is None
            or self._placements is None
            or self._trials != trials
            or before.routes is not usual.routes
            or before.placements != usual.placements
        ):
            self._trials = trials
            self._placements, self._routes = _with_trials(usual, trials)
        self._usual = usual
        return replace(usual, placements=self._placements, routes=self._routes)


def _with_trials(
    usual: Routing, trials: Mapping[bytes, Trial]
) -> tuple[Placements, Mapping[bytes, ModelRoute]]:
    general, routes = usual.placements, dict(usual.routes)
    for model, trial in trials.items():
        route = routes.get(model)
        if route is None:
            general = _with(trial, general)
        else:
            placements = _with(trial, route.placements or usual.placements)
            routes[model] = replace(route, placements=placements, is_uniform=False, is_plain=False)
    return general, routes


def _with(trial: Trial, placements: Placements) -> Placements:
    http, grpc = placements
    return _placed(trial, AppProtocol.HTTP, http), _placed(trial, AppProtocol.GRPC, grpc)


def _placed(trial: Trial, protocol: AppProtocol, usual: Placement) -> Placement:
    if trial.backend.ports[protocol] is None:
        return usual
    return Placement(usual.eligible, TrialPicker(trial, usual.picker), usual.policy)
