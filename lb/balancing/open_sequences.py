"""The open sequences of a model by backend, and which backend gets the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lb.balancing.step_latency import StepLatencies, StepLatency
from lb.balancing.tuning import TUNING
from lb.domain.backend import Backend

_IN_FLIGHT_WEIGHT: Final = TUNING.sequence_in_flight_weight

_ALIKE_RATIO: Final = TUNING.sequence_alike_ratio


class OpenModel:
    """The open sequences of one model."""

    __slots__ = ("by_backend", "latencies", "name", "number", "open")

    def __init__(self, name: bytes, number: int, latencies: StepLatencies) -> None:
        self.name = name
        self.latencies = latencies
        self.number = number
        """Stands for the name in keys. Never used again."""
        self.open = 0
        self.by_backend: dict[Backend, OpenSequences] = {}

    def row_key(self, sequence_id: int | str) -> bytes:
        """What tells its sequences from all others."""
        if isinstance(sequence_id, int):
            return b"%x i%x" % (self.number, sequence_id)
        return b"%x s%b" % (self.number, sequence_id.encode("utf-8", "surrogateescape"))


class OpenSequences:
    """The open sequences of one model on one backend, until the backend dies."""

    __slots__ = ("backend", "deaths", "latency", "model", "number", "open")

    def __init__(self, model: OpenModel, backend: Backend, number: int) -> None:
        self.model = model
        self.backend = backend
        self.number = number
        """Stands for it in rows."""
        self.deaths = backend.deaths
        self.open = 0
        self.latency: StepLatency = model.latencies.of(backend)

    @property
    def is_lost(self) -> bool:
        """Whether its backend has died since."""
        return self.deaths != self.backend.deaths


def open_on(found: Mapping[Backend, OpenSequences], backend: Backend) -> int:
    """How many sequences of a model run on a backend."""
    open_sequences = found.get(backend)
    return 0 if open_sequences is None or open_sequences.is_lost else open_sequences.open


def least_loaded(
    latencies: StepLatencies,
    found: Mapping[Backend, OpenSequences],
    candidates: Sequence[Backend],
    slots: int,
) -> Backend:
    """The backend with the fewest open sequences and requests in flight for its speed.

    A backend's load is (open sequences of the model + requests in flight / 4 + 1) x seconds of a
    step. Open sequences are work to come, requests in flight are work that is there. An unknown
    backend counts as fast as the fastest one, in proportion to its weight, and so does one that
    is hardly slower. Equal ones take turns.

    Args:
        latencies: of its model.
        found: open sequences of its model.
        candidates: not empty.
        slots: sequences of the model that one backend runs at once; 0: that is not known. A
            backend without a free slot comes last, since Triton would let the sequence wait.
    """
    known = latencies.known()
    unknown_s = min(
        [each_s * backend.spec.weight for backend, each_s in known.items()], default=1.0
    )
    alike_s = _ALIKE_RATIO * min(known.values(), default=0.0)

    def rank(backend: Backend) -> tuple[bool, float, int]:
        count = open_on(found, backend)
        step_s = known.get(backend, unknown_s * backend.inverse_weight)
        if step_s < alike_s:
            step_s = alike_s / _ALIKE_RATIO
        load = (count + _IN_FLIGHT_WEIGHT * backend.in_flight + 1.0) * step_s
        return 0 < slots <= count, load, backend.last_sequence

    return min(candidates, key=rank)
