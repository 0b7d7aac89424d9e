"""What goes on in a process beside requests: what is done at each tick, memory that is not needed,
and files that may change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from lb.net.threads import NoThread, in_thread
from lb.proxy.split import longest_batch
from lb.runtime.configuration_file import ConfigurationWatch
from lb.runtime.limits import FreedMemory, give_back_freed_memory
from lb.runtime.relay_host import RelayHost

_TICK_S: Final = 0.1
_LOOK_S: Final = 0.9
"""How often files are looked at that may be replaced; a change counts once it was seen twice."""
_MEMORY_LOOK_S: Final = 10.0
"""How often freed memory is looked at; it is given back once it was not needed twice."""


async def run_ticks(host: RelayHost, *calls: Callable[[], None]) -> None:
    """Measure ten times a second how late the event loop is, and do what else is done so often.

    With timers of their own, the calls would wake an idle process once each.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _TICK_S
        await asyncio.sleep(_TICK_S)
        host.loop_lag.observe(loop.time() - due)
        for call in calls:
            call()


async def watch_files(host: RelayHost, watches: Sequence[ConfigurationWatch] = ()) -> None:
    """Follow certificates and tokens, and further files."""
    while True:
        await asyncio.sleep(_LOOK_S)
        for each in (*host.security.watch, host.access.tokens, *watches):
            host.parts.files.follow(each)


async def give_memory_back(host: RelayHost) -> None:
    """Give memory back to the system after each load that needed much."""
    freed = FreedMemory()
    while True:
        await asyncio.sleep(_MEMORY_LOOK_S)
        if freed.is_due(host.relay.memory_budget.held):
            try:
                await in_thread(give_back_freed_memory, longest_batch(host.settings))
            except NoThread:
                continue
            freed.given_back()
