"""Starting the service that is to take over."""

from __future__ import annotations

import asyncio
import sys

import pytest

from lb.runtime.predecessor import VARIABLE
from lb.runtime.sockets import Listeners
from lb.runtime.workers.next_service import NotReplaced, start_next
from lb.settings.model import Settings

_HANGS = "import signal; signal.pause()"
_SERVES = (
    "import os, signal, socket\n"
    f"channel = socket.socket(fileno=int(os.environ['{VARIABLE}']))\n"
    "channel.send(b'{\"ready\": true}\\n')\n"
    "signal.pause()\n"
)


@pytest.mark.parametrize("program", [_HANGS, _SERVES], ids=["starts", "serves"])
async def test_a_service_that_is_told_to_stop_hands_over_to_no_other(program: str) -> None:
    listeners = Listeners(
        Settings.model_validate({"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "b:1"}]})
    )
    stop = asyncio.Event()
    stop.set()
    try:
        async with asyncio.timeout(30):
            with pytest.raises(NotReplaced, match="this service shuts down"):
                await start_next((sys.executable, "-c", program), listeners, {}, stop)
    finally:
        listeners.close()
