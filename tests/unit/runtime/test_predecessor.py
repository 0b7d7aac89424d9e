"""Sockets that others have bound for us."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lb.runtime.predecessor import VARIABLE, find_predecessor, line, sockets_of_systemd
from tests.fakes.process import ENVIRONMENT


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_nobody_before_us_is_no_predecessor() -> None:
    assert find_predecessor({}) is None


def test_sockets_come_with_the_first_line(
    pair: tuple[socket.socket, socket.socket], listener: socket.socket
) -> None:
    ours, theirs = pair
    greeting = line("listeners", [{"name": "http", "wanted": "127.0.0.1:0", "is_ours": True}])
    socket.send_fds(ours, [greeting], [listener.fileno()])
    environment = {VARIABLE: str(theirs.detach())}
    found = find_predecessor(environment)
    assert found is not None
    assert environment == {}
    [inherited] = found.inherited
    with inherited.socket, found.channel:
        assert inherited[:2] == ("http", "127.0.0.1:0")
        assert inherited.socket.getsockname() == listener.getsockname()
        found.tell("failed", "no")
        assert json.loads(ours.recv(100)) == {"failed": "no"}


def test_what_follows_the_first_line_is_left_to_whoever_reads_next(
    pair: tuple[socket.socket, socket.socket], listener: socket.socket
) -> None:
    ours, theirs = pair
    operator = {"text": "x" * 100_000}  # the system cuts this into pieces
    listeners = [{"name": "http", "wanted": "127.0.0.1:0", "is_ours": True}]
    greeting = json.dumps({"listeners": listeners, "operator": operator}).encode() + b"\n"
    socket.send_fds(ours, [greeting], [listener.fileno()])
    ours.sendall(line("stop", False))
    found = find_predecessor({VARIABLE: str(theirs.detach())})
    assert found is not None
    with found.inherited[0].socket, found.channel:
        assert found.operator == operator
        assert found.channel.recv(100) == line("stop", False)


def test_a_predecessor_that_has_gone_is_an_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ours.close()
    with pytest.raises(ConnectionError):
        find_predecessor({VARIABLE: str(theirs.detach())})


def test_sockets_for_another_process_are_left_alone() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    assert sockets_of_systemd(environment) == ()
    assert environment == {}


def test_sockets_of_the_service_manager_are_found_with_their_names(
    listener: socket.socket,
) -> None:
    program = (
        "import os, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "from lb.runtime.predecessor import sockets_of_systemd\n"
        "[one] = sockets_of_systemd(os.environ)\n"
        "print(one.name, one.socket.getsockname()[1], one.is_ours, os.get_inheritable(3))\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", program, str(listener.fileno())),
        env={**ENVIRONMENT, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "grpc"},
        pass_fds=(listener.fileno(),),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["grpc", str(listener.getsockname()[1]), "False", "False"]


def test_sockets_that_are_not_there_are_told_with_the_variable() -> None:
    program = (
        "import os\n"
        "from lb.runtime.predecessor import sockets_of_systemd\n"
        "os.closerange(3, 10)\n"
        "sockets_of_systemd({'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '99999999'})\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", program),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "OSError: LISTEN_FDS=99999999: descriptor 3: " in done.stderr
