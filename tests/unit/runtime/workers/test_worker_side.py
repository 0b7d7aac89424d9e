"""The control process as a worker sees it."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

from lb.runtime.interpreter import loop_factory
from lb.runtime.workers.seat import Seat
from lb.runtime.workers.worker_side import WorkerSide


def test_a_connection_that_was_just_lost_takes_nothing() -> None:
    """The control process may be killed while it reads nothing. A worker that fails to tell it
    something must not give up telling."""

    async def lose() -> None:
        ours, theirs = socket.socketpair()
        side = WorkerSide(cast(Seat, SimpleNamespace()), lambda *_: None)
        with theirs:
            _, side._writer = await asyncio.open_unix_connection(sock=ours)
            side._writer.transport.abort()
            await side._writer.wait_closed()
            side.say_applied("digest")
            assert theirs.recv(1) == b""

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(lose())
