"""What a process of a service with workers is given at its start."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from lb.runtime.predecessor import line
from lb.runtime.workers.parent import VARIABLE
from lb.runtime.workers.seat import WORKER, find_seat

_SETTINGS = {
    "listen": {"http": "127.0.0.1:0"},
    "backends": [{"name": "a", "http": "127.0.0.1:1"}],
}


def test_what_the_supervisor_says_beside_the_seat_is_left_for_its_channel(tmp_path: Path) -> None:
    """A service may be told to stop, or to give way, while one of its workers starts anew."""
    ours, theirs = socket.socketpair()
    seat = {
        "role": WORKER, "index": 1, "count": 2, "start": 3, "digest": "", "identity": "a",
        "hub": "", "token": "", "operator": {}, "counts": [], "settings": _SETTINGS,
    }  # fmt: skip
    with ours, (tmp_path / "board").open("wb") as board:
        greeting = line("listeners", [])[:-2] + b', "hub": false, "board": true}\n'
        socket.send_fds(ours, [greeting], [board.fileno()])
        ours.sendall(json.dumps(seat).encode() + b"\n" + line("stop", False))
        found = find_seat({VARIABLE: str(theirs.detach())})
        assert found is not None
        os.close(found.board)
        with found.channel:
            assert (found.role, found.index, found.start) == (WORKER, 1, 3)
            assert found.channel.recv(100) == line("stop", False)
