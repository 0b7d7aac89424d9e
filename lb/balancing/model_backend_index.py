"""Finds the best model backends of very many without looking at all of them.

Three heaps: idle model backends by what an execution costs, model backends that are busy and have
room, and those that take no more, both by when one more usual execution would end. Whenever
something begins or ends in a model backend its old entry becomes void, and a new one is made. All
is sorted anew at times, since penalties fade and slow starts proceed without an event."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, log
from typing import Final

from lb.balancing.model_backend import OWN_EXECUTION_WEIGHT, ModelBackend

LARGE: Final = 12
"""Up to so many model backends all are looked at; here that costs about what the heaps cost."""
_CLASSES: Final = 10.0
"""Idle model backends whose cost differs by less than about a tenth take turns."""
_TIE_TOLERANCE: Final = 0.05
"""An entry may be wrong by that part of the time until then."""
_TRIES: Final = 8
"""Entries that may turn out not to suit, before all model backends are looked at."""
_RENEW_S: Final = 1.0
_LEAST_S: Final = 1e-6

Entry = tuple[float, int, int, ModelBackend, float]
"""When or how much, the last pick, the model backend's stamp, the model backend, and until when
that holds for sure: as long as the model backend is not overdue."""


class ModelBackendIndex:
    """All model backends of a model queue."""

    __slots__ = ("_busy", "_full", "_idle", "_model_backends", "_renewed_at", "_stamp", "count")

    def __init__(self, model_backends: Iterable[ModelBackend], now: float) -> None:
        self._model_backends = tuple(model_backends)
        self.count = len(self._model_backends)
        self._idle: list[Entry] = []
        self._busy: list[Entry] = []
        self._full: list[Entry] = []
        self._renewed_at = now
        self._stamp = 0
        self.renew(now)

    def renew(self, now: float) -> None:
        """Sort all model backends anew."""
        self._renewed_at = now
        self._idle.clear()
        self._busy.clear()
        self._full.clear()
        for model_backend in self._model_backends:
            heap, entry = self._entry(model_backend, now)
            if model_backend.may_try(now):
                # Nothing in flight there is expected to hold back one more request.
                took = max(model_backend.usual_s(now) / model_backend.backend.share, _LEAST_S)
                entry = (
                    int(_CLASSES * log(took)),
                    model_backend.last_pick,
                    model_backend.stamp,
                    model_backend,
                    inf,
                )
                heap = self._idle
            heap.append(entry)
        heapify(self._idle)
        heapify(self._busy)
        heapify(self._full)

    def outdated(self) -> None:
        """Something is not known any more: sort anew at the next look."""
        self._renewed_at = -inf

    def changed(self, model_backend: ModelBackend, now: float) -> None:
        """Something began or ended in a model backend."""
        heap, entry = self._entry(model_backend, now)
        heappush(heap, entry)
        if len(heap) > 4 * self.count:
            heap[:] = [each for each in heap if each[3].stamp == each[2]]
            heapify(heap)

    def _entry(self, model_backend: ModelBackend, now: float) -> tuple[list[Entry], Entry]:
        """A new entry of a model backend, which makes the old one void, and where it belongs."""
        self._stamp = model_backend.stamp = self._stamp + 1
        count = model_backend.in_flight
        can_take = not count or model_backend.can_take()
        if can_take and count < model_backend.instances:
            took = max(model_backend.usual_s(now) / model_backend.backend.share, _LEAST_S)
            return self._idle, (
                int(_CLASSES * log(took)),
                model_backend.last_pick,
                model_backend.stamp,
                model_backend,
                inf,
            )
        heap = self._busy if can_take else self._full
        # HOT PATH (benchmarks/bench_schedule.py). `_end` is written out.
        end = model_backend.free_at(now) + OWN_EXECUTION_WEIGHT * model_backend.usual_s(now)
        return heap, (
            end,
            model_backend.last_pick,
            model_backend.stamp,
            model_backend,
            model_backend.sure_until,
        )

    @staticmethod
    def _end(model_backend: ModelBackend, now: float) -> Entry:
        """How one more usual execution compares in a model backend that is busy: about when it
        ends."""
        end = model_backend.free_at(now) + OWN_EXECUTION_WEIGHT * model_backend.usual_s(now)
        return (
            end,
            model_backend.last_pick,
            model_backend.stamp,
            model_backend,
            model_backend.sure_until,
        )

    def candidates(
        self, now: float, among: frozenset[ModelBackend] | None
    ) -> list[ModelBackend] | None:
        """The best idle, the best busy and the best full model backend, as far as there are any.

        Args:
            now: the time.
            among: model backends that may be given; None for all.

        Returns:
            None: look at all of them.
        """
        if now - self._renewed_at > _RENEW_S:
            self.renew(now)
        found = []
        for heap in (self._idle, self._busy, self._full):
            model_backend = self._first(heap, now, among)
            if model_backend is not None:
                found.append(model_backend)
            elif heap:
                return None
        return found

    def _first(
        self, heap: list[Entry], now: float, among: frozenset[ModelBackend] | None
    ) -> ModelBackend | None:
        """The first model backend of a heap that suits; None where too many do not, or there is
        none."""
        put_back: list[Entry] = []
        found: ModelBackend | None = None
        tries = 0
        while heap and len(put_back) + tries < _TRIES:
            entry = heap[0]
            model_backend = entry[3]
            if entry[2] != model_backend.stamp:
                heappop(heap)
            elif (among is not None and model_backend not in among) or (
                heap is self._idle and model_backend.is_shut()
            ):
                put_back.append(heappop(heap))
            elif entry[4] < now and (later := self._end(model_backend, now))[0] - entry[
                0
            ] > _TIE_TOLERANCE * (later[0] - now):
                # It is overdue: it will end later than it was expected to.
                heapreplace(heap, later)
                tries += 1
            else:
                found = model_backend
                break
        for entry in put_back:
            heappush(heap, entry)
        return found
