"""What a process of a service with workers is given at its start."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lb.runtime.predecessor import line
from lb.runtime.workers import seat as seat_module
from lb.runtime.workers.parent import VARIABLE
from lb.runtime.workers.seat import WORKER, Seat, SupervisorChannel, find_seat

_SETTINGS = {
    "listen": {"http": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}


def test_what_the_supervisor_says_beside_the_seat_is_left_for_its_channel(tmp_path: Path) -> None:
    """A service may be told to stop, or to give way, while one of its workers starts anew."""
    ours, theirs = socket.socketpair()
    seat = {
        "role": WORKER, "index": 1, "count": 2, "start": 3, "digest": "", "identity": "a",
        "hub": "", "token": "", "operator": {}, "is_next": False, "gave_way": False, "counts": [],
        "settings": _SETTINGS,
    }  # fmt: skip
    with ours, (tmp_path / "board").open("wb") as board:
        greeting = line("listeners", [])[:-2] + b', "hub": false}\n'
        socket.send_fds(ours, [greeting], [board.fileno()])
        ours.sendall(json.dumps(seat).encode() + b"\n" + line("stop", False))
        found = find_seat({VARIABLE: str(theirs.detach())})
        assert found is not None
        os.close(found.board)
        with found.channel:
            assert (found.role, found.index, found.start) == (WORKER, 1, 3)
            assert found.channel.recv(100) == line("stop", False)


async def test_the_supervisor_is_spared_what_it_could_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seat_module, "LINE_BYTES", 100)
    ours, theirs = socket.socketpair()
    with ours:
        channel = SupervisorChannel(cast(Seat, SimpleNamespace(channel=theirs)))
        ready = asyncio.Event()
        running = asyncio.create_task(channel.run(lambda *_: ready.set(), lambda: None))
        ours.sendall(line("reopen"))
        await ready.wait()
        channel.say("counts", "x" * 100)
        channel.say("ready")
        assert await asyncio.to_thread(ours.recv, 1000) == line("ready")
        ours.shutdown(socket.SHUT_RDWR)
        await running
        assert channel._writer is not None
        channel._writer.close()
    assert "too long for the supervisor" in caplog.text
