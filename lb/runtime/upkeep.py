"""What goes on in a process beside requests: the lag of its event loop, and files that may
change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lb.runtime.configuration_file import ConfigurationWatch
from lb.runtime.relay_host import RelayHost

_LAG_TICK_S: Final = 0.1
_LOOK_S: Final = 0.9
"""How often files are looked at that may be replaced; a change counts once it was seen twice."""


async def watch_lag(host: RelayHost) -> None:
    """Measure how late the event loop is, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_TICK_S
        await asyncio.sleep(_LAG_TICK_S)
        host.loop_lag.observe(loop.time() - due)


async def watch_files(host: RelayHost, watches: Sequence[ConfigurationWatch] = ()) -> None:
    """Follow certificates and tokens, and further files."""
    while True:
        await asyncio.sleep(_LOOK_S)
        for each in (*host.security.watch, host.access.tokens, *watches):
            host.parts.files.follow(each)
