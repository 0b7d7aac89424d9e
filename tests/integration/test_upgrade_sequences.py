"""Sequences go on over connections to any process of the service, however many there are."""

from __future__ import annotations

import http.client
import http.server
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.process import wait_until
from tests.fakes.serving import Serving
from tests.integration.test_upgrade import config

__all__ = ["config"]

_LIMIT_S = 60.0
COUNT = 60
Connect = Callable[[str, int], list[http.client.HTTPConnection]]


class Keeping(http.server.BaseHTTPRequestHandler):
    """Answers a step of a sequence that did not begin here with 400."""

    protocol_version = "HTTP/1.1"
    refusal = b"{}"

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])) or b"{}"
        said = json.loads(body).get("parameters", {})
        known: set[int] = self.server.known  # type: ignore[attr-defined]
        if said.get("sequence_start"):
            known.add(said["sequence_id"])
        self._answer(200 if said.get("sequence_id") in known else 400)

    def _answer(self, status: int) -> None:
        body = b'{"outputs":[]}' if status == 200 else self.refusal
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the standard error."""


@contextmanager
def keeping_servers(
    config: dict[str, Any], count: int, handler: type[Keeping] = Keeping
) -> Iterator[list[http.server.ThreadingHTTPServer]]:
    """Run servers that keep sequences; they are the backends of a configuration."""
    servers = []
    for _ in range(count):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.known = set()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever).start()
        servers.append(server)
    config["backends"] = [
        {"name": f"server-{at}", "http": f"127.0.0.1:{each.server_port}", "kind": "kserve"}
        for at, each in enumerate(servers)
    ]
    config["health"] = {"probe": "tcp"}
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def serving(tmp_path: Path, config: dict[str, Any]) -> Iterator[Serving]:
    """A balancer before two servers that keep sequences."""
    with keeping_servers(config, 2):
        config["shutdown"] = {"drain": "60s"}
        running = Serving(tmp_path, config)
        yield running
        running.process.close()


def step(client: http.client.HTTPConnection, sequence: int, *, start: bool) -> int:
    """Send a step of a sequence, and return the status."""
    body = {
        "parameters": {"sequence_id": sequence, "sequence_start": start, "sequence_end": False},
        "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
    }
    client.request("POST", "/v2/models/simple_sequence/infer", json.dumps(body))
    answer = client.getresponse()
    answer.read()
    return answer.status


def upgrade(serving: Serving) -> int:
    """Wait until the next process serves; return its id."""
    leaving = serving.log.count(" giving way ")
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ", leaving + 1)
    serving.until_logged(" serving ", leaving + 2)
    return serving.pid


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes connections to an address, which are closed in the end."""
    made: list[http.client.HTTPConnection] = []

    def connect(address: str, count: int) -> list[http.client.HTTPConnection]:
        fresh = [http.client.HTTPConnection(address, timeout=_LIMIT_S) for _ in range(count)]
        made.extend(fresh)
        return fresh

    yield connect
    for each in made:
        each.close()


def test_sequences_begun_at_either_process_go_on_at_the_other(
    serving: Serving, connect: Connect
) -> None:
    address = serving.until_serving()["http"]
    kept = connect(address, 8)
    assert {step(each, at, start=True) for at, each in enumerate(kept, 1)} == {200}
    upgrade(serving)
    [fresh] = connect(address, 1)
    # Begun at the process before, and at the next one.
    assert {step(fresh, number, start=False) for number in range(1, 9)} == {200}
    assert {step(fresh, number, start=True) for number in range(11, 19)} == {200}
    assert {step(each, at, start=False) for at, each in enumerate(kept, 11)} == {200}
    serving.until_logged("process before this one has ended")


def test_sequences_go_on_over_several_upgrades_within_one_drain(
    serving: Serving, connect: Connect
) -> None:
    """The first process has clients all the time; those in the middle have none."""
    address = serving.until_serving()["http"]
    first = serving.pid
    kept = connect(address, 2 * COUNT)
    assert {step(each, at, start=True) for at, each in enumerate(kept, 1000)} == {200}
    pids = [first, *(upgrade(serving) for _ in range(3))]
    assert sorted(serving.process.group) == sorted(pids)
    [fresh] = connect(address, 1)
    numbers = range(COUNT)
    # At the first process: some begin there, ...
    assert {step(kept[at], at, start=True) for at in numbers} == {200}
    # ... and at the last one others.
    assert {step(fresh, 100 + at, start=True) for at in numbers} == {200}
    # They go on at the other one.
    assert {step(fresh, at, start=False) for at in numbers} == {200}
    assert {step(kept[COUNT + at], 100 + at, start=False) for at in numbers} == {200}
    for each in kept:
        each.close()
    wait_until(
        lambda: serving.process.group == [pids[-1]], timeout_s=_LIMIT_S, what="the end of the rest"
    )
    # Those of the processes that have ended go on, too.
    assert {step(fresh, at, start=False) for at in range(1000, 1000 + COUNT)} == {200}


def test_a_stop_reaches_all_processes_of_a_chain(serving: Serving, connect: Connect) -> None:
    address = serving.until_serving()["http"]
    first = serving.pid
    [kept] = connect(address, 1)
    kept.connect()
    assert step(kept, 1, start=True) == 200
    pids = [first, upgrade(serving), upgrade(serving)]
    assert sorted(serving.process.group) == sorted(pids)
    serving.process.signal(signal.SIGTERM)
    assert serving.process.wait(_LIMIT_S) == 0
    wait_until(lambda: serving.process.group == [], timeout_s=_LIMIT_S, what="the end of all")
