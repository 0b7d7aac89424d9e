"""The timer wheel, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from lb.net.timers import SLOTS, TICK_S, TimerWheel
from tests.fakes.clock import FakeLoop

TURN_S = SLOTS * TICK_S


@pytest.mark.parametrize(
    "delay_s", [0.0, 0.001, TICK_S, 1.0, TURN_S - TICK_S, TURN_S, 1.7 * TURN_S, 620.0]
)
def test_a_timer_fires_once_at_its_time_or_up_to_a_tick_later(delay_s: float) -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    began = loop.time()
    fired: list[float] = []
    wheel.after(delay_s, lambda: fired.append(loop.time() - began))
    loop.advance(delay_s + 2 * TICK_S)
    assert len(fired) == 1
    assert delay_s - 0.001 <= fired[0] <= delay_s + TICK_S + 1e-6
    assert len(wheel) == loop.pending == 0
    loop.advance(3 * TURN_S)
    assert len(fired) == 1


def test_a_cancelled_timer_never_fires_and_is_gone() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []
    timer = wheel.after(1.0, lambda: fired.append(1))
    timer.cancel()
    timer.cancel()
    assert len(wheel) == 0
    loop.advance(5.0)
    assert fired == []


def test_a_cancelled_timer_keeps_nobody_alive() -> None:
    wheel = FakeLoop().wheel()

    class Holder:
        def __init__(self) -> None:
            self.timer = wheel.after(1.0, self.expire)

        def expire(self) -> None:
            """Nothing."""

    holder = Holder()
    gone = weakref.ref(holder)
    holder.timer.cancel()
    gc.disable()
    del holder
    gc.enable()
    assert gone() is None


def test_cancelling_what_has_fired_does_nothing() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    timer = wheel.after(0.1, lambda: None)
    loop.advance(1.0)
    timer.cancel()
    assert len(wheel) == 0


def test_timers_fire_in_the_order_of_their_times() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[float] = []
    delays = [5.0, 0.5, 25.0, 0.1, 11.0, 3.0]
    for delay_s in delays:
        wheel.after(delay_s, lambda delay_s=delay_s: fired.append(delay_s))  # type: ignore[misc]
    loop.advance(30.0)
    assert fired == sorted(delays)


def test_an_earlier_timer_is_not_held_up_by_a_later_one() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[str] = []
    wheel.after(9.0, lambda: fired.append("late"))
    loop.advance(0.5)
    wheel.after(0.1, lambda: fired.append("early"))
    loop.advance(0.2)
    assert fired == ["early"]
    loop.advance(9.0)
    assert fired == ["early", "late"]


def test_a_callback_may_start_and_cancel_timers() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        victim.cancel()
        wheel.after(0.0, lambda: fired.append("third"))

    wheel.after(0.1, first)
    victim = wheel.after(0.1, lambda: fired.append("victim"))
    loop.advance(0.2)
    assert fired == ["first", "third"]
    assert len(wheel) == 0


def test_one_failing_callback_does_not_stop_the_others() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []
    wheel.after(0.1, lambda: [].pop())
    wheel.after(0.1, lambda: fired.append(1))
    loop.advance(0.2)
    assert fired == [1]
    assert isinstance(loop.errors[0]["exception"], IndexError)


def test_what_is_called_again_and_again_goes_on_after_a_failure_until_the_wheel_closes() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    called: list[float] = []

    def fail() -> None:
        called.append(loop.time())
        raise ValueError

    wheel.every(1.0, fail)
    assert len(called) == 1
    loop.advance(3.5)
    assert 3 <= len(called) <= 4
    assert len(loop.errors) == len(called)
    wheel.close()
    loop.advance(3.5)
    assert len(loop.errors) == len(called) <= 4


def test_idle_wheel_does_not_tick() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    loop.advance(100.0)
    assert loop.wakes == 0
    wheel.after(5.0, lambda: None)
    loop.advance(100.0)
    assert loop.wakes <= 2
    wheel.after(620.0, lambda: None)
    loop.advance(700.0)
    assert loop.wakes < 2 + 2 + 620.0 / TURN_S * 2


def test_wheel_catches_up_after_the_loop_was_late() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []
    for number in range(100):
        wheel.after(number / 10, lambda number=number: fired.append(number))  # type: ignore[misc]
    loop.stall(60.0)
    loop.advance(0.0)
    assert fired == list(range(100))


def test_timers_due_together_leave_others_their_turn_of_the_loop() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []
    turns: list[int] = []
    timers = [
        wheel.after(1.0, lambda number=number: fired.append(number))  # type: ignore[misc]
        for number in range(1000)
    ]
    loop.stall(1.5)
    while len(wheel):
        before = len(fired)
        loop.turn()
        turns.append(len(fired) - before)
        for timer in timers[500:600]:
            timer.cancel()
    assert max(turns) <= 100
    assert len(turns) <= 100
    assert fired == [*range(500), *range(600, 1000)]
    assert loop.pending == 0


def test_long_timers_on_their_way_round_are_filed_anew_in_several_turns() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[float] = []
    began = loop.time()
    for _ in range(1000):
        wheel.after(1.5 * TURN_S, lambda: fired.append(loop.time() - began))
    loop.advance(TURN_S)
    assert loop.wakes >= 10
    loop.advance(TURN_S)
    assert len(fired) == 1000
    assert min(fired) >= 1.5 * TURN_S - 0.001
    assert max(fired) <= 1.5 * TURN_S + TICK_S + 1e-6


def test_timers_set_while_others_are_still_to_be_called_come_after_them() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[str] = []
    for _ in range(200):
        wheel.after(0.1, lambda: fired.append("old"))
    loop.stall(1.0)
    loop.turn()
    assert 0 < len(fired) < 200
    wheel.after(0.0, lambda: fired.append("new"))
    loop.advance(TICK_S)
    assert fired == ["old"] * 200 + ["new"]


def test_closing_stops_what_is_still_to_be_called() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []

    def fire() -> None:
        fired.append(1)
        if len(fired) == 10:
            wheel.close()

    for _ in range(1000):
        wheel.after(0.1, fire)
    loop.advance(1.0)
    assert len(fired) == 10
    assert len(wheel) == loop.pending == 0


def test_the_callers_look_at_the_clock_is_taken() -> None:
    loop = FakeLoop()
    timer = loop.wheel().after(1.0, lambda: None, loop.time() - 0.5)
    assert timer.due == loop.time() + 0.5


def test_closing_drops_everything() -> None:
    loop = FakeLoop()
    wheel = loop.wheel()
    fired: list[int] = []
    for delay_s in (0.1, 5.0, 100.0):
        wheel.after(delay_s, lambda: fired.append(1))
    wheel.close()
    assert len(wheel) == loop.pending == 0
    loop.advance(200.0)
    assert fired == []


async def test_it_runs_on_a_real_loop() -> None:
    loop = asyncio.get_running_loop()
    wheel = TimerWheel(loop)
    fired = asyncio.Event()
    began = loop.time()
    wheel.after(0.005, fired.set)
    async with asyncio.timeout(30):
        await fired.wait()
    assert loop.time() - began >= 0.004
    wheel.close()
