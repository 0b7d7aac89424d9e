"""A pool in which some requests fail, without a loop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.fault import Fault
from lb.health.outlier_state import Phase
from lb.health.outliers import OutlierRules, Outliers

USUAL_S = 0.02


def backends(count: int) -> list[Backend]:
    """So many backends, named `b0` and so on."""
    return [
        Backend(BackendSpec(name=f"b{n}", http=Address("127.0.0.1", 9000 + n)))
        for n in range(count)
    ]


class FakePool:
    """Sends requests to backends in turn, as long as they are not out; a look each 100 ms."""

    def __init__(self, count: int = 3, *, rate: float = 300.0, seed: int = 1) -> None:
        self.backends = backends(count)
        self.outliers = Outliers(OutlierRules())
        self.now = 1000.0
        self.step_s = 1.0 / rate
        self.random = Random(seed)
        self.look_at = self.now
        self.ejections: list[tuple[Backend, bytes, Fault]] = []
        self.failures: dict[Backend, int] = dict.fromkeys(self.backends, 0)
        """By backend: since it was last asked for."""

    def eligible(self, model: bytes) -> list[Backend]:
        """Those that are not out; all where that would leave none."""
        found = [
            backend
            for backend in self.backends
            if not self.outliers.is_out(backend, self.now)
            and model not in self.outliers.ejected(backend)
        ]
        return found or self.backends

    def _target(self, model: bytes) -> Backend:
        trial = self.outliers.trials.get(model)
        if trial is not None and trial.is_open:
            trial.is_open = False
            return trial.backend
        return self.random.choice(self.eligible(model))

    def request(self, answer: Callable[[Backend], Fault | float], model: bytes = b"m") -> Backend:
        """One request: `answer` says how it fails, or how long its answer takes."""
        if self.now >= self.look_at:
            self.look_at = self.now + 0.1
            self.outliers.judge(self.backends, self.now)
        backend = self._target(model)
        found = answer(backend)
        self.now += self.step_s
        if isinstance(found, Fault):
            self.failures[backend] += 1
            self.outliers.failed(backend, model, found, 0.001, self.now)
        elif backend.reports_due:
            self.outliers.answered(backend, model, found, self.now)
        for move in self.outliers.take_moves():
            if move.phase is Phase.EJECTED:
                self.ejections.append((move.backend, move.model, move.reason))
        return backend

    def run(
        self, seconds: float, answer: Callable[[Backend], Fault | float], model: bytes = b"m"
    ) -> list[Backend]:
        """Requests for so long; returns who got them."""
        stop = self.now + seconds
        got = []
        while self.now < stop:
            got.append(self.request(answer, model))
        return got

    def good(self, _backend: Backend) -> float:
        """An answer as usual."""
        return USUAL_S * self.random.lognormvariate(0.0, 0.3)
