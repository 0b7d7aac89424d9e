"""One clock for everything that is checked now and then: attempts, and connections.

Requests have no timers for these checks. A check names its interval; one timer of the event loop
is set for the check that is due first. The timer wheel would be too coarse: a hedge may be wanted
within 5 ms.

A scan checks a bounded number of subjects in each iteration of the loop. While no request is open
the monitor rests, unless a check has something left to watch; the next request wakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final, Protocol, TypeVar

from lb.net.iteration import IterationBudget
from lb.proxy.dispatch import Dispatcher

_AT_ONCE: Final = 200
"""Subjects of one scan in an iteration of the loop."""
_UNITS: Final = 2
"""What a check of one subject takes of the loop's budget: a system call, or a few look-ups."""
_EARLY_S: Final = 0.001
"""Event loops fire up to their clock's resolution early."""

Subject = TypeVar("Subject")


class Check(Protocol[Subject]):
    """Decides about one subject at a time. Times are monotonic seconds."""

    @property
    def may_rest(self) -> bool:
        """Whether it has nothing to watch once no request is open."""
        ...

    def interval_s(self, now: float) -> float:
        """Seconds from one scan to the next; infinite while the check is off."""
        ...

    def begin(self, now: float) -> Iterable[Subject]:
        """A scan begins. Gives what is to be checked, which does not change any more."""
        ...

    def check(self, subject: Subject, now: float) -> None:
        """Decide about one of them, and act. It may be over by now."""
        ...

    def end(self) -> None:
        """All were checked."""
        ...


class _Scan:
    """A check, and how far it has come."""

    def __init__(self, check: Check[Any]) -> None:
        self.check = check
        self.due = inf
        """When it is to begin; infinite while it is under way or not wanted."""
        self.left: Iterator[Any] | None = None
        """What is still to be checked; None while it is not under way."""


class Monitor:
    """Has the checks of both relays made when they are due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        iteration: IterationBudget,
        dispatcher: Dispatcher,
        checks: Iterable[Check[Any]],
    ) -> None:
        """
        Args:
            loop: has the timer.
            iteration: the budget of costly work, which the relays share.
            dispatcher: knows whether a request is open, and wakes the monitor.
            checks: to be made. Those that came first go first.
        """
        self._loop = loop
        self._iteration = iteration
        self._dispatcher = dispatcher
        self._scans = [_Scan(check) for check in checks]
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When the timer expires."""
        self._closed = False
        self.wake()

    def wake(self) -> None:
        """A request begins, or intervals have changed: plan anew what is not under way."""
        now = self._dispatcher.clock()
        self._dispatcher.placer.on_placing = None
        for scan in self._scans:
            if scan.left is None:
                self._plan(scan, now)
        self._arm(now)

    def close(self) -> None:
        """Check nothing any more."""
        self._closed = True
        self._dispatcher.placer.on_placing = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, scan: _Scan, now: float) -> None:
        """Say when a scan is due that is not under way. What is planned is never put off."""
        check = scan.check
        if self._dispatcher.open_exchanges or not check.may_rest:
            scan.due = min(scan.due, now + check.interval_s(now))

    def _arm(self, now: float) -> None:
        if self._closed:
            return
        due = min(scan.due for scan in self._scans)
        if not self._dispatcher.open_exchanges:
            self._dispatcher.placer.on_placing = self.wake
        if self._timer is not None:
            if due == self._due:
                return
            self._timer.cancel()
            self._timer = None
        if due < inf:
            self._due = due
            self._timer = self._loop.call_later(max(due - now, 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._dispatcher.clock()
        try:
            for scan in self._scans:
                if scan.due <= now + _EARLY_S:
                    scan.due = inf
                    self._begin(scan, now)
        finally:
            self._arm(self._dispatcher.clock())

    def _begin(self, scan: _Scan, now: float) -> None:
        try:
            scan.left = iter(scan.check.begin(now))
        except Exception as error:
            self._report(error)
            scan.left = iter(())
        self._advance(scan)

    def _go_on(self, scan: _Scan) -> None:
        """A later iteration of the loop has begun."""
        if not self._closed:
            try:
                self._advance(scan)
            finally:
                self._arm(self._dispatcher.clock())

    def _advance(self, scan: _Scan) -> None:
        """Check some of what is left, and the rest in later iterations of the loop."""
        check, left = scan.check, scan.left
        assert left is not None
        now = self._dispatcher.clock()
        some = tuple(islice(left, _AT_ONCE))
        for subject in some:
            try:
                check.check(subject, now)
            except Exception as error:  # a mistake with one must not end the checks of others
                self._report(error)
        if len(some) == _AT_ONCE:
            self._iteration.spend(_UNITS * _AT_ONCE)
            self._iteration.later(partial(self._go_on, scan))
            return
        scan.left = None
        try:
            check.end()
        except Exception as error:
            self._report(error)
        self._plan(scan, self._dispatcher.clock())

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a check failed", "exception": error})
