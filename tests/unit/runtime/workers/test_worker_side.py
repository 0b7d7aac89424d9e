"""The control process as a worker sees it."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from lb.runtime.interpreter import loop_factory
from lb.runtime.logs import Logs
from lb.runtime.predecessor import line
from lb.runtime.relay_host import RelayHost
from lb.runtime.workers import worker_side
from lb.runtime.workers.seat import Seat
from lb.runtime.workers.worker_side import WorkerSide
from lb.settings.model import Settings
from tests.wire.waiting import eventually


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


async def test_the_log_tells_failures_of_the_worker_from_a_control_process_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_side, "_AGAIN_S", 0.0)
    said = [b"nonsense\n", b"[]\n", line("pool", {}), b""]
    greeted: list[bytes] = []
    serving: list[asyncio.Task[None] | None] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        greeted.append(await reader.readline())
        if said:
            writer.write(said.pop(0))
        else:
            await over.wait()  # so that no connection is under way when the test ends
        writer.close()

    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")
    hub = listening.getsockname()[1:].decode()
    seat = SimpleNamespace(hub=hub, token="", index=0, start=1)
    side = WorkerSide(cast(Seat, seat), lambda *_: None)
    async with await asyncio.start_unix_server(serve, sock=listening):
        talking = asyncio.create_task(side.run())
        await eventually(lambda: len(greeted) >= 5)
        talking.cancel()
        over.set()
        await asyncio.gather(talking, *filter(None, serving), return_exceptions=True)
    (away,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert away.message == "control process is away"
    assert vars(away)["why"].startswith("it is not understood: ")
    (failed,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert failed.exc_info is not None


async def test_a_question_that_was_not_sent_is_asked_once_the_control_process_reads() -> None:
    ours, theirs = socket.socketpair()
    settings = Settings.model_validate({"listen": {"http": "127.0.0.1:0"}, "backends": []})
    logs = Logs(settings)
    side = WorkerSide(cast(Seat, SimpleNamespace()), lambda *_: None)
    host = RelayHost(settings, logs, side.make)
    side.attach(host)
    _, side._writer = await asyncio.open_unix_connection(sock=ours)
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=16 << 20)
    writer.transport.pause_reading()

    async def until_asked() -> None:
        while b'"sequences_asked"' not in await reader.readline():
            pass

    def is_asked() -> bool:
        side.tick()
        return asked.done()

    asked = asyncio.create_task(until_asked())
    try:
        side.tick()
        await eventually(lambda: not side._owes_sequences)
        side.say_applied("long" * (2 << 20))  # the control process reads none of it
        ask = host.relay.dispatcher.steps.table.ask
        assert ask is not None
        ask()
        side.say_applied("")  # what is to be said is said now, or not at all
        writer.transport.resume_reading()
        await eventually(is_asked)
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        writer.close()
        side._writer.close()
        await host.aclose()
        logs.close()
