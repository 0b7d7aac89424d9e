"""Finds the best lanes of very many without looking at all of them.

Three heaps: idle lanes by what an execution costs, lanes that are busy and have room, and those
that take no more, both by when one more usual execution would end. Whenever something begins or
ends in a lane its old entry becomes void, and a new one is made. All is sorted anew at times, since
penalties fade and slow starts proceed without an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, log
from typing import Final

from lb.balancing.lanes import OWN_SHARE, Lane

LARGE: Final = 12
"""Up to so many lanes all are looked at; here that costs about what the heaps cost."""
_CLASSES: Final = 10.0
"""Idle lanes whose cost differs by less than about a tenth take turns."""
_ALIKE: Final = 0.05
"""An entry may be wrong by that part of the time until then."""
_TRIES: Final = 8
"""Entries that may turn out not to suit, before all lanes are looked at."""
_RENEW_S: Final = 1.0
_LEAST_S: Final = 1e-6

Entry = tuple[float, int, int, Lane, float]
"""When or how much, the last pick, the lane's stamp, the lane, and until when that holds for sure:
as long as the lane is not overdue."""


class LaneIndex:
    """All lanes of a line."""

    __slots__ = ("_busy", "_full", "_idle", "_lanes", "_renewed_at", "_stamp", "count")

    def __init__(self, lanes: Iterable[Lane], now: float) -> None:
        self._lanes = tuple(lanes)
        self.count = len(self._lanes)
        self._idle: list[Entry] = []
        self._busy: list[Entry] = []
        self._full: list[Entry] = []
        self._renewed_at = now
        self._stamp = 0
        self.renew(now)

    def renew(self, now: float) -> None:
        """Sort all lanes anew."""
        self._renewed_at = now
        self._idle.clear()
        self._busy.clear()
        self._full.clear()
        for lane in self._lanes:
            heap, entry = self._entry(lane, now)
            if lane.may_try(now):
                # Nothing in flight there is expected to hold back one more request.
                took = max(lane.usual_s(now) / lane.backend.share, _LEAST_S)
                entry = (int(_CLASSES * log(took)), lane.last_pick, lane.stamp, lane, inf)
                heap = self._idle
            heap.append(entry)
        heapify(self._idle)
        heapify(self._busy)
        heapify(self._full)

    def outdated(self) -> None:
        """Something is not known any more: sort anew at the next look."""
        self._renewed_at = -inf

    def changed(self, lane: Lane, now: float) -> None:
        """Something began or ended in a lane."""
        heap, entry = self._entry(lane, now)
        heappush(heap, entry)
        if len(heap) > 4 * self.count:
            heap[:] = [each for each in heap if each[3].stamp == each[2]]
            heapify(heap)

    def _entry(self, lane: Lane, now: float) -> tuple[list[Entry], Entry]:
        """A new entry of a lane, which makes the old one void, and where it belongs."""
        self._stamp = lane.stamp = self._stamp + 1
        count = lane.in_flight
        can_take = not count or lane.can_take()
        if can_take and count < lane.instances:
            took = max(lane.usual_s(now) / lane.backend.share, _LEAST_S)
            return self._idle, (int(_CLASSES * log(took)), lane.last_pick, lane.stamp, lane, inf)
        heap = self._busy if can_take else self._full
        # HOT PATH (benchmarks/bench_schedule.py). `_end` is written out.
        end = lane.free_at(now) + OWN_SHARE * lane.usual_s(now)
        return heap, (end, lane.last_pick, lane.stamp, lane, lane.sure_until)

    @staticmethod
    def _end(lane: Lane, now: float) -> Entry:
        """How one more usual execution compares in a lane that is busy: about when it ends."""
        end = lane.free_at(now) + OWN_SHARE * lane.usual_s(now)
        return end, lane.last_pick, lane.stamp, lane, lane.sure_until

    def candidates(self, now: float, among: frozenset[Lane] | None) -> list[Lane] | None:
        """The best idle, the best busy and the best full lane, as far as there are any.

        Args:
            now: the time.
            among: lanes that may be given; None for all.

        Returns:
            None: look at all of them.
        """
        if now - self._renewed_at > _RENEW_S:
            self.renew(now)
        found = []
        for heap in (self._idle, self._busy, self._full):
            lane = self._first(heap, now, among)
            if lane is not None:
                found.append(lane)
            elif heap:
                return None
        return found

    def _first(self, heap: list[Entry], now: float, among: frozenset[Lane] | None) -> Lane | None:
        """The first lane of a heap that suits; None where too many do not, or there is none."""
        put_back: list[Entry] = []
        found: Lane | None = None
        tries = 0
        while heap and len(put_back) + tries < _TRIES:
            entry = heap[0]
            lane = entry[3]
            if entry[2] != lane.stamp:
                heappop(heap)
            elif (among is not None and lane not in among) or (
                heap is self._idle and lane.is_shut()
            ):
                put_back.append(heappop(heap))
            elif entry[4] < now and (later := self._end(lane, now))[0] - entry[0] > _ALIKE * (
                later[0] - now
            ):
                # It is overdue: it will end later than it was expected to.
                heapreplace(heap, later)
                tries += 1
            else:
                found = lane
                break
        for entry in put_back:
            heappush(heap, entry)
        return found
