"""Time-outs of a process that stands still now and then."""

from __future__ import annotations

import pytest

from lb.net.timeouts import FairTimer
from tests.fakes.clock import FakeLoop


class Bench:
    """A time-out of a second."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.acted = 0
        self.timer = FairTimer(self.loop, 1.0, self._act)

    def _act(self) -> None:
        self.acted += 1

    def stand_still(self, for_s: float) -> None:
        """The process is stopped, goes on, and does what has fallen due meanwhile."""
        self.loop.stall(for_s)
        self.loop.advance(0.0)


def test_it_acts_once_after_its_time() -> None:
    bench = Bench()
    bench.loop.advance(0.99)
    assert bench.acted == 0
    bench.loop.advance(0.02)
    assert bench.acted == 1
    bench.loop.advance(10.0)
    assert bench.acted == 1


@pytest.mark.parametrize("for_s", [0.98, 1.0, 1.02, 1.5, 100.0])
def test_time_in_which_the_process_stands_still_does_not_count(for_s: float) -> None:
    bench = Bench()
    bench.stand_still(for_s)
    bench.loop.advance(0.7)
    assert bench.acted == 0
    bench.loop.advance(0.4)
    assert bench.acted == 1


def test_a_process_that_stands_still_all_the_time_comes_to_an_end() -> None:
    bench = Bench()
    for _ in range(7):
        bench.stand_still(0.5)
        assert bench.acted == 0
    bench.stand_still(0.5)
    assert bench.acted == 1


def test_a_timer_that_is_cancelled_never_acts() -> None:
    bench = Bench()
    bench.loop.advance(0.6)
    bench.timer.cancel()
    bench.loop.advance(10.0)
    assert (bench.acted, bench.loop.pending) == (0, 0)
