"""What live traffic says of backends: told by the data plane, kept here, used for routes.

Implements `PassiveHealthSink`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lb.control.changes import ChangeLog, StateChange
from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.domain.names import readable
from lb.domain.trial import Trial
from lb.health.outlier_state import Phase
from lb.health.outliers import Move, OutlierRules, Outliers

_log = logging.getLogger(__name__)

_WHY: Final = {
    Fault.DEVICE: "its answers say that its device is broken",
    Fault.CONNECTION: "connections to it break",
    Fault.ERROR: "it fails where others do not",
    Fault.LATENCY: "it has become slower than others",
}


def _nobody(_now: float) -> None:
    """Nobody wants to know."""


def _no_one(_backend: Backend, _now: float) -> None:
    """Nobody wants to know."""


MIN_USABLE_SHARE: Final = 0.3
"""Share of the backends that must be left. If ejections would leave fewer, all backends are used:
signals of live traffic are then more likely wrong than right."""


class PassiveHealth:
    """The book of outliers, its log lines and counters."""

    def __init__(self, rules: OutlierRules | None, least: float = MIN_USABLE_SHARE) -> None:
        """Judge by `rules`; None judges nobody. `least` is the share that is always used."""
        self._outliers = Outliers(rules or OutlierRules())
        self._is_on = rules is not None
        self.least = least
        self.changed: Callable[[float], None] = _nobody
        """Told when other backends are out than before."""
        self.returned: Callable[[Backend, float], None] = _no_one
        """Told of a backend that was out as a whole and is not any more."""
        self.out: frozenset[Backend] = frozenset()
        """Ejected as a whole."""
        self.models: Mapping[Backend, frozenset[bytes]] = {}
        """Names of models for which a backend is ejected."""
        self.trials: Mapping[bytes, Trial] = {}
        """By the name of the model."""
        self.counts: dict[Backend, dict[str, int]] = {}
        """How often backends were ejected, by reason."""
        self.changes = ChangeLog()
        """Gets ejections, and their ends."""

    def configure(self, rules: OutlierRules | None, now: float) -> None:
        """Judge by other rules from now on."""
        self._is_on = rules is not None
        if rules is not None:
            self._outliers.rules = rules
        else:
            for backend in tuple(self.models):
                self._outliers.forget(backend)
        self._conclude(now)

    @property
    def rules(self) -> OutlierRules | None:
        """The rules in force; None: nobody is judged."""
        return self._outliers.rules if self._is_on else None

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is out."""
        return self._outliers.is_quiet

    def reasons(self) -> dict[Backend, str]:
        """For which models backends are out and why, for people."""
        found: dict[Backend, list[str]] = {}
        for backend, model, outlier_state in self._outliers.out():
            name = readable(model) or "requests without a model"
            found.setdefault(backend, []).append(
                f"{name}: {outlier_state.phase.value}, {_WHY[outlier_state.reason]}"
            )
        return {backend: "; ".join(reasons) for backend, reasons in found.items()}

    def removed(self, backend: Backend, now: float) -> None:
        """It is not in the pool any more."""
        self.counts.pop(backend, None)
        self.forget(backend, now)

    # News of live traffic

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """A good answer that `Backend.reports_due` asked for: we, or hedging."""
        if not self._is_on:
            backend.reports_due = max(backend.reports_due - 1, 0)
        elif self._outliers.answered(backend, model, took_s, now):
            self._conclude(now)

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """An attempt failed in a way that may be the backend's fault."""
        if self._is_on and self._outliers.failed(backend, model, fault, took_s, now):
            self._conclude(now)

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """A client did not wait for an answer any longer."""
        if self._is_on and self._outliers.abandoned(backend, model, waited_s, now):
            self._conclude(now)

    # News of the control plane

    def judge(self, backends: Iterable[Backend], now: float) -> None:
        """Let time pass; due every 100 ms or so."""
        if self._is_on and (self._outliers.judge(backends, now) or not self.is_quiet):
            self._conclude(now)

    def forget(self, backend: Backend, now: float) -> None:
        """It is gone: whoever answers next may be another process."""
        if self._outliers.forget(backend):
            self._conclude(now)

    def _conclude(self, now: float) -> None:
        outliers = self._outliers
        for move in outliers.take_moves():
            self._note(move, now)
        models: dict[Backend, frozenset[bytes]] = {}
        for backend, model, _ in outliers.out():
            models[backend] = models.get(backend, frozenset()) | {model}
        out = frozenset(backend for backend in models if outliers.is_out(backend, now))
        trials = outliers.trials
        if (out, models, trials) != (self.out, self.models, self.trials):
            for backend in self.out - out:
                self.returned(backend, now)
            self.out, self.models, self.trials = out, models, trials
            self.changed(now)

    def _note(self, move: Move, now: float) -> None:
        is_ejected = move.phase is Phase.EJECTED
        self.changes.add(
            StateChange(
                now,
                move.backend.name,
                readable(move.model) or "requests without a model",
                "",
                move.phase.value,
                _WHY[move.reason] if is_ejected else "its time out is over",
            )
        )
        fields: dict[str, object] = {"backend": move.backend.name, "model": readable(move.model)}
        if not is_ejected:
            _log.info(
                "backend on probation" if move.phase is Phase.PROBATION else "backend serves again",
                extra=fields,
            )
            return
        counts = self.counts.setdefault(move.backend, {})
        counts[move.reason.value] = counts.get(move.reason.value, 0) + 1
        fields |= {"reason": move.reason.value, "why": _WHY[move.reason]}
        _log.warning(
            "backend ejected",
            extra=fields | {"failures": move.failures, "seconds": round(move.seconds, 3)},
        )
