"""The process and its connections: PROXY headers before plain and TLS, trusted proxies, more
clients than descriptors, one client with too many."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import ssl
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from lb.domain.errors import Reason
from lb.runtime.limits import Budget
from lb.settings.model import Settings
from lb.simulator.process import Ports
from tests.fakes.balancer import running_balancer
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until, whole_lines
from tests.fakes.proxy_headers import binary_header, text_header
from tests.fakes.tls import World
from tests.wire.http1 import GET, Peer, post, raw_client, reply, scripted_backend, serve_ok
from tests.wire.waiting import eventually


class Balancer:
    """A running balancer."""

    def __init__(
        self, folder: Path, triton: Ports, *, descriptors: int = 0, **sections: Any
    ) -> None:
        self.http, self.https, self.metrics = free_ports(3)
        listen = {
            "http": {"address": f"127.0.0.1:{self.http}"},
            "metrics": f"127.0.0.1:{self.metrics}",
        }
        for name, more in sections.pop("listen", {}).items():
            if isinstance(more, dict):
                address = f"127.0.0.1:{getattr(self, name)}"
                listen[name] = {"address": address, **more}
            else:
                listen[name] = more
        backend = {"name": "only", "http": f"127.0.0.1:{triton.http_port}"}
        config = {"listen": listen, "backends": [backend], **sections}
        config["access_log"] = {"mode": "all", "path": str(folder / "access.log")}
        path = folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        self.access_log = folder / "access.log"
        command = f"exec {sys.executable} -m lb serve --config {path}"
        if descriptors:
            command = f"ulimit -n {descriptors}; {command}"
        self.process = ChildProcess(
            ("/bin/sh", "-c", command), log=folder / "serve.log", env=ENVIRONMENT
        )
        wait_until(
            lambda: " serving " in self.process.log.read_text() or not self.process.is_running,
            timeout_s=30,
            what="the start-up line",
        )
        assert self.process.is_running, self.process.log.read_text()

    def connect(self, port: int | None = None) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.http), timeout=20)

    def ask_metrics(self, path: str) -> str:
        connection = http.client.HTTPConnection(f"127.0.0.1:{self.metrics}", timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200
            return response.read().decode()
        finally:
            connection.close()

    def failures(self, reason: str) -> int:
        found = re.findall(
            rf'^triton_lb_\w*connection\w*_total{{[^}}]*"{reason}"[^}}]*}} (\d+)',
            self.ask_metrics("/metrics"),
            re.MULTILINE,
        )
        return sum(map(int, found))

    def clients(self) -> list[str]:
        """Who the access log says that they were."""
        return [json.loads(line)["client"] for line in whole_lines(self.access_log)]

    def close(self) -> None:
        self.process.close()
        assert "Traceback" not in self.process.log.read_text()


def answer(connection: socket.socket) -> bytes:
    """The status line of an answer, or nothing when the connection ends."""
    try:
        return connection.recv(65536).partition(b"\r\n")[0]
    except ConnectionResetError:
        return b""


def test_proxy_headers_tell_the_client_on_plain_and_tls_listeners(
    tmp_path: Path, triton: Ports
) -> None:
    world = World(tmp_path)
    certificate, key = world.server
    tls = {"certificates": [{"certificate": certificate, "key": key}]}
    balancer = Balancer(
        tmp_path,
        triton,
        listen={
            "http": {"proxy_protocol": True},
            "https": {"proxy_protocol": True, "tls": tls},
            "trusted_proxies": ["127.0.0.1"],
        },
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = (text_header("203.0.113.1", 1), binary_header("2001:db8::2", 2))
    try:
        for header in headers:
            with balancer.connect() as plain:
                for byte in header:
                    plain.sendall(bytes((byte,)))
                plain.sendall(GET)
                assert answer(plain) == b"HTTP/1.1 200 OK"
            with balancer.connect(balancer.https) as plain:
                plain.sendall(header)
                with context.wrap_socket(plain) as secure:
                    secure.sendall(GET)
                    assert answer(secure) == b"HTTP/1.1 200 OK"
        for port in (balancer.http, balancer.https):
            with balancer.connect(port) as plain:
                plain.sendall(GET)
                assert answer(plain) == b""
        with balancer.connect():
            pass  # as health checks do
        assert balancer.failures("proxy_header") == 2
        expected = ["203.0.113.1:1", "203.0.113.1:1", "[2001:db8::2]:2", "[2001:db8::2]:2"]
        wait_until(lambda: len(balancer.clients()) >= 4, what="four lines")
        assert balancer.clients() == expected
    finally:
        balancer.close()


def test_a_trusted_proxy_names_its_clients_request_by_request(
    tmp_path: Path, triton: Ports
) -> None:
    balancer = Balancer(tmp_path, triton, listen={"trusted_proxies": ["127.0.0.1"]})
    try:
        with balancer.connect() as proxy:
            for field in (b"6.6.6.6, 203.0.113.1", b"203.0.113.2, 127.0.0.1", b"nobody"):
                proxy.sendall(GET.replace(b"Host", b"X-Forwarded-For: %s\r\nHost" % field))
                assert answer(proxy) == b"HTTP/1.1 200 OK"
            own = f"127.0.0.1:{proxy.getsockname()[1]}"
        expected = ["203.0.113.1", "203.0.113.2", own]
        wait_until(lambda: len(balancer.clients()) >= 3, what="three lines")
        assert balancer.clients() == expected
    finally:
        balancer.close()


def test_a_proxy_header_of_anyone_else_is_a_bad_request(tmp_path: Path, triton: Ports) -> None:
    balancer = Balancer(
        tmp_path,
        triton,
        listen={"http": {"proxy_protocol": True}, "trusted_proxies": ["192.0.2.0/24"]},
    )
    try:
        for header in (text_header("127.0.0.1"), binary_header("127.0.0.1")):
            with balancer.connect() as client:
                client.sendall(header + GET)
                assert answer(client) == b"HTTP/1.1 400 Bad Request"
        with balancer.connect() as client:
            client.sendall(GET)
            assert answer(client) == b"HTTP/1.1 200 OK"
    finally:
        balancer.close()


def test_more_clients_than_descriptors_wait_and_hurt_nobody(tmp_path: Path, triton: Ports) -> None:
    balancer = Balancer(tmp_path, triton, descriptors=256)
    good = balancer.connect()
    connection_limiter: list[socket.socket] = []
    try:
        while len(connection_limiter) < 400:
            connection_limiter.append(balancer.connect())
            if len(connection_limiter) % 10 == 0:
                good.sendall(GET)
                assert answer(good) == b"HTTP/1.1 200 OK"
        assert "ok" in balancer.ask_metrics("/readyz").lower()
        cpu_s = _cpu_seconds(balancer.process.pid)
        for _ in range(20):
            good.sendall(GET)
            assert answer(good) == b"HTTP/1.1 200 OK"
            time.sleep(0.05)
        assert _cpu_seconds(balancer.process.pid) - cpu_s < 0.5
        # Those that wait are served as others go, in their order.
        for client in connection_limiter:
            client.sendall(GET)
            assert answer(client) == b"HTTP/1.1 200 OK"
            client.close()
        log = balancer.process.log.read_text()
        assert 1 <= log.count("no room for more connections") <= 5
        assert "Too many open files" not in log
    finally:
        for client in (good, *connection_limiter):
            client.close()
        balancer.close()


def test_silent_connections_keep_nobody_from_asking_for_our_health(
    tmp_path: Path, triton: Ports
) -> None:
    balancer = Balancer(tmp_path, triton)
    address = "127.0.0.1", balancer.metrics
    prober = http.client.HTTPConnection(*address, timeout=30)
    silent: list[socket.socket] = []
    try:
        for _ in range(3):
            # The connection of the prober is the oldest one, and its client's only one.
            prober.request("GET", "/readyz")
            assert prober.getresponse().read() == b"ok\n"
            silent += [
                socket.create_connection(address, source_address=("127.0.0.2", 0))
                for _ in range(50)
            ]
            assert "ok" in balancer.ask_metrics("/readyz").lower()
        good = balancer.connect()
        good.sendall(GET)
        assert answer(good) == b"HTTP/1.1 200 OK"
        good.close()
    finally:
        for client in (prober, *silent):
            client.close()
        balancer.close()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_one_client_with_too_many_connections_loses_the_newest(
    tmp_path: Path, triton: Ports
) -> None:
    balancer = Balancer(tmp_path, triton, limits={"max_connections_per_client": 3})
    try:
        inside = [balancer.connect() for _ in range(3)]
        for client in inside:
            client.sendall(GET)
            assert answer(client) == b"HTTP/1.1 200 OK"
        for _ in range(2):
            with balancer.connect() as client:
                assert answer(client) == b""
        assert balancer.failures("too_many_connections") == 2
        inside.pop().close()

        def may_enter() -> bool:
            with balancer.connect() as client:
                client.sendall(GET)
                return answer(client) == b"HTTP/1.1 200 OK"

        wait_until(may_enter, what="a place for one more")
        for client in inside:
            client.close()
    finally:
        balancer.close()


@pytest.mark.parametrize("before", [0, 4])
async def test_a_limit_that_a_reload_sets_counts_connections_that_have_said_nothing_yet(
    before: int,
) -> None:
    async with (
        asyncio.timeout(_LIMIT_S),
        scripted_backend(serve_ok) as backend,
        AsyncExitStack() as stack,
    ):
        [port] = free_ports(1)
        tree = {
            "listen": {"http": f"127.0.0.1:{port}", "grpc": f"127.0.0.1:{port}"},
            "backends": [{"name": "only", "http": backend.target}],
            "limits": {"max_connections_per_client": before},
        }
        balancer = await stack.enter_async_context(running_balancer(tree))
        clients = [await stack.enter_async_context(raw_client(port)) for _ in range(2)]
        await clients[0].send(GET)
        assert (await clients[0].answer()).status == 200
        await eventually(lambda: balancer.listener_set.clients == len(clients))
        more = {**tree, "limits": {"max_connections_per_client": 2}}
        balancer.product.configure(Settings.model_validate(more))
        await clients[1].send(GET)
        assert (await clients[1].answer()).status == 200
        too_many = await stack.enter_async_context(raw_client(port))
        assert await too_many.is_closed()
        errors = [each.connection_errors for each in balancer.product.relay.meter.traffic]
        assert Reason.TOO_MANY_CONNECTIONS in errors[0] | errors[1]


_FEW: Final = Budget(clients=4, all=8)
_LIMIT_S: Final = 20.0


async def _never_answer_inferences(peer: Peer) -> None:
    while b"/infer" not in (await peer.request()).target:
        await peer.send(reply())
    await peer.closed()


async def test_requests_that_nobody_waits_for_keep_no_client_out() -> None:
    async with (
        asyncio.timeout(_LIMIT_S),
        scripted_backend(_never_answer_inferences) as backend,
        running_balancer(
            {
                "listen": {"http": "127.0.0.1:0", "grpc": None},
                "backends": [{"name": "only", "http": backend.target}],
                "balancing": {"policy": "least_requests"},
            }
        ) as balancer,
        AsyncExitStack() as stack,
    ):
        balancer.listener_set.budget = _FEW
        relay = balancer.product.relay
        port = int(balancer.address("http").rpartition(":")[2])

        async def until_sent(count: int) -> None:
            def is_sent() -> bool:
                sent = sum(b"/infer" in each.target for each in backend.requests)
                assert relay.connections + relay.upstream_connections <= _FEW.all
                return sent == count

            await eventually(is_sent)

        for number in range(_FEW.all + _FEW.clients):
            async with raw_client(port) as client:
                await client.send(post())
                await until_sent(number + 1)
                client.reset()
            await eventually(lambda: not relay.connections)
        clients = [await stack.enter_async_context(raw_client(port)) for _ in range(_FEW.clients)]
        await eventually(lambda: relay.connections == _FEW.clients)
        for client in clients:
            await client.send(GET)
            assert (await client.answer()).status == 200
        # Each of them needs a connection to the backend as well, all at once.
        for client in clients:
            await client.send(post())
        await until_sent(_FEW.all + 2 * _FEW.clients)
