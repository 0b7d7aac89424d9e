"""One alarm for many deadlines."""

from __future__ import annotations

import asyncio
from math import inf

from lb.net.timers import TimerWheel
from lb.proxy.http1.deadline_timer import DeadlineTimer


async def test_alarm_rings_at_the_earliest_time_asked_for() -> None:
    loop = asyncio.get_running_loop()
    timers = TimerWheel(loop)
    rang = asyncio.Event()
    deadline_timer = DeadlineTimer(timers, loop.time, rang.set)
    started = loop.time()
    deadline_timer.expire_by(started + 600)
    deadline_timer.expire_by(started + 0.03)
    deadline_timer.expire_by(started + 300)
    assert deadline_timer.due == started + 0.03
    await asyncio.wait_for(rang.wait(), 30)
    assert loop.time() - started >= 0.02
    assert deadline_timer.due == inf
    timers.close()


async def test_time_that_has_passed_rings_soon() -> None:
    loop = asyncio.get_running_loop()
    timers = TimerWheel(loop)
    rang = asyncio.Event()
    DeadlineTimer(timers, loop.time, rang.set).expire_by(0.0)
    await asyncio.wait_for(rang.wait(), 30)
    timers.close()


async def test_cancelled_alarm_stays_silent() -> None:
    loop = asyncio.get_running_loop()
    timers = TimerWheel(loop)
    rung: list[int] = []
    deadline_timer = DeadlineTimer(timers, loop.time, lambda: rung.append(1))
    after = asyncio.Event()
    deadline_timer.expire_by(loop.time() + 0.02)
    deadline_timer.cancel()
    deadline_timer.cancel()
    deadline_timer.expire_by(loop.time())
    timers.after(0.1, after.set)
    await asyncio.wait_for(after.wait(), 30)
    assert rung == []
    timers.close()
