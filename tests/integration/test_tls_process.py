"""The process with TLS as users run it: both protocols, plain beside TLS, one port for both,
replaced certificates under load, start-up errors, metrics."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from lb.kserve import messages
from lb.simulator.process import Ports
from tests.fakes.certificates import Pair
from tests.fakes.process import ChildProcess, free_ports, wait_until
from tests.fakes.serving import Serving
from tests.fakes.tls import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def start(
    world: World, listen: dict[str, Any], backend: dict[str, Any], name: str = "lb"
) -> Serving:
    """Run `triton-lb serve`."""
    return Serving(world.folder, {"listen": listen, "backends": [backend]}, name=name)


def certificates(world: World) -> dict[str, Any]:
    certificate, key = world.server
    return {"certificates": [{"certificate": certificate, "key": key}]}


@dataclass
class Balancer:
    """A running balancer with plain and TLS ports; the latter serve both protocols."""

    world: World
    process: ChildProcess
    http: int
    grpc: int
    tls: int
    metrics: int


@pytest.fixture
def balancer(world: World, triton: Ports) -> Iterator[Balancer]:
    ports = free_ports(4)
    http_at, grpc_at, tls_at, metrics_at = (f"127.0.0.1:{port}" for port in ports)
    listen = {
        "http": http_at,
        "grpc": grpc_at,
        "https": {"address": tls_at, "tls": certificates(world)},
        "grpcs": tls_at,
        "metrics": metrics_at,
    }
    backend = {
        "name": "only",
        "http": f"127.0.0.1:{triton.http_port}",
        "grpc": f"127.0.0.1:{triton.grpc_port}",
    }
    serving = start(world, listen, backend)
    try:
        serving.until_serving()
        yield Balancer(world, serving.process, *ports)
    finally:
        serving.process.close()
    assert "Traceback" not in serving.log


def metric(port: int, name: str) -> float:
    """The value of a metric with one series."""
    connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=30)
    connection.request("GET", "/metrics/own")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def infer(module: Any, client: Any) -> list[int]:
    """Add two vectors by one of Triton's own client libraries."""
    inputs = []
    for name, value in (("INPUT0", 3), ("INPUT1", 4)):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), value, dtype=np.int32))
        inputs.append(tensor)
    answer = client.infer("simple", inputs)
    return [int(value) for value in answer.as_numpy("OUTPUT0")[0]]


def test_tritons_own_clients_work_over_tls_on_one_port(balancer: Balancer) -> None:
    world = balancer.world
    with tritonclient.http.InferenceServerClient(
        f"localhost:{balancer.tls}",
        ssl=True,
        ssl_context_factory=world.client_context,
    ) as client:
        assert client.is_server_ready()
        assert infer(tritonclient.http, client) == [7] * 16
    with tritonclient.grpc.InferenceServerClient(
        f"localhost:{balancer.tls}", ssl=True, root_certificates=world.ca
    ) as client:
        assert client.is_server_ready()
        assert infer(tritonclient.grpc, client) == [7] * 16


def test_plain_listeners_serve_beside_those_with_tls(balancer: Balancer) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{balancer.http}") as client:
        assert infer(tritonclient.http, client) == [7] * 16
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{balancer.grpc}") as client:
        assert infer(tritonclient.grpc, client) == [7] * 16


@pytest.mark.parametrize("flags", [(), ("--http1.1",), ("--no-alpn",), ("--tls-max", "1.2")])
def test_curl_works_over_tls(balancer: Balancer, flags: tuple[str, ...]) -> None:
    url = f"https://localhost:{balancer.tls}/v2/models/simple"
    done = subprocess.run(
        ("curl", "-sS", *flags, "--cacert", balancer.world.ca, url),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "simple"


def test_expiry_and_failed_handshakes_are_metrics(balancer: Balancer) -> None:
    expiry = metric(balancer.metrics, "triton_lb_certificate_expiry_timestamp_seconds")
    assert expiry == pytest.approx(time.time() + 20 * 86400, abs=120)
    with pytest.raises(ssl.SSLError):
        ssl.get_server_certificate(("127.0.0.1", balancer.tls), ca_certs="/etc/hostname")
    subprocess.run(
        ("openssl", "s_client", "-alpn", "foo", "-connect", f"127.0.0.1:{balancer.tls}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    name = 'triton_lb_connection_errors_total{protocol="http",reason="handshake"}'
    assert metric(balancer.metrics, name) >= 1


@dataclass
class Load:
    """Requests without a pause from some threads, on fresh connections and on kept ones."""

    balancer: Balancer
    context: ssl.SSLContext
    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0
    failures: list[str] = field(default_factory=list)
    serials: set[str] = field(default_factory=set)

    def fresh(self) -> None:
        while not self.stop.is_set():
            connection = self._connect()
            self._ask(connection)
            self.serials.add(connection.sock.getpeercert()["serialNumber"])
            connection.close()

    def kept(self) -> None:
        connection = self._connect()
        while not self.stop.is_set():
            self._ask(connection)
        connection.close()

    def calls(self) -> None:
        method = messages.SERVER_READY
        credentials = grpc.ssl_channel_credentials(self.balancer.world.authority.pem)
        while not self.stop.is_set():
            options = (("grpc.use_local_subchannel_pool", 1),)
            target = f"localhost:{self.balancer.tls}"
            with grpc.secure_channel(target, credentials, options) as channel:
                call = channel.unary_unary(method.path, method.encode, method.decode)
                try:
                    for _ in range(20):
                        assert call(method.request(), timeout=30).ready
                        self.done += 1
                except grpc.RpcError as error:
                    self.failures.append(str(error))

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.balancer.tls, timeout=30, context=self.context
        )

    def _ask(self, connection: http.client.HTTPSConnection) -> None:
        try:
            connection.request("GET", "/v2/models/simple")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.done += 1
        except (OSError, AssertionError, http.client.HTTPException) as error:
            self.failures.append(repr(error))


def test_replacements_under_load_fail_no_request(balancer: Balancer) -> None:
    """Half of them are seen half done: the certificate is there before its key."""
    world = balancer.world
    load = Load(balancer, world.client_context())
    workers = [
        threading.Thread(target=work) for work in (load.fresh, load.fresh, load.kept, load.calls)
    ]
    for worker in workers:
        worker.start()
    certificate, key = map(Path, world.server)
    pause = threading.Event()
    try:
        for number in range(20):
            pair = world.authority.issue("localhost", "127.0.0.1")
            if number % 2:
                replace(certificate, pair.certificate)
                pause.wait(0.02)
                replace(key, pair.key)
            else:
                # In place, with a moment in which the key is half there.
                certificate.write_bytes(pair.certificate)
                with key.open("wb") as file:
                    file.write(pair.key[:50])
                    file.flush()
                    pause.wait(0.02)
                    file.write(pair.key[50:])
            pause.wait(0.18)
        last = serial_of(world, pair)
        wait_until(lambda: last in load.serials, what="the last certificate")
    finally:
        load.stop.set()
        for worker in workers:
            worker.join(30)
    assert load.failures == []
    assert load.done > 100
    assert len(load.serials) > 2
    assert metric(balancer.metrics, "triton_lb_certificate_reload_failures_total") == 0


def replace(path: Path, content: bytes) -> None:
    """Replace a file as careful tools do."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


def serial_of(world: World, pair: Pair) -> str:
    """A certificate's number as `getpeercert` writes it."""
    path = world.folder / "last.crt"
    path.write_bytes(pair.certificate)
    done = subprocess.run(
        ("openssl", "x509", "-noout", "-serial", "-in", str(path)),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().partition("=")[2]


def test_a_bad_pair_keeps_the_old_one_and_is_told_once(balancer: Balancer) -> None:
    world = balancer.world
    name = "triton_lb_certificate_reload_failures_total"
    Path(world.server[1]).write_bytes(world.authority.issue("localhost").key)
    wait_until(lambda: metric(balancer.metrics, name) == 1, what="the failure")
    connection = http.client.HTTPSConnection(
        "localhost", balancer.tls, timeout=30, context=world.client_context()
    )
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    pause = threading.Event()
    pause.wait(1.2)  # one more look, which must say nothing
    log = balancer.process.log.read_text()
    assert log.count("changed certificates cannot be used") == 1
    assert "is not the key of" in log
    assert metric(balancer.metrics, name) == 1


def test_shutdown_is_quick_with_handshakes_under_way(balancer: Balancer) -> None:
    with socket.create_connection(("127.0.0.1", balancer.tls)) as silent:
        silent.sendall(b"\x16")
        balancer.process.signal(signal.SIGTERM)
        assert balancer.process.wait(30) == 0


def test_a_certificate_that_cannot_be_used_is_one_clear_sentence(
    world: World, triton: Ports
) -> None:
    missing = {"certificates": [{"certificate": "/nowhere.crt", "key": "/nowhere.key"}]}
    listen = {"http": {"address": "127.0.0.1:0", "tls": missing}}
    process = start(world, listen, {"http": f"127.0.0.1:{triton.http_port}"}).process
    try:
        assert process.wait(30) == 1
    finally:
        process.close()
    assert process.log.read_text() == (
        "triton-lb: cannot read /nowhere.crt: No such file or directory\n"
    )


def test_one_balancer_before_another_with_tls_between_them(
    balancer: Balancer, triton: Ports
) -> None:
    """The second one verifies the first, and asks it for health and metrics over TLS."""
    world = balancer.world
    ports = free_ports(3)
    listen = {
        name: f"127.0.0.1:{port}"
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
    }
    backend = {
        "name": "far",
        "http": f"localhost:{balancer.tls}",
        "grpc": f"localhost:{balancer.tls}",
        "metrics": f"127.0.0.1:{balancer.metrics}",
        "tls": {"ca": world.ca, "ports": ["http", "grpc"]},
    }
    serving = start(world, listen, backend, "front")
    try:
        serving.until_serving()
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[0]}") as client:
            assert infer(tritonclient.http, client) == [7] * 16
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports[1]}") as client:
            assert infer(tritonclient.grpc, client) == [7] * 16
        for protocol in ("http", "grpc"):
            up = f'triton_lb_backend_up{{backend="far",protocol="{protocol}"}}'
            assert metric(ports[2], up) == 1
    finally:
        serving.process.close()
