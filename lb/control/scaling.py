"""How many backends the load needs: the number that autoscalers follow.

    desired = demand / rate of one backend within the budget, rounded up

*Demand* is inferences a second: those that were answered, those that were refused because there was
no backend or no room, the growth of what waits here, and what waits beyond the usual, spread over
`DRAIN_S`, but at most as much again; the highest mean of three ticks in the last `HOLD_S`.

The *rate within the budget* is learnt. Each tick is a point of the curve of load and time: so many
inferences a second and backend, which took so long on average, queueing and retries included.
Points are gathered by their level, which is how many were under way for each backend (rate times
time, Little's law): unlike the rate it keeps growing where a server is at its end. Every level
remembers what it saw last for `MEMORY_S`. Where the time crosses the budget between neighbours,
the rate is on the line between them. Where the next level that is beyond the budget is far, the
rate is halfway between the best rate seen and the rate of that level. Where no level is beyond it,
a quarter more than the best rate seen may do, if the line through the time of a request alone and
the time at that rate stays within the budget, too. So a pool that is too large shrinks step by step
until the budget speaks, whatever servers do in parallel or in batches, and however many load
balancers share them: each sees its part of the rate and of the demand, and the ratio is the same.
Ticks in which much more came than was answered, or the other way round, are no points.

Time and counters are arguments; `ScalingSignal` alone looks at a clock. Times in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil, floor, log2, sqrt
from typing import Final, NamedTuple

from lb.domain.load import LoadSample
from lb.net.timers import TimerWheel
from lb.settings.standby import StandbySettings
from lb.telemetry.counts import ScalingStatus

TICK_S: Final = 5.0
"""How often to look."""
MEMORY_S: Final = 600.0
"""What a level remembers; older counts for less and less."""
HOLD_S: Final = 60.0
"""How long demand counts after it has gone down, and how long what was learnt must be wrong before
it is forgotten."""
DRAIN_S: Final = 30.0
"""In what time more backends are to get rid of what waits."""
IDLE_S: Final = 300.0
"""Without an inference for so long, no backend is needed."""
_MEAN_OF: Final = 3
"""Ticks."""
_STEP_UP: Final = 3.0
"""Standard deviations of a count by which a tick must exceed the ones before it to count alone: a
burst must not be averaged away."""
_PREDICTED_FROM: Final = 60
"""Samples among which one is looked for that is enough inferences old."""
_LEAST: Final = 20
"""Inferences that make a point of the curve."""
_STEP: Final = 1.25
"""How far beyond the best rate seen the rate is thought to go."""
_PER_OCTAVE: Final = 2
_FLAT: Final = 1.5
"""Times what a request takes alone: up to this, how many there are makes little difference."""
_SMALLER: Final = 0.8
"""How far below the lowest rate seen the rate is thought to be where all of them are too late."""
_NEAR: Final = 2
"""Levels between which the curve is a line."""
_AUTO: Final = 2.0
"""Budget where none is given, in times of a request alone."""
_UNEVEN: Final = 0.2
"""Difference between what came and what was answered that makes a tick no point, as a part."""


class Point(NamedTuple):
    """One level of the curve."""

    level: int
    """The logarithm of how many were under way for each backend."""
    rate: float
    """Inferences a second, by one backend of weight 1."""
    time: float
    """That they took on average."""


class _Level:
    """What was seen at one level."""

    __slots__ = ("count", "span", "work")

    def __init__(self) -> None:
        self.span = 0.0
        """Seconds, times the weight of the backends."""
        self.count = 0.0
        self.work = 0.0
        """Seconds that they took."""

    def add(self, seconds: float, weight: float, count: float, work: float) -> None:
        keep = max(0.0, 1.0 - seconds / MEMORY_S)
        self.span = self.span * keep + seconds * weight
        self.count = self.count * keep + count
        self.work = self.work * keep + work


class Curve:
    """How long inferences take by how many a backend does a second."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}

    def add(self, seconds: float, weight: float, count: int, work: float) -> None:
        """A point: `count` inferences of `work` seconds together were answered in `seconds`, by
        backends of this weight together."""
        under_way = work / (seconds * weight)
        if under_way > 0.0:
            number = floor(log2(under_way) * _PER_OCTAVE)
            level = self._levels.setdefault(number, _Level())
            level.add(seconds, weight, count, work)

    def points(self) -> list[Point]:
        """The levels, from idle to overloaded."""
        return [
            Point(number, level.count / level.span, level.work / level.count)
            for number, level in sorted(self._levels.items())
            if level.count >= _LEAST
        ]

    def meets(self, budget_s: float) -> bool:
        """Whether a budget was ever kept."""
        return any(point.time <= budget_s for point in self.points())

    def budget(self, wanted_s: float) -> float:
        """The mean time that is wanted; 0, as long as it is neither given nor known."""
        return wanted_s or _AUTO * min((point.time for point in self.points()), default=0.0)

    def rate_within(self, wanted_s: float) -> float | None:
        """Inferences a second of one backend of weight 1 that take `wanted_s` on average, or, with
        0, twice as long as alone. None: nothing was learnt yet."""
        points = self.points()
        if not points:
            return None
        budget = self.budget(wanted_s)
        alone = min(point.time for point in points)
        good = [point for point in points if point.time <= budget]
        if not good:
            # More backends may help, but those that are hardly busy show whether they do.
            return _SMALLER * max(point.rate for point in points if point.time <= _FLAT * alone)
        best = max(good, key=lambda point: point.rate)
        slope = (best.time - alone) / best.rate
        most = _STEP * best.rate
        if slope > 0.0:
            most = min(most, best.rate + (budget - best.time) / slope)
        # One that does less and takes longer is of a time when something was made up for.
        beyond = [point for point in points if point.level > best.level and point.rate > best.rate]
        if not beyond:
            return most
        late = beyond[0]
        part = (budget - best.time) / (late.time - best.time)
        crossing = best.rate + part * (late.rate - best.rate)
        if late.level - best.level <= _NEAR:
            return crossing
        return max(crossing, (best.rate + late.rate) / 2)

    def forget(self, rate: float) -> None:
        """Backends have become slower: so many a second are too many by now."""
        for number, level in tuple(self._levels.items()):
            if level.count >= rate * level.span:
                del self._levels[number]


class Scaling:
    """Follows the load of one process. `observe` is due every `TICK_S`."""

    def __init__(self, budget_s: float = 0.0) -> None:
        self.budget_s = budget_s
        """Mean time of an inference that is wanted; 0: twice what one takes alone."""
        self.curve = Curve()
        self._last: tuple[LoadSample, float] | None = None
        self._point: tuple[LoadSample, float] | None = None
        """Where the point of the curve began that is being made."""
        self._recent: deque[float] = deque(maxlen=_MEAN_OF)
        self._demands: deque[tuple[float, float]] = deque()
        """Time and demand of the last `HOLD_S`."""
        self._burst = 0.0
        """Inferences a second since the last tick, if these are many more than usual while the
        latency is above the budget."""
        self._usually_open = 0.0
        self._seen_at: float | None = None
        """When the last inference was there."""
        self.predicted_s = 0.0
        """Mean time that an inference which arrives now is predicted to take; 0: nothing arrives.
        It is what the latest ones took, or by Little's law what the queue takes, if that is more:
        time in a queue is seen only when it is over."""
        self._latest: deque[tuple[LoadSample, float]] = deque(maxlen=_PREDICTED_FROM)
        self._mean_weight = 1.0
        self._wrong_s = 0.0
        """How long less was done than was learnt, and more slowly."""

    @property
    def demand(self) -> float:
        """Inferences a second that backends are needed for."""
        return max((demand for _, demand in self._demands), default=0.0)

    @property
    def rate(self) -> float | None:
        """Inferences a second of one backend within the budget; None: nothing was learnt yet."""
        rate = self.curve.rate_within(self.budget_s)
        return None if rate is None else rate * self._mean_weight

    @property
    def is_idle(self) -> bool:
        """Whether no inference was there for `IDLE_S`."""
        if self._last is None or self._seen_at is None:
            return True
        return self._last[1] - self._seen_at > IDLE_S

    @property
    def needed_weight(self) -> float | None:
        """Weight of the backends that the latest demand needs within the budget; None: nothing was
        learnt yet. Who follows this decides how long a need that has gone counts."""
        if self.is_idle:
            return 0.0
        demand = max(self._demands[-1][1], self._burst) if self._demands else None
        if not demand:
            return demand
        rate = self.curve.rate_within(self.budget_s)
        return demand / rate if rate else None

    @property
    def latency(self) -> float:
        """What an inference that arrives now is predicted to take, as a multiple of the budget; 0:
        nothing arrives, or there is no budget yet."""
        budget = self.curve.budget(self.budget_s)
        return self.predicted_s / budget if budget else 0.0

    @property
    def desired(self) -> int:
        """How many backends, of the mean weight of those there are, the load needs."""
        if self.is_idle:
            return 0
        rate = self.rate
        return 1 if not rate else max(1, ceil(self.demand / rate - 1e-9))

    def observe(self, sample: LoadSample, now: float) -> None:
        """Take notice of how things are.

        Args:
            sample: counters that only grow, and gauges.
            now: monotonic seconds.
        """
        if self._last is None:
            self._last = self._point = (sample, now)
            return
        before, at = self._last
        seconds = now - at
        if seconds <= 0.0:
            return
        self._last = (sample, now)
        if sample.backends:
            self._mean_weight = sample.weight / sample.backends
        came = _came(sample, before)
        if came:
            self._seen_at = now
        waiting = min(self._waiting(sample, before) / DRAIN_S, came / seconds)
        if self._is_burst(came, seconds):
            self._recent.clear()
        self._recent.append(came / seconds + waiting)
        self._demands.append((now, sum(self._recent) / len(self._recent)))
        while now - self._demands[0][0] >= HOLD_S:
            self._demands.popleft()
        self._learn(sample, before, now)

    def predict(self, sample: LoadSample, now: float) -> None:
        """Set `predicted_s` by the shortest recent time that has enough inferences. If that is
        beyond the budget, see a burst before the tick is over.

        Args:
            sample: as for `observe`; more often, where somebody wants to know.
            now: monotonic seconds.
        """
        self.predicted_s = self._burst = 0.0
        for before, at in reversed(self._latest):
            answered = sample.answered - before.answered
            if answered >= _LEAST or (answered > 0 and before is self._latest[0][0]):
                took_s = (sample.seconds - before.seconds) / answered
                alone_s = min((point.time for point in self.curve.points()), default=0.0)
                queue_s = sample.queued * (now - at) / answered
                self.predicted_s = max(took_s, alone_s + queue_s if sample.queued else 0.0)
                break
        self._latest.append((sample, now))
        if self.latency > 1.0 and self._last is not None and now > self._last[1]:
            came, seconds = _came(sample, self._last[0]), now - self._last[1]
            if came >= _LEAST and self._is_burst(came, seconds):
                self._burst = came / seconds

    def _is_burst(self, came: int, seconds: float) -> bool:
        """Whether so many more came than in the ticks before that they count alone."""
        if not self._recent:
            return False
        usual = sum(self._recent) / len(self._recent) * seconds
        return came > usual + _STEP_UP * sqrt(usual)

    def _waiting(self, sample: LoadSample, before: LoadSample) -> float:
        """How many more than usual are under way while they take too long."""
        answered = sample.answered - before.answered
        time = (sample.seconds - before.seconds) / answered if answered else 0.0
        budget = self.curve.budget(self.budget_s)
        if not budget or (sample.weight > 0.0 and time <= budget):
            self._usually_open = float(sample.open)
        return max(0.0, sample.open - self._usually_open)

    def _learn(self, sample: LoadSample, before: LoadSample, now: float) -> None:
        assert self._point is not None
        first, began = self._point
        if sample.weight != before.weight or not sample.weight:
            self._point = (sample, now)  # a point is about one number of backends
            return
        count, seconds = sample.answered - first.answered, now - began
        if count < _LEAST:
            return
        self._point = (sample, now)
        uneven = abs(sample.open - first.open)
        if uneven > _UNEVEN * count and self.curve.points():
            return
        if count:
            time = (sample.seconds - first.seconds) / count
            self._doubt(count / seconds / sample.weight, time, seconds)
            self.curve.add(seconds, sample.weight, count, sample.seconds - first.seconds)

    def _doubt(self, rate: float, time: float, seconds: float) -> None:
        """Compare what is seen with what was learnt."""
        learnt = self.curve.rate_within(self.budget_s)
        budget = self.curve.budget(self.budget_s)
        if learnt is None or time <= budget or rate > learnt or not self.curve.meets(budget):
            self._wrong_s = 0.0
            return
        self._wrong_s += seconds
        if self._wrong_s >= HOLD_S:
            self._wrong_s = 0.0
            self.curve.forget(rate)


def _came(sample: LoadSample, before: LoadSample) -> int:
    """Inferences that arrived between two samples."""
    came = sample.answered - before.answered + sample.refused - before.refused
    return came + max(0, sample.open - before.open)


class ScalingSignal:
    """The number of backends that the load of this process needs."""

    def __init__(self, sample: Callable[[], LoadSample]) -> None:
        """
        Args:
            sample: reads the counters.
        """
        self.options = StandbySettings()
        """The options in force."""
        self.scaling = Scaling()
        self._sample = sample

    def configure(self, options: StandbySettings) -> None:
        """Go by other options from now on."""
        self.options = options
        self.scaling.budget_s = options.latency

    def keep(self, timers: TimerWheel, clock: Callable[[], float]) -> None:
        """Look every few seconds from now on, until the timers are closed."""
        timers.every(TICK_S, lambda: self.scaling.observe(self._sample(), clock()))

    def predict(self, now: float) -> Scaling:
        """Predict what an inference takes that arrives now."""
        self.scaling.predict(self._sample(), now)
        return self.scaling

    def status(self) -> ScalingStatus:
        """For the metrics."""
        scaling = self.scaling
        return ScalingStatus(scaling.desired, scaling.demand, scaling.rate)
