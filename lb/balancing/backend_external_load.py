"""What others do where a model backend is, as far as our measurements do not contain it.

What others do makes our requests there take longer, and that is learnt like anything else: a model
backend that is in use needs no telling. So a number of the backend's counts only as far as it has
changed since the model backend's cost was learnt: after others came, or left, where we had few
requests meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.balancing.cost import Cost
from lb.balancing.tuning import TUNING

_LATE: Final = TUNING.external_late_intervals
_LITTLE: Final = TUNING.external_negligible


class Trend:
    """A number of a backend's, and what it was while the cost of a model backend was learnt."""

    __slots__ = ("learnt", "now")

    def __init__(self) -> None:
        self.learnt: float | None = None
        """None: that is not known."""
        self.now = 0.0

    def on_report(self, value: float | None, part: float, *, is_learnt: bool) -> None:
        """It is that much now.

        Args:
            value: None where it cannot be told.
            part: of the cost that was learnt since it was told last.
            is_learnt: the cost was learnt by us, so what others did until now is part of it.
        """
        if value is None:
            self.learnt = None
            return
        self.now = value
        if not is_learnt:
            self.learnt = 0.0
        elif self.learnt is None:
            self.learnt = value
        else:
            self.learnt += part * (value - self.learnt)

    @property
    def more(self) -> float:
        """How much more it is."""
        return 0.0 if self.learnt is None else self.now - self.learnt

    def ratio(self, slowed: Callable[[float], float]) -> float:
        """By how much executions take longer than was learnt.

        Args:
            slowed: by how much they take longer if it is so much.
        """
        return 1.0 if self.learnt is None else slowed(self.now) / slowed(self.learnt)


def queueing_slowdown(share: float) -> float:
    """By how much a request takes longer for the executions that it meets, where others keep the
    instances busy for such a part of the time (the mean of M/D/1)."""
    free = max(1.0 - share, _LITTLE)
    return 1.0 + share / (2.0 * free)


def device_slowdown(share: float) -> float:
    """The same on a device that is shared: the two take turns while others use it."""
    return 1.0 + share


class BackendExternalLoad:
    """What others do where a model backend is."""

    __slots__ = ("_at", "_device", "_fresh_s", "_known", "_share", "_wait", "_wait_s", "factor")

    def __init__(self) -> None:
        self._at = 0.0
        self._fresh_s = 0.0
        """How long after that it is no wonder that nothing new was said."""
        self._wait_s = 0.0
        self.factor = 1.0
        """By how much executions took longer than was learnt when there were news."""
        self._known = 0
        """Executions that had been learnt from."""
        self._wait = Trend()
        self._share = Trend()
        self._device = Trend()

    def on_report(
        self,
        cost: Cost,
        now: float,
        *,
        wait_s: float,
        share: float | None,
        device: float | None,
        execution_s: float = 0.0,
    ) -> None:
        """Take over what a backend says.

        Args:
            cost: of the model backend, which it is held against.
            now: the time.
            wait_s: how long the requests of others keep the instances busy that wait there.
            share: part of the time in which others keep the instances busy; None: not known.
            device: the same of the device.
            execution_s: what an execution took there lately, 0 where that is not known: nothing
                ends sooner than that.
        """
        known = cost.count - cost.assumed
        part = min(1.0, max(0, known - self._known) / max(1, cost.weight))
        is_learnt = known > 0
        self._known = known
        self._wait.on_report(wait_s, part, is_learnt=is_learnt)
        self._share.on_report(share, part, is_learnt=is_learnt)
        self._device.on_report(device, part, is_learnt=is_learnt)
        if self._at:
            self._fresh_s = _LATE * (now - self._at)
        self._at = now
        self._wait_s = max(0.0, self._wait.more)
        share_factor = self._share.ratio(queueing_slowdown)
        if share_factor < 1.0 and cost.mean_s:
            share_factor = min(1.0, max(share_factor, execution_s / cost.mean_s))
        device_factor = self._device.ratio(device_slowdown)
        is_device = max(device_factor, 1 / device_factor) > max(share_factor, 1 / share_factor)
        self.factor = device_factor if is_device else share_factor

    @property
    def matters(self) -> bool:
        """Whether there is anything that our measurements do not contain."""
        return self._wait_s > 0.0 or abs(self.factor - 1.0) > _LITTLE

    def wait_s(self, now: float) -> float:
        """Seconds until what others had waiting there has been executed."""
        return max(0.0, self._wait_s - (now - self._at))

    def slower(self, now: float) -> float:
        """By how much an execution there takes longer than was learnt."""
        return self.factor if now - self._at <= self._fresh_s else 1.0
