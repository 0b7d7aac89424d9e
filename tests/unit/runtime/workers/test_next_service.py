"""Starting the service that is to take over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lb.runtime.predecessor import VARIABLE
from lb.runtime.sockets import Listeners
from lb.runtime.workers.next_service import NextService, NotReplaced
from lb.settings.model import Settings

_HANGS = "import signal; signal.pause()"
_SERVES = (
    "import os, signal, socket\n"
    f"channel = socket.socket(fileno=int(os.environ['{VARIABLE}']))\n"
    "channel.send(b'{\"ready\": true}\\n')\n"
    "signal.pause()\n"
)
_MANY = 20_000
"""Backends with a drained model: more than the buffer of a socket holds."""
_READS = (
    "import os\n"
    "from lb.runtime.predecessor import find_predecessor\n"
    "before = find_predecessor(os.environ)\n"
    f"is_told = before.has_workers and len(before.operator['drained_models']) == {_MANY}\n"
    "before.tell('ready' if is_told else 'failed')\n"
    "before.channel.settimeout(None)\n"
    "before.channel.recv(100)\n"
)


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    made = Listeners(
        Settings.model_validate({"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "b:1"}]})
    )
    yield made
    made.close()


def next_service(
    program: str, listeners: Listeners, operator: Any, stop: asyncio.Event
) -> NextService:
    """One that runs a program, and tells of no sequences."""
    command = (sys.executable, "-c", program)
    return NextService(command, listeners, operator, stop, lambda *_: None)


@pytest.mark.parametrize("program", [_HANGS, _SERVES], ids=["starts", "serves"])
async def test_a_service_that_is_told_to_stop_hands_over_to_no_other(
    program: str, listeners: Listeners
) -> None:
    stop = asyncio.Event()
    stop.set()
    async with asyncio.timeout(30):
        with pytest.raises(NotReplaced, match="this service shuts down"):
            await next_service(program, listeners, {}, stop).start()


async def test_the_next_service_hears_what_operators_said_however_long_that_is(
    listeners: Listeners,
) -> None:
    operator = {"drained_models": {f"gpu-{number}": ["bert"] for number in range(_MANY)}}
    next_one = next_service(_READS, listeners, operator, asyncio.Event())
    async with asyncio.timeout(30):
        pid = await next_one.start()
    next_one.close()
    await asyncio.to_thread(os.waitpid, pid, 0)
