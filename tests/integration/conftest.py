"""Integration tests whose module says `BOTH_LOOPS = True` run on asyncio's loop and on uvloop:
transports differ between them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from lb.simulator.process import Ports
from tests.fakes.http1_setup import Setup, http1_setup
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until


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


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """One simulated Triton."""
    log = tmp_path_factory.mktemp("simulator") / "simulator.log"
    process = ChildProcess((sys.executable, "-m", "lb.simulator"), log=log, env=ENVIRONMENT)
    try:
        wait_until(lambda: log.read_text().endswith("\n"), timeout_s=30, what="the simulator")
        yield Ports.from_json(log.read_text().splitlines()[0])
    finally:
        process.close()


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    """An HTTP/1.1 relay with a client, before a backend that answers every request."""
    async with http1_setup() as made:
        yield made
