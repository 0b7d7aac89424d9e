"""Restarting without a gap: the next process takes over the sockets of the one that runs."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lb.simulator.process import Ports
from tests.fakes.probe_counter import holding_successors
from tests.fakes.process import ENVIRONMENT, wait_until
from tests.fakes.serving import Serving, metric
from tests.fakes.steady_load import SteadyLoad
from tests.fakes.tls import World

UPGRADES = 2


@pytest.fixture
def config(triton: Ports, tmp_path: Path) -> dict[str, Any]:
    return {
        "listen": {
            "http": "127.0.0.1:0",
            "grpc": f"unix:{tmp_path}/grpc.sock",
            "metrics": "127.0.0.1:0",
            "admin": "[::1]:0",
        },
        "backends": [
            {
                "name": name,
                "http": f"127.0.0.1:{triton.http_port}",
                "grpc": f"127.0.0.1:{triton.grpc_port}",
            }
            for name in ("one", "two")
        ],
        "log": {"level": "debug"},  # tells of each backend at the start, too
    }


@pytest.fixture
def serving(tmp_path: Path, config: dict[str, Any]) -> Iterator[Serving]:
    running = Serving(tmp_path, config)
    yield running
    running.process.close()


def ask(address: str, method: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def upgrade(serving: Serving) -> None:
    """Send SIGUSR2 and wait until another process serves, and the one before has ended."""
    before = serving.pid
    ended = serving.log.count("process before this one has ended")
    serving.signal(signal.SIGUSR2)
    wait_until(lambda: serving.pid not in (0, before), timeout_s=60, what="the next process")
    serving.until_logged("process before this one has ended", ended + 1)


def test_restarts_under_load_fail_no_request(serving: Serving) -> None:
    addresses = serving.until_serving()
    first = serving.pid
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        for _ in range(UPGRADES):
            upgrade(serving)
    load.check()
    assert serving.pid != first
    assert "were cut" not in serving.log
    assert "Traceback" not in serving.log
    assert ask(addresses["admin"], "GET", "/api/v1/backends")[0] == 200
    assert metric(addresses["metrics"], "triton_lb_last_reload_success") == 1


def test_the_command_waits_until_the_next_process_serves(serving: Serving) -> None:
    addresses = serving.until_serving()
    done = serving.command("upgrade", "--admin", addresses["admin"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"process {serving.pid} serves now; the one before finishes what it has\n"
    assert serving.process.wait(30) == 0


def test_a_next_process_that_cannot_start_leaves_the_old_one(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()
    before = serving.pid
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        serving.write(config | {"nonsense": 1})
        done = serving.command("upgrade", "--admin", addresses["admin"])
        assert done.returncode == 1
        assert "upgrade failed, this process goes on" in done.stderr
        assert "nonsense" in done.stderr
        serving.write(config | {"access_log": {"mode": "all", "path": "/nowhere/log"}})
        done = serving.command("upgrade", "--admin", addresses["admin"])
        assert "cannot open the access log /nowhere/log" in done.stderr
    load.check()
    assert serving.pid == before
    assert metric(addresses["metrics"], "triton_lb_open_requests") == 0


def test_what_the_operator_said_lives_on(serving: Serving, triton: Ports) -> None:
    addresses = serving.until_serving()
    admin = ("--admin", addresses["admin"])
    assert ask(addresses["admin"], "POST", "/api/v1/backends/two/drain")[0] == 200
    added = serving.command("add", "three", "--http", f"localhost:{triton.http_port}", *admin)
    assert added.returncode == 0, added.stderr
    assert ask(addresses["admin"], "POST", "/api/v1/backends/one/disable")[0] == 200
    before = len(serving.log)
    upgrade(serving)
    _, answer = ask(addresses["admin"], "GET", "/api/v1/backends")
    assert {each["name"]: each["state"] for each in answer["backends"]} == {
        "one": "disabled",
        "two": "draining",
        "three": "up",
    }
    # The only one that may get requests was found well before the new process accepted any.
    found, _, _ = serving.log[before:].partition(" serving ")
    assert re.search(r"state changed backend=three .*to=up", found), found


class Holding(http.server.BaseHTTPRequestHandler):
    """Answers the inference once it may, and everything else at once."""

    protocol_version = "HTTP/1.1"
    may = threading.Event()

    def do_GET(self) -> None:
        self._answer(b"[]")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/infer"):
            self.may.wait(60)
        self._answer(b'{"held": true}')

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the standard error."""


@pytest.fixture
def holding(config: dict[str, Any], serving: Serving) -> Iterator[threading.Event]:
    """Behind the process there is one server alone, which answers inferences when it is told."""
    Holding.may = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Holding)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    backend = {"name": "holds", "kind": "generic", "http": f"127.0.0.1:{server.server_port}"}
    serving.until_serving()
    serving.write(config | {"backends": [backend], "health": {"probe": "tcp"}})
    assert serving.command("reload", "--admin", serving.until_serving()["admin"]).returncode == 0
    yield Holding.may
    Holding.may.set()
    server.shutdown()
    thread.join()
    server.server_close()


def begin(addresses: dict[str, str]) -> http.client.HTTPConnection:
    """Send an inference, and see it under way."""
    client = http.client.HTTPConnection(addresses["http"], timeout=60)
    client.request("POST", "/v2/models/m/infer", b"{}")
    wait_until(
        lambda: metric(addresses["metrics"], "triton_lb_open_requests") == 1,
        what="the request",
    )
    return client


def test_a_request_under_way_is_answered_by_the_process_that_took_it(
    serving: Serving, holding: threading.Event
) -> None:
    client = begin(serving.until_serving())
    before = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ")
    assert serving.pid != before
    holding.set()
    answer = client.getresponse()
    assert (answer.status, answer.getheader("Connection")) == (200, "close")
    assert json.loads(answer.read()) == {"held": True}
    client.close()
    serving.until_logged("process before this one has ended")


class SlowHandshake:
    """A TLS client that sends its hello in two halves, seconds apart."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._rest = self._out.read()
        self._socket.sendall(self._rest[:100])

    def ask(self) -> bytes:
        """Finish the handshake, and return all that comes for a request."""
        self._socket.sendall(self._rest[100:])
        self._until_done(self._tls.do_handshake)
        self._tls.write(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while part := self._until_done(self._read):
            found += part
        return found

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self) -> bytes:
        try:
            return self._tls.read(65536)
        except ssl.SSLZeroReturnError:
            return b""

    def _until_done(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._out.read())
                came = self._socket.recv(65536)
                assert came, "closed in the midst"
                self._in.write(came)
            finally:
                self._socket.sendall(self._out.read())


def test_a_handshake_under_way_ends_in_an_answer(tmp_path: Path, config: dict[str, Any]) -> None:
    world = World(tmp_path)
    certificate, key = world.server
    tls = {"certificates": [{"certificate": certificate, "key": key}]}
    config["listen"]["http"] = {"address": "127.0.0.1:0", "tls": tls}
    # The next process takes long to start on a busy machine.
    config["timeouts"] = {"handshake": 120}
    running = Serving(tmp_path, config)
    slow = None
    try:
        slow = SlowHandshake(running.until_serving()["http"], world.client_context("http/1.1"))
        before = running.pid
        running.signal(signal.SIGUSR2)
        running.until_logged(" giving way ")
        assert running.pid != before
        answer = slow.ask()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        running.until_logged("process before this one has ended")
    finally:
        if slow is not None:
            slow.close()
        running.process.close()


def test_a_stop_right_after_an_upgrade_cuts_nothing(
    serving: Serving, holding: threading.Event
) -> None:
    client = begin(serving.until_serving())
    first = serving.pid
    serving.signal(signal.SIGUSR2)
    serving.until_logged(" giving way ")
    # As a service manager does that stops all processes of the service.
    os.kill(first, signal.SIGTERM)
    # The old process passes it on, and the next one may have ended of that.
    with suppress(ProcessLookupError):
        serving.signal(signal.SIGTERM)
    serving.until_logged(" stopping ")
    holding.set()
    answer = client.getresponse()
    assert answer.status == 200
    answer.read()
    client.close()
    assert serving.process.wait(30) == 0


def test_the_service_manager_is_told_whom_to_follow(tmp_path: Path, config: dict[str, Any]) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        running = Serving(tmp_path, config, NOTIFY_SOCKET=path)
        try:
            assert manager.recv(200) == b"READY=1"
            first = running.pid
            upgrade(running)
            told = [manager.recv(200).decode() for _ in range(3)]
            assert told[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
            assert set(told[1:]) == {"READY=1", f"MAINPID={running.pid}\nREADY=1"}
            running.signal(signal.SIGTERM)
            assert manager.recv(200) == b"STOPPING=1"
            assert running.pid != first
        finally:
            running.process.close()


def test_sockets_of_a_service_manager_are_served(tmp_path: Path, config: dict[str, Any]) -> None:
    with socket.socket() as http_socket, socket.socket(socket.AF_UNIX) as grpc_socket:
        http_socket.bind(("127.0.0.1", 0))
        http_socket.listen()
        grpc_path = tmp_path / "from-outside.sock"
        grpc_socket.bind(str(grpc_path))
        grpc_socket.listen()
        config["listen"] |= {"http": "127.0.0.1:8000", "grpc": f"unix:{grpc_path}"}
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(config))
        program = (
            "import fcntl, os, sys\n"
            "fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 50) for fd in sys.argv[1:3]]\n"
            "for index, fd in enumerate(fds): os.dup2(fd, 3 + index)\n"
            "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2'}\n"
            "os.environ['LISTEN_FDNAMES'] = 'http:whatever'\n"
            "os.execv(sys.executable, [sys.executable, '-m', 'lb', *sys.argv[3:]])\n"
        )
        fds = (http_socket.fileno(), grpc_socket.fileno())
        log = tmp_path / "serve.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                (sys.executable, "-c", program, *map(str, fds), "serve", "--config", str(path)),
                pass_fds=fds,
                env=ENVIRONMENT,
                stderr=output,
            )
        try:
            wait_until(
                lambda: " serving " in log.read_text() or process.poll() is not None,
                timeout_s=30,
                what="the start-up line",
            )
            host, port = http_socket.getsockname()
            assert f" http={host}:{port} " in log.read_text()
            assert ask(f"{host}:{port}", "GET", "/v2/models/sleeper")[0] == 200
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    assert grpc_path.exists()


@pytest.fixture
def halted(serving: Serving, config: dict[str, Any]) -> Iterator[int]:
    """A next process that has read its configuration and goes no further. The file then changes."""
    config |= {"reload": {"watch": True}}
    serving.until_serving()
    with holding_successors(serving, config) as gate:
        probes = gate.count
        serving.signal(signal.SIGUSR2)
        gate.until_probed(probes + 1)
        pid = int(re.findall(r"next process started .*pid=(\d+)", serving.log)[-1])
        os.kill(pid, signal.SIGSTOP)
        gate.answers.set()
        serving.write(config | {"retry": {"attempts": 2}})
        yield pid
        if pid in serving.process.group:
            os.kill(pid, signal.SIGCONT)


def test_a_reload_during_an_upgrade_is_refused_and_not_lost(serving: Serving, halted: int) -> None:
    addresses = serving.until_serving()
    status, answer = ask(addresses["admin"], "POST", "/api/v1/reload")
    assert status == 409
    assert answer["problems"] == ["an upgrade is under way: ask again when it is over"]
    serving.signal(signal.SIGHUP)
    os.kill(halted, signal.SIGCONT)
    # Whoever sees it first: the old process passes the signal on, and the new one watches the file.
    serving.until_logged("configuration reloaded changed=retry.attempts")
    assert serving.pid == halted
    serving.until_logged("reload passed on")
    assert ask(addresses["admin"], "POST", "/api/v1/reload")[1]["changed"] == []


def test_a_change_that_the_next_process_has_not_read_is_noticed_by_it(
    serving: Serving, halted: int
) -> None:
    serving.signal(signal.SIGKILL)
    os.kill(halted, signal.SIGCONT)
    serving.until_logged("configuration reloaded changed=retry.attempts by=watch")
    assert serving.pid == halted


def test_a_reload_during_an_upgrade_that_fails_follows_it(serving: Serving, halted: int) -> None:
    before = serving.pid
    serving.signal(signal.SIGHUP)
    os.kill(halted, signal.SIGKILL)
    serving.until_logged("configuration reloaded changed=retry.attempts by=SIGHUP")
    assert serving.pid == before
