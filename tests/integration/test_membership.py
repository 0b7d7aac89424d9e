"""Backends that come and go while the process runs: by commands, from a file, by DNS; and what
becomes of that after a reload and a restart."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lb.cli.main import main
from lb.simulator.process import Ports
from tests.fakes.dns_server import DnsServer, dns_server
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until
from tests.fakes.serving import Serving

INFER = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [300]}]}
).encode()


LISTEN = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"}


class Balancer:
    """A balancer and what its admin API says of its backends."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.serving = Serving(folder, {"listen": LISTEN, **config})
        addresses = self.serving.until_serving()
        self.http, self.admin = addresses["http"], addresses["admin"]

    @property
    def log(self) -> str:
        return self.serving.log

    def reload(self, **config: Any) -> None:
        before = self.log.count("configuration reloaded")
        self.serving.write({"listen": LISTEN, **config})
        self.serving.signal(signal.SIGHUP)
        self.serving.until_logged("configuration reloaded", before + 1)

    def run(self, *command: str) -> int:
        return main([*command, "--admin", self.admin])

    def backends(self) -> dict[str, str]:
        """Their states by name."""
        status, body = ask(self.admin, "GET", "/api/v1/backends")
        assert status == 200
        return {each["name"]: each["state"] for each in json.loads(body)["backends"]}

    def until(self, **states: str) -> None:
        wait_until(
            lambda: self.backends() == states, timeout_s=30, what=f"{states}: {self.backends()}"
        )


def ask(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request on a fresh connection."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ports, ...]]:
    """Two simulated Tritons, at addresses of their own with the same HTTP port."""
    folder = tmp_path_factory.mktemp("tritons")
    started = []
    found: list[Ports] = []
    try:
        for host in ("127.0.0.1", "127.0.0.2"):
            log = folder / f"{host}.log"
            port = ["--http-port", str(found[0].http_port)] if found else []
            command = (sys.executable, "-m", "lb.simulator", "--host", host, *port)
            started.append(ChildProcess(command, log=log, env=ENVIRONMENT))
            wait_until(
                lambda log=log: log.read_text().endswith("\n"), timeout_s=30, what="the simulator"
            )
            found.append(Ports.from_json(log.read_text().splitlines()[0]))
        yield tuple(found)
    finally:
        for each in started:
            each.close()


@contextmanager
def serving(folder: Path, **config: Any) -> Iterator[Balancer]:
    running = Balancer(folder, **config)
    try:
        yield running
        assert "Traceback" not in running.log
        assert "crashed" not in running.log
    finally:
        running.serving.process.close()


def entry(name: str, ports: Ports) -> dict[str, Any]:
    return {"name": name, "http": f"{ports.host}:{ports.http_port}"}


def test_no_backend_is_at_a_port_that_the_kernel_chose_for_us(
    tmp_path: Path, tritons: tuple[Ports, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, backends=[entry("one", tritons[0])]) as running:
        for listener, address in (("http", running.http), ("admin", running.admin)):
            assert running.run("add", "ours", "--http", address) != 0
            assert f"{address} is our own listener listen.{listener}" in capsys.readouterr().err
        assert list(running.backends()) == ["one"]


def test_commands_change_the_pool_over_reloads_and_until_the_end(
    tmp_path: Path, tritons: tuple[Ports, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tritons
    with serving(tmp_path, backends=[entry("one", one)]) as running:
        address = f"{two.host}:{two.http_port}"
        assert running.run("add", "two", "--http", address, "--wait", "20") == 0
        running.until(one="up", two="up")
        assert running.run("remove", "one", "--wait") == 0
        running.until(two="up")
        # A reload undoes neither of it.
        running.reload(backends=[entry("one", one)], retry={"attempts": 2})
        running.until(two="up")
        assert ask(running.http, "GET", "/v2/health/ready")[0] == 200
        assert running.run("add", "one", "--wait", "20") == 0
        running.until(one="up", two="up")
        # The configuration takes over what it names.
        running.reload(backends=[entry("one", one), entry("two", two)])
        running.until(one="up", two="up")
        running.reload(backends=[entry("one", one)])
        running.until(one="up")
        assert running.run("add", "two", "--http", address) == 0
    # Another process goes by the configuration alone.
    again = tmp_path / "again"
    again.mkdir()
    with serving(again, backends=[entry("one", one)]) as running:
        running.until(one="up")
    assert capsys.readouterr().err == ""


def test_a_removal_lets_a_request_finish_and_sends_no_other(
    tmp_path: Path, tritons: tuple[Ports, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tritons
    with serving(tmp_path, backends=[entry("one", one), entry("two", two)]) as running:
        running.until(one="up", two="up")
        statuses = []
        path = "/v2/models/sleeper/infer"
        threads = [
            threading.Thread(
                target=lambda: statuses.append(ask(running.http, "POST", path, INFER)[0])
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        status, body = 0, b""

        def both_are_busy() -> bool:
            nonlocal status, body
            status, body = ask(running.admin, "GET", "/api/v1/backends")
            return all(each["in_flight"] for each in json.loads(body)["backends"])

        wait_until(both_are_busy, timeout_s=30, what="requests on both")
        assert running.run("remove", "one", "--wait") == 0
        running.until(two="up")
        for thread in threads:
            thread.join()
    assert statuses == [200] * 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one: removing, ")
    assert lines[-1] == "one: removed"


def test_a_file_is_followed_and_a_bad_one_refused(
    tmp_path: Path, tritons: tuple[Ports, ...]
) -> None:
    one, two = tritons
    path = tmp_path / "backends.json"

    def put(text: str) -> None:
        draft = path.with_suffix(".new")
        draft.write_text(text)
        os.replace(draft, path)

    put(json.dumps([entry("one", one)]))
    with serving(tmp_path, discovery={"files": [str(path)]}) as running:
        running.until(one="up")
        put(json.dumps([entry("one", one), entry("two", two)]))
        running.until(one="up", two="up")
        put('[{"name": "x"}]')
        wait_until(
            lambda: "which backends there are" in running.log, timeout_s=30, what="a refusal"
        )
        assert "at least one of http and grpc is needed" in running.log
        assert running.backends() == {"one": "up", "two": "up"}
        _, body = ask(running.admin, "GET", "/api/v1/sources")
        (source,) = json.loads(body)["sources"]
        assert (source["name"], source["backends"]) == (f"file:{path}", 2)
        put(json.dumps([entry("two", two)]))
        running.until(two="up")


def test_many_backends_of_a_file_stay_as_they_are_when_a_listener_changes(tmp_path: Path) -> None:
    listed = tmp_path / "backends.yaml"
    entries = [{"name": f"g{number}", "http": f"127.1.0.{number}:1"} for number in range(1, 61)]
    listed.write_text(json.dumps({"backends": entries}))
    config = {"discovery": {"files": [str(listed)]}}
    with serving(tmp_path, **config) as balancer:
        wait_until(lambda: len(balancer.backends()) == 60, timeout_s=30, what="all are found")
        assert balancer.run("disable", "g50") == balancer.run("remove", "g55") == 0
        balancer.serving.until_logged("backend removed", 1)
        added = balancer.log.count("backend added")
        balancer.reload(listen={**LISTEN, "metrics": "127.0.0.1:0"}, **config)
        wait_until(
            lambda: balancer.log.count("source has found backends") == 2,
            timeout_s=30,
            what="the file is read again",
        )
        states = balancer.backends()
        assert len(states) == 59
        assert states["g50"] == "disabled"
        assert balancer.log.count("backend added") == added
        assert balancer.log.count("backend removed") == 1


@pytest.fixture
def server() -> Iterator[DnsServer]:
    """A DNS server in a thread of its own."""
    started = threading.Event()
    found: list[DnsServer] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with dns_server() as running:
            found.append(running)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_dns_is_followed_and_its_failures_change_nothing(
    tmp_path: Path, tritons: tuple[Ports, ...], server: DnsServer
) -> None:
    one, two = tritons
    name = "triton.test."
    server.say(name, "A", one.host)
    lookup = {
        "host": name,
        "http_port": one.http_port,
        "servers": [server.address],
        "refresh_min": "100ms",
        "refresh_max": "100ms",
    }
    first, second = (f"{each.host}:{each.http_port}" for each in (one, two))
    with serving(tmp_path, discovery={"dns": [lookup]}) as running:
        running.until(**{first: "up"})
        server.say(name, "A", two.host)
        running.until(**{second: "up"})
        # It asks again after one second, then after two.
        for fail, why in ((server.fail, "SERVFAIL"), (server.say, "does not exist")):
            fail(name, "A")
            wait_until(lambda why=why: why in running.log, timeout_s=30, what=why)
            assert running.backends() == {second: "up"}
            assert ask(running.http, "GET", "/v2/health/ready")[0] == 200
        server.say(name, "A", one.host, two.host)
        running.until(**{first: "up", second: "up"})


def test_replacing_all_backends_at_once_again_and_again_fails_no_request(
    tmp_path: Path, tritons: tuple[Ports, ...]
) -> None:
    one, two = tritons
    body = INFER.replace(b"300", b"2")
    with serving(tmp_path, backends=[entry("one", one)]) as running:
        running.until(one="up")
        statuses: list[int] = []
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                status, _ = ask(running.http, "POST", "/v2/models/sleeper/infer", body)
                statuses.append(status)

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(6):
            # By turns another name, and the same name at another address.
            wanted = entry("one" if number % 3 else "other", (two, one)[number % 2])
            running.reload(backends=[wanted])
            before = len(statuses)
            wait_until(
                lambda before=before: len(statuses) >= before + 10, timeout_s=30, what="answers"
            )
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}
