"""The process started with standard input, output or error closed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.integration.test_upgrade import ask

_LIMIT_S = 60.0
CLOSED = [(True, False, False), (False, True, False), (False, False, True), (True, True, True)]


class Quiet:
    """`triton-lb serve` that may have no log."""

    def __init__(self, folder: Path, triton: Ports, closed: tuple[bool, ...]) -> None:
        self.http, self.other = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._path, self._pid_file = folder / "config.yaml", folder / "lb.pid"
        self._config: dict[str, Any] = {
            "listen": {"http": self.http, "grpc": self.other},
            "backends": [{"name": "a", "http": f"127.0.0.1:{triton.http_port}"}],
            "access_log": {"mode": "all", "path": "-"},
        }
        self.write()
        streams = zip(("0<&-", "1>&-", "2>&-"), closed, strict=True)
        script = f'exec "$@" {" ".join(text for text, is_closed in streams if is_closed)}'
        serve = (sys.executable, "-m", "lb", "serve", "--config", str(self._path))
        command = ("sh", "-c", script, "sh", *serve, "--pid-file", str(self._pid_file))
        self.process = ChildProcess(command, log=folder / "serve.log", env=ENVIRONMENT)

    def write(self, **changes: Any) -> None:
        """Write another configuration."""
        self._path.write_text(json.dumps(self._config | changes))

    def without_other(self) -> None:
        """Close a listener by a reload."""
        self.write(listen={"http": self.http})
        self.process.signal(signal.SIGHUP)
        host, port = self.other.split(":")

        def is_closed() -> bool:
            with socket.socket() as client:
                return client.connect_ex((host, int(port))) != 0

        wait_until(is_closed, timeout_s=_LIMIT_S, what="the end of the listener")

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text()) if self._pid_file.exists() else 0

    def streams(self) -> list[str]:
        """What the three streams of the process that serves are."""
        return [os.readlink(f"/proc/{self.pid}/fd/{number}") for number in range(3)]


@pytest.fixture
def quiet(tmp_path: Path, triton: Ports, request: pytest.FixtureRequest) -> Iterator[Quiet]:
    made = Quiet(tmp_path, triton, request.param)
    wait_until(lambda: made.pid != 0, timeout_s=_LIMIT_S, what="the process")
    yield made
    made.process.close()


@pytest.mark.parametrize("quiet", CLOSED, indirect=True)
def test_closed_streams_never_become_sockets(quiet: Quiet, request: pytest.FixtureRequest) -> None:
    closed = request.node.callspec.params["quiet"]
    for target, is_closed in zip(quiet.streams(), closed, strict=True):
        assert not is_closed or target == "/dev/null"
    assert not [target for target in quiet.streams() if target.startswith("socket:")]
    quiet.without_other()
    clients = [socket.create_connection(tuple(quiet.http.split(":"))) for _ in range(8)]
    try:
        assert ask(quiet.http, "GET", "/v2/models/simple")[0] == 200
        quiet.write(listen={"http": quiet.http}, backends=[])
        quiet.process.signal(signal.SIGHUP)  # refused, and logged
        quiet.process.signal(signal.SIGUSR1)
        assert ask(quiet.http, "GET", "/v2/models/simple")[0] == 200
        for client in clients:
            client.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                client.recv(1)
    finally:
        for client in clients:
            client.close()
    quiet.process.signal(signal.SIGTERM)
    assert quiet.process.wait(_LIMIT_S) == 0
    assert "Traceback" not in quiet.process.log.read_text()


@pytest.mark.parametrize("quiet", [(True, True, True)], indirect=True)
def test_the_successor_has_them_as_well(quiet: Quiet) -> None:
    first = quiet.pid
    quiet.process.signal(signal.SIGUSR2)
    wait_until(lambda: quiet.pid not in (0, first), timeout_s=_LIMIT_S, what="the next process")
    assert quiet.streams() == ["/dev/null"] * 3


@pytest.mark.parametrize("command", ["version", "check {path}", "serve --config /nowhere"])
def test_other_commands_only_lose_their_text(tmp_path: Path, command: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"listen": {"http": "a:1"}, "backends": [{"http": "a:2"}]}))
    arguments = command.format(path=path).split()
    done = subprocess.run(
        ("sh", "-c", 'exec "$@" 1>&-', "sh", sys.executable, "-m", "lb", *arguments),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ("serve" in command)
    assert "Traceback" not in done.stderr
