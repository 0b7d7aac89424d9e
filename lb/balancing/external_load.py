"""What backends say of the load that others cause, model by model, told to their model backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lb.balancing.backend_external_load import BackendExternalLoad
from lb.balancing.model_backend import ModelBackend
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, ModelLoad


class ModelReports:
    """What a backend said of one model the last time."""

    __slots__ = ("_at", "_ended", "_load", "_own", "_took_s", "external_load")

    def __init__(self) -> None:
        self._at = 0.0
        self._load: ModelLoad | None = None
        self._ended = 0
        self._own = 0
        self._took_s = 0.0
        """Seconds of an execution there, as far as that was known last."""
        self.external_load: dict[ModelBackend, BackendExternalLoad] = {}

    def on_report(
        self, model_backends: Sequence[ModelBackend], load: ModelLoad, report: LoadReport, own: int
    ) -> None:
        """Have the model backends of a model know of another report.

        Args:
            model backends: of all its versions that are in use.
            load: what the report says of the model.
            report: all of it.
            own: requests of ours under way there, the most since it was asked.
        """
        now = report.at
        if self._load is not None and now <= self._at:
            return
        running = self._since(model_backends, load, own, now)
        known = self.external_load
        self.external_load = {
            model_backend: known.get(model_backend) or BackendExternalLoad()
            for model_backend in model_backends
        }
        pending = max(0.0, load.pending - own)
        for model_backend, others in self.external_load.items():
            took_s = model_backend.cost.mean_s or model_backend.stats.best_s
            if model_backend.capacity.is_shared:
                # All are worked on side by side: those that run are in the way like any others.
                share = None
                wait_s = (pending + (running or 0.0)) * took_s
            else:
                share = None if running is None else min(1.0, running / model_backend.instances)
                wait_s = pending * (self._took_s or took_s) / model_backend.instances
            others.on_report(
                model_backend.cost,
                now,
                wait_s=wait_s,
                share=share,
                device=report.others,
                execution_s=self._took_s,
            )
            model_backend.external_load = others if others.matters else None
            model_backend.stats.version += 1

    def _since(
        self, model_backends: Sequence[ModelBackend], load: ModelLoad, own: int, now: float
    ) -> float | None:
        """Executions of others that ran at once on average since the last report; None where that
        is not known."""
        before, ended = self._load, sum([model_backend.ended for model_backend in model_backends])
        seconds = now - self._at
        mine, own_before = ended - self._ended, self._own
        self._load, self._ended, self._own, self._at = load, ended, own, now
        if before is None or mine < 0:
            return None
        requests = load.requests - before.requests
        if requests < 0:
            return None  # it was restarted
        if not requests:
            return 0.0
        self._took_s = max(0.0, load.execution_s - before.execution_s) / requests
        executions = min(max(0.0, load.executions - before.executions), requests)
        # Which of those under way at either time it had counted cannot be told.
        theirs = max(0.0, requests - mine - max(own, own_before))
        return self._took_s * executions / seconds * theirs / requests


class ExternalLoad:
    """What all backends said the last time."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[Backend, dict[bytes, ModelReports]] = {}

    def on_report(
        self,
        backend: Backend,
        model_backends: Mapping[bytes, Sequence[ModelBackend]],
        report: LoadReport,
    ) -> None:
        """Have the model backends of a backend know what it says, by model."""
        before = self._seen.get(backend, {})
        seen = self._seen[backend] = {}
        for model, those in model_backends.items():
            load = report.models.get(model)
            if load is None:
                for model_backend in those:
                    model_backend.external_load = None
                continue
            own = max(
                sum([model_backend.in_flight for model_backend in those]),
                report.in_flight.get(model, 0),
            )
            seen[model] = before.get(model) or ModelReports()
            seen[model].on_report(those, load, report, own)

    def forget(self, backend: Backend) -> None:
        """A backend is gone, or was restarted."""
        self._seen.pop(backend, None)
