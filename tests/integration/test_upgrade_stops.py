"""Stops, kills and crashes in every phase of an upgrade: one process serves where one should, and
none is left where none should."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lb.runtime.predecessor import VARIABLE, line
from lb.simulator.process import Ports
from tests.fakes.probe_counter import holding_successors
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until
from tests.fakes.serving import Serving
from tests.integration.test_upgrade import ask, begin, config, holding, serving

__all__ = ["config", "holding", "serving"]

_LIMIT_S = 60.0
"""Longer than any step takes on a machine that is busy with other work."""


def started(serving: Serving) -> int:
    """The id of the next process, once it runs."""
    serving.until_logged(" next process started ")
    found = re.findall(r"next process started .*pid=(\d+)", serving.log)
    return int(found[-1])


def until_alone(serving: Serving, pid: int) -> None:
    """Wait until this process runs, and no other one of the service."""
    wait_until(lambda: serving.process.group == [pid], timeout_s=_LIMIT_S, what=f"{pid} alone")


def check_serves(serving: Serving, pid: int) -> None:
    """This process serves, alone, and says so in its file."""
    until_alone(serving, pid)
    assert serving.pid == pid
    assert ask(serving.until_serving()["http"], "GET", "/v2/models/simple")[0] == 200


def check_nothing_is_left(serving: Serving) -> None:
    """All processes have ended, and nothing is left of their sockets and files."""
    wait_until(lambda: serving.process.group == [], timeout_s=_LIMIT_S, what="the end of all")
    host, port = serving.until_serving()["http"].split(":")
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect((host, int(port)))
    assert serving.pid == 0
    assert not (serving.path.parent / "grpc.sock").exists()
    assert "Traceback" not in serving.log


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_a_stop_at_any_time_ends_both(serving: Serving, delay_s: float) -> None:
    serving.until_serving()
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    time.sleep(delay_s)  # where that falls does not matter: every phase is right
    os.kill(first, signal.SIGTERM)
    assert serving.process.wait(_LIMIT_S) == 0
    check_nothing_is_left(serving)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        (" next process started ", signal.SIGTERM),
        (" next process is ready ", signal.SIGINT),
        (" giving way ", signal.SIGTERM),
    ],
)
def test_a_stop_of_the_old_process_ends_both(
    serving: Serving, holding: threading.Event, phase: str, number: signal.Signals
) -> None:
    client = begin(serving.until_serving())
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(phase)
    os.kill(first, number)
    serving.until_logged(" stopping ")
    holding.set()
    assert client.getresponse().status == 200
    client.close()
    assert serving.process.wait(_LIMIT_S) == 0
    check_nothing_is_left(serving)


def test_a_stop_before_an_upgrade_leaves_no_next_process(serving: Serving) -> None:
    serving.until_serving()
    first = serving.pid
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGUSR2)
    assert serving.process.wait(_LIMIT_S) == 0
    check_nothing_is_left(serving)


def test_a_stop_while_the_command_waits_is_its_answer(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()
    first = serving.pid
    client = http.client.HTTPConnection(addresses["admin"], timeout=_LIMIT_S)
    with holding_successors(serving, config):
        client.request("POST", "/api/v1/upgrade")
        os.kill(started(serving), signal.SIGSTOP)  # it never becomes ready
        os.kill(first, signal.SIGTERM)
    answer = client.getresponse()
    assert json.loads(answer.read())["error"] == "upgrade failed"
    client.close()
    assert serving.process.wait(_LIMIT_S) == 0
    check_nothing_is_left(serving)


def test_a_stop_of_the_old_process_that_still_answers_ends_both_in_order(
    serving: Serving, holding: threading.Event
) -> None:
    client = begin(serving.until_serving())
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ")
    second = serving.pid
    os.kill(first, signal.SIGTERM)
    wait_until(lambda: serving.process.group == [first], timeout_s=_LIMIT_S, what="the successor")
    assert second != first
    holding.set()
    assert client.getresponse().status == 200
    client.close()
    assert serving.process.wait(_LIMIT_S) == 0
    assert "were cut" not in serving.log


def test_a_stop_of_the_successor_ends_the_old_process_with_its_last_answer(
    serving: Serving, holding: threading.Event
) -> None:
    addresses = serving.until_serving()
    client = begin(addresses)
    idle = socket.create_connection(("127.0.0.1", int(addresses["http"].split(":")[1])))
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ")
    serving.signal(signal.SIGTERM)
    # Nobody else serves this client, so it need not wait for its next request.
    idle.settimeout(_LIMIT_S)
    assert idle.recv(1) == b""
    idle.close()
    assert first in serving.process.group
    holding.set()
    assert client.getresponse().status == 200
    client.close()
    check_nothing_is_left(serving)
    assert "were cut" not in serving.log


def test_a_second_stop_of_the_old_process_cuts_at_both(
    serving: Serving, holding: threading.Event
) -> None:
    client = begin(serving.until_serving())
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ")
    os.kill(first, signal.SIGTERM)
    serving.until_logged(" stopping ", 2)
    os.kill(first, signal.SIGTERM)
    assert serving.process.wait(_LIMIT_S) == 0
    check_nothing_is_left(serving)
    client.close()


def test_a_signal_to_the_successor_that_does_not_serve_yet_leaves_the_old_process(
    serving: Serving, config: dict[str, Any]
) -> None:
    serving.until_serving()
    first = serving.pid
    with holding_successors(serving, config):
        for number in (signal.SIGTERM, signal.SIGKILL):
            failed = serving.log.count("upgrade failed, this process goes on")
            serving.signal(signal.SIGUSR2)
            serving.until_logged(" next process started ", failed + 1)
            os.kill(started(serving), number)
            serving.until_logged("upgrade failed, this process goes on", failed + 1)
            check_serves(serving, first)


@pytest.mark.parametrize("phase", [" next process started ", " giving way "])
def test_a_crash_of_the_old_process_leaves_the_successor(serving: Serving, phase: str) -> None:
    serving.until_serving()
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(phase)
    second = started(serving)
    os.kill(first, signal.SIGKILL)
    serving.process.wait(_LIMIT_S)
    serving.until_logged(" serving ", 2)
    check_serves(serving, second)
    serving.signal(signal.SIGTERM)
    check_nothing_is_left(serving)


class PlayedOld:
    """The old process, played, before a real successor."""

    def __init__(self, folder: Path, triton: Ports) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.pid_file = folder / "lb.pid"
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.unix_path = folder / "grpc.sock"
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.unix_path))
        self.unix.listen()
        backend = {"name": "a", "http": f"127.0.0.1:{triton.http_port}"}
        wanted = {"http": self.address, "grpc": f"unix:{self.unix_path}"}
        path = folder / "config.yaml"
        path.write_text(json.dumps({"listen": wanted, "backends": [backend]}))
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(_LIMIT_S)
        listeners = [{"name": name, "wanted": wanted[name], "is_ours": True} for name in wanted]
        fds = [self.listener.fileno(), self.unix.fileno()]
        socket.send_fds(self.channel, [line("listeners", listeners)], fds)
        command = (sys.executable, "-m", "lb", "serve", "--config", str(path))
        with theirs:
            self.successor = ChildProcess(
                (*command, "--pid-file", str(self.pid_file)),
                log=folder / "serve.log",
                env={**ENVIRONMENT, VARIABLE: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
            )
        self._heard = b""

    def until(self, phase: str) -> None:
        """Go on with the hand-over until this phase."""
        if phase == "greeted":
            return
        self.hear("prepared")
        if phase == "prepared":
            return
        self.channel.sendall(line("begin"))
        self.hear("ready")
        if phase == "handed over":
            self.channel.sendall(line("handed_over"))
            self.until_logged(" serving ")

    def hear(self, event: str) -> Any:
        """Wait for a message and return its value."""
        while True:
            text, end, rest = self._heard.partition(b"\n")
            if end:
                self._heard = rest
                message = json.loads(text)
                if event in message:
                    return message[event]
                continue
            more = self.channel.recv(65536)
            assert more, f"it ended without saying {event}"
            self._heard += more

    def until_logged(self, text: str) -> None:
        wait_until(lambda: text in self.successor.log.read_text(), timeout_s=_LIMIT_S, what=text)

    def close(self) -> None:
        self.successor.close()
        self.channel.close()
        self.listener.close()
        self.unix.close()


@pytest.fixture
def old(tmp_path: Path, triton: Ports) -> Iterator[PlayedOld]:
    made = PlayedOld(tmp_path, triton)
    yield made
    made.close()


PHASES = ("greeted", "prepared", "ready", "handed over")


@pytest.mark.parametrize("phase", PHASES)
def test_a_successor_ends_when_the_old_process_is_stopped(old: PlayedOld, phase: str) -> None:
    old.until(phase)
    old.channel.sendall(line("stop", False))
    assert old.successor.wait(_LIMIT_S) == 0
    is_service = phase == "handed over"
    assert (" serving " in old.successor.log.read_text()) is is_service
    # What it does not own stays for the process before.
    assert old.unix_path.exists() is not is_service
    assert not old.pid_file.exists()
    assert "Traceback" not in old.successor.log.read_text()


@pytest.mark.parametrize("phase", PHASES)
def test_a_successor_serves_alone_after_a_crash(old: PlayedOld, phase: str) -> None:
    old.until(phase)
    old.channel.close()
    old.listener.close()
    old.until_logged(" serving ")
    assert old.pid_file.read_text() == f"{old.successor.pid}\n"
    assert ask(old.address, "GET", "/v2/models/simple")[0] == 200
    old.successor.signal(signal.SIGTERM)
    assert old.successor.wait(_LIMIT_S) == 0
    assert not old.unix_path.exists()
    assert not old.pid_file.exists()


def test_a_signal_to_a_prepared_successor_is_told(old: PlayedOld) -> None:
    old.until("prepared")
    old.successor.signal(signal.SIGTERM)
    assert old.hear("failed") == "it was told to stop"
    assert old.successor.wait(_LIMIT_S) == 0
    assert old.unix_path.exists()
    assert " serving " not in old.successor.log.read_text()


def test_a_signal_to_a_ready_successor_waits_for_who_serves(old: PlayedOld) -> None:
    old.until("ready")
    old.successor.signal(signal.SIGTERM)
    old.channel.sendall(line("handed_over"))
    # It is the service, so the stop is for all of it.
    assert old.hear("stop") is False
    old.channel.close()
    assert old.successor.wait(_LIMIT_S) == 0
    assert not old.unix_path.exists()


def test_a_signal_to_the_service_is_told_to_the_process_before(old: PlayedOld) -> None:
    old.until("handed over")
    old.successor.signal(signal.SIGTERM)
    assert old.hear("stop") is False
    old.successor.signal(signal.SIGTERM)
    assert old.hear("stop") is True
    assert old.successor.wait(_LIMIT_S) == 0
