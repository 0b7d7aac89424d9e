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
