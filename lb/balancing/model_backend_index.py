"""An index that finds the best of very many model backends without a comparison of all.

It has three heaps: idle model backends by the cost of an execution, busy ones that have room, and
full ones, both by the time at which one more typical execution would end. Whenever a request begins
or ends at a model backend its old entry becomes void, and a new one is made. All heaps are made
anew at times, since penalties fade and slow starts proceed without an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, log
from typing import Final

from lb.balancing.model_backend import OWN_EXECUTION_WEIGHT, ModelBackend
from lb.balancing.tuning import TUNING

LARGE: Final = TUNING.index_above
_CLASSES: Final = TUNING.index_classes
_TRIES: Final = 8
"""After this many entries that do not suit all model backends are compared."""
_RENEW_S: Final = TUNING.index_renew_s
_LEAST_S: Final = 1e-6
"""Shorter executions count as this many seconds, so that they have a logarithm."""

Entry = tuple[float, int, int, ModelBackend, float]
"""The cost class or the end, the last pick, the stamp, the model backend, and until when the entry
holds for sure: as long as the requests in flight are not overdue."""


class ModelBackendIndex:
    """An index of all model backends of a model queue."""

    __slots__ = (
        "_busy", "_full", "_idle", "_model_backends", "_renewed_at", "_stamp", "count", "in_flight",
    )  # fmt: skip

    def __init__(self, model_backends: Iterable[ModelBackend], now: float) -> None:
        self._model_backends = tuple(model_backends)
        self.count = len(self._model_backends)
        self.in_flight = sum([each.load.in_flight for each in self._model_backends])
        """Requests in flight at all of them. Its owner counts those that begin and end."""
        self._idle: list[Entry] = []
        self._busy: list[Entry] = []
        self._full: list[Entry] = []
        self._renewed_at = now
        self._stamp = 0
        self.renew(now)

    def renew(self, now: float) -> None:
        """Make all heaps anew."""
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
        """Note that something is not known any more: make the heaps anew before their next use."""
        self._renewed_at = -inf

    def changed(self, model_backend: ModelBackend, now: float) -> None:
        """Note that a request began or ended at a model backend."""
        heap, entry = self._entry(model_backend, now)
        if heap and heap[0][2] != heap[0][3].stamp:
            heapreplace(heap, entry)  # the first one is void
        else:
            heappush(heap, entry)
        if len(heap) > 4 * self.count:
            heap[:] = [each for each in heap if each[3].stamp == each[2]]
            heapify(heap)

    def _entry(self, model_backend: ModelBackend, now: float) -> tuple[list[Entry], Entry]:
        """Make a new entry of a model backend, which makes the old one void, and find its heap."""
        self._stamp = model_backend.stamp = self._stamp + 1
        count = model_backend.load.in_flight
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
        free_at, sure_until = model_backend.free_times(now)
        end = free_at + OWN_EXECUTION_WEIGHT * model_backend.usual_s(now)
        return heap, (
            end,
            model_backend.last_pick,
            model_backend.stamp,
            model_backend,
            sure_until,
        )

    @staticmethod
    def _end(model_backend: ModelBackend, now: float) -> Entry:
        """Make the entry of a busy model backend: about when one more typical execution ends."""
        free_at, sure_until = model_backend.free_times(now)
        end = free_at + OWN_EXECUTION_WEIGHT * model_backend.usual_s(now)
        return (
            end,
            model_backend.last_pick,
            model_backend.stamp,
            model_backend,
            sure_until,
        )

    def idle(self, now: float, among: frozenset[ModelBackend] | None) -> ModelBackend | None:
        """Find the best idle model backend.

        Args:
            now: the time.
            among: model backends that may be given; None for all.

        Returns:
            None: there is none, or too many do not suit.
        """
        if now - self._renewed_at > _RENEW_S:
            self.renew(now)
        return self._first(self._idle, now, among)

    def candidates(
        self, now: float, among: frozenset[ModelBackend] | None
    ) -> list[ModelBackend] | None:
        """Find the best idle, the best busy and the best full model backend, where there are any.

        Args:
            now: the time.
            among: model backends that may be given; None for all.

        Returns:
            None: compare all of them.
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
        """Find the first model backend of a heap that suits. None: there is none, or too many do
        not."""
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
            elif entry[4] < now and (later := self._end(model_backend, now))[0] > entry[0]:
                # It is overdue: it will end later than it was expected to.
                heapreplace(heap, later)
                tries += 1
            else:
                found = model_backend
                break
        for entry in put_back:
            heappush(heap, entry)
        return found
