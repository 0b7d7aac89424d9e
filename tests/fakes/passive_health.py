"""What passive health hears of the requests of a relay."""

from __future__ import annotations

from collections import Counter

from lb.domain.backend import Backend
from lb.domain.fault import Fault


class Told:
    """What passive health hears of."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def answered(self, backend: Backend, _model: bytes, _took_s: float, _now: float) -> None:
        self.answers[backend.name] += 1

    def failed(
        self, backend: Backend, _model: bytes, _fault: Fault, _took_s: float, _now: float
    ) -> None:
        self.failures[backend.name] += 1

    def abandoned(self, _backend: Backend, _model: bytes, _waited_s: float, _now: float) -> None:
        raise AssertionError("nobody leaves")


class Reports:
    """Notes each report: kind, backend, model, and the fault or the seconds to the millisecond."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, bytes, object]] = []

    def answered(self, backend: Backend, model: bytes, took_s: float, _now: float) -> None:
        backend.reports_due -= 1
        self.told.append(("answered", backend.name, model, round(took_s, 3)))

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, _took_s: float, _now: float
    ) -> None:
        self.told.append(("failed", backend.name, model, fault))

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, _now: float) -> None:
        self.told.append(("abandoned", backend.name, model, round(waited_s, 3)))
