"""The section of idle connections: the table, and what is judged."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from socket import create_server, socket

from benchmarks.load.idle import Held, Key, make_section
from benchmarks.load.proxies import ENVOY, TRITON_LB

TOP = Path(__file__).parents[3]


def found(ours: float, theirs: float) -> dict[Key, Held]:
    """Figures of two proxies, in bytes per idle connection."""
    figures: dict[Key, Held] = {}
    for protocol in ("http", "grpc"):
        for name, each in ((TRITON_LB, ours), (ENVOY, theirs)):
            figures[protocol, 0, name] = Held(0.0, [20.0, 21.0, 25.0])
            figures[protocol, 9400, name] = Held(each, [42.0])
    return figures


def test_each_row_says_memory_and_how_much_dearer_a_request_got() -> None:
    section = make_section(found(2048, 16384), [TRITON_LB, ENVOY], [9400])
    assert ("http", "9,400", TRITON_LB, "2.00", "42.0", "2.00") in section.rows
    assert ("http", "0", TRITON_LB, "", "21.0", "") in section.rows


def test_memory_per_connection_is_judged_against_envoy() -> None:
    for ours, word in ((2048, "met"), (32768, "missed")):
        verdicts = make_section(found(ours, 16384), [TRITON_LB, ENVOY], [9400]).verdicts
        assert [verdict.word for verdict in verdicts] == [word, word]


def test_without_envoy_nothing_is_judged() -> None:
    assert make_section(found(1, 1), [TRITON_LB], [9400]).verdicts == []


def serve_once_and_close(listener: socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_a_connection_that_is_closed_ends_the_holder_with_an_error() -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_once_and_close, args=(listener,))
        thread.start()
        port = str(listener.getsockname()[1])
        argv = [sys.executable, "-m", "benchmarks.load.idle_client", "http", port, "1"]
        done = subprocess.run(
            argv, cwd=TOP, capture_output=True, text=True, check=False, timeout=30
        )
        thread.join()
    assert done.returncode != 0
    assert "closed a connection" in done.stderr
