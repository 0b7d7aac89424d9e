"""How a process that serves sets up its interpreter: the event loop and threads."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Final

SWITCH_S: Final = 0.0005
"""How long a thread that merges answers may keep the interpreter: by default 5 ms, and the loop
waits for it at every single callback."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop  # optional: not on every platform

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
