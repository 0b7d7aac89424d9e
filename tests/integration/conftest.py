"""Integration tests whose module says `BOTH_LOOPS = True` run on asyncio's loop and on uvloop:
transports differ between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which loops a test runs on."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    module = getattr(item, "module", None)
    if getattr(module, "BOTH_LOOPS", False):
        factories["uvloop"] = uvloop.new_event_loop
    return factories
