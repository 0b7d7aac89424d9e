"""The process as users run it: start, addresses, signals, shutdown."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lb.kserve import messages
from lb.simulator.process import Ports
from tests.fakes.process import wait_until, whole_lines
from tests.fakes.serving import Serving, before_one, get


@pytest.fixture
def config(triton: Ports) -> dict[str, Any]:
    return before_one(triton)


@pytest.fixture
def serving(tmp_path: Path, config: dict[str, Any]) -> Iterator[Serving]:
    running = Serving(tmp_path, config)
    yield running
    running.process.close()


def server_ready(target: str) -> bool:
    """Ask ServerReady on a fresh channel."""
    method = messages.SERVER_READY
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(
            method.path,
            request_serializer=method.encode,
            response_deserializer=method.decode,
        )
        return bool(call(method.request(), timeout=30).ready)


def sleeping_request(address: str, milliseconds: int) -> socket.socket:
    """Send an inference that takes a while; the caller reads the answer."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [milliseconds]}]}
    ).encode()
    head = (
        f"POST /v2/models/sleeper/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    return client


def waiting_at(admin: str) -> int:
    """How many requests wait for their turn."""
    lines = json.loads(get(admin, "/api/v1/queue")[1])["models"]
    return sum(sum(line["waiting"].values()) for line in lines)


def until_in_flight(admin: str, count: int) -> None:
    """Wait until the only backend has that many requests."""

    def in_flight() -> int:
        backends = json.loads(get(admin, "/api/v1/backends")[1])["backends"]
        return int(backends[0]["in_flight"])

    wait_until(lambda: in_flight() == count, what=f"{count} in flight")


def test_serves_both_protocols_and_the_own_ports(serving: Serving) -> None:
    addresses = serving.until_serving()
    assert get(addresses["http"], "/v2/health/ready") == (200, b"")
    assert get(addresses["http"], "/v2/models/simple/ready") == (200, b"")
    assert server_ready(addresses["grpc"])
    assert get(addresses["metrics"], "/readyz")[0] == 200
    assert b"triton_lb_build_info" in get(addresses["metrics"], "/metrics")[1]
    assert json.loads(get(addresses["admin"], "/api/v1/backends")[1])["backends"][0]["name"] == (
        "only"
    )


def test_sigterm_ends_with_code_0(serving: Serving) -> None:
    serving.until_serving()
    serving.process.signal(signal.SIGTERM)
    assert serving.process.wait(30) == 0
    assert " stopped" in serving.log
    assert "Traceback" not in serving.log


def test_sigterm_during_the_first_probes_ends_with_code_0(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config["backends"][0]["http"] = f"127.0.0.1:{silent.getsockname()[1]}"
        config["health"] = {"timeout": "60s"}
        running = Serving(tmp_path, config)
        try:
            metrics = config["listen"]["metrics"]
            assert metrics == "127.0.0.1:0"
            silent.settimeout(30)
            connection, _ = silent.accept()
            running.process.signal(signal.SIGTERM)
            assert running.process.wait(30) == 0
            connection.close()
        finally:
            running.process.close()
    assert "Traceback" not in running.log
    assert "were cut" not in running.log


def test_requests_under_way_finish_before_the_end(serving: Serving) -> None:
    addresses = serving.until_serving()
    client = sleeping_request(addresses["http"], 2500)
    until_in_flight(addresses["admin"], 1)
    serving.process.signal(signal.SIGTERM)
    with client, client.makefile("rb") as stream:
        answer = stream.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in answer
    assert serving.process.wait(30) == 0
    assert "were cut" not in serving.log


def test_second_signal_cuts(serving: Serving) -> None:
    addresses = serving.until_serving()
    client = sleeping_request(addresses["http"], 60_000)
    until_in_flight(addresses["admin"], 1)
    serving.process.signal(signal.SIGTERM)
    wait_until(lambda: " stopping " in serving.log, what="the shutdown")
    serving.process.signal(signal.SIGTERM)
    assert serving.process.wait(30) == 0
    assert "were cut" in serving.log
    client.close()


def half_a_request(address: str) -> socket.socket:
    """Begin to send a request to the admin API, and leave its body out."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    head = (
        "POST /api/v1/backends HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    )
    client.sendall(head.encode())
    assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # it waits for the body now
    return client


def test_half_a_request_to_the_admin_api_does_not_outlast_the_drain(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["shutdown"] = {"drain": "500ms"}
    running = Serving(tmp_path, config)
    try:
        with half_a_request(running.until_serving()["admin"]):
            running.process.signal(signal.SIGTERM)
            assert running.process.wait(30) == 0  # aiohttp itself would wait for a minute
    finally:
        running.process.close()
    assert "Traceback" not in running.log


def test_second_signal_cuts_half_a_request_to_the_admin_api(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["shutdown"] = {"drain": "5m"}
    running = Serving(tmp_path, config)
    try:
        with half_a_request(running.until_serving()["admin"]):
            running.process.signal(signal.SIGTERM)
            wait_until(lambda: " stopping " in running.log, what="the shutdown")
            running.process.signal(signal.SIGTERM)
            assert running.process.wait(30) == 0
    finally:
        running.process.close()
    assert "Traceback" not in running.log


def test_what_still_waits_at_the_end_is_told_so(tmp_path: Path, config: dict[str, Any]) -> None:
    config["models"] = {"sleeper": {"max_requests_per_backend": 1}}
    running = Serving(tmp_path, config)
    try:
        addresses = running.until_serving()
        runs = sleeping_request(addresses["http"], 60_000)
        until_in_flight(addresses["admin"], 1)
        waits = sleeping_request(addresses["http"], 1)
        method = messages.MODEL_INFER
        request = method.request(model_name="sleeper")
        given = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        given.contents.int_contents.append(1)
        with runs, waits, grpc.insecure_channel(addresses["grpc"]) as channel:
            call = channel.unary_unary(
                method.path,
                request_serializer=method.encode,
                response_deserializer=method.decode,
            ).future(request, timeout=30)
            wait_until(lambda: waiting_at(addresses["admin"]) == 2, what="two that wait")
            running.process.signal(signal.SIGTERM)
            wait_until(lambda: " stopping " in running.log, what="the shutdown")
            running.process.signal(signal.SIGTERM)
            with waits.makefile("rb") as stream:
                answer = stream.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert answer.endswith(b'{"error": "Server exiting"}')
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert call.details() == "Server exiting"
        assert running.process.wait(30) == 0
    finally:
        running.process.close()


def test_settle_time_accepts_and_says_not_ready(tmp_path: Path, config: dict[str, Any]) -> None:
    config["shutdown"] = {"pre_stop_delay": "60s"}
    running = Serving(tmp_path, config)
    try:
        addresses = running.until_serving()
        running.process.signal(signal.SIGTERM)
        wait_until(lambda: get(addresses["metrics"], "/readyz")[0] == 503, what="not ready")
        assert get(addresses["metrics"], "/livez")[0] == 200
        assert get(addresses["http"], "/v2/health/ready") == (503, b'{"error": "Server exiting"}')
        assert get(addresses["http"], "/v2/models/simple/ready") == (200, b"")
        with pytest.raises(grpc.RpcError) as raised:
            server_ready(addresses["grpc"])
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == "Server exiting"
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    finally:
        running.process.close()


def test_an_unreachable_backend_does_not_stop_the_start(
    tmp_path: Path, config: dict[str, Any], unused_tcp_port: int
) -> None:
    config["backends"] = [{"name": "gone", "http": f"127.0.0.1:{unused_tcp_port}"}]
    running = Serving(tmp_path, config)
    try:
        addresses = running.until_serving()
        assert get(addresses["metrics"], "/readyz")[0] == 200
        assert get(addresses["http"], "/v2/health/live") == (200, b"")
        assert get(addresses["http"], "/v2/health/ready") == (400, b"")
        status, body = get(addresses["http"], "/v2/models/simple")
        assert (status, json.loads(body)) == (503, {"error": "no backend is available"})
    finally:
        running.process.close()


def test_a_busy_port_is_one_clear_sentence(tmp_path: Path, config: dict[str, Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config["listen"]["grpc"] = address
        running = Serving(tmp_path, config)
        assert running.process.wait(30) == 1
    assert running.log == (
        f"triton-lb: cannot listen on {address} (grpc): Address already in use\n"
    )


def test_one_port_serves_both_protocols(
    tmp_path: Path, config: dict[str, Any], unused_tcp_port: int
) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    config["listen"]["http"] = config["listen"]["grpc"] = address
    running = Serving(tmp_path, config)
    try:
        addresses = running.until_serving()
        assert addresses["http"] == addresses["grpc"] == address
        assert get(address, "/v2/health/ready") == (200, b"")
        assert server_ready(address)
    finally:
        running.process.close()


def test_unix_sockets_serve_and_are_removed(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "lb.sock"
    config["listen"]["grpc"] = f"unix:{path}"
    running = Serving(tmp_path, config)
    try:
        running.until_serving()
        assert server_ready(f"unix:{path}")
        running.process.signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert not path.exists()
    finally:
        running.process.close()


def test_the_service_manager_is_told(tmp_path: Path, config: dict[str, Any]) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        running = Serving(tmp_path, config, NOTIFY_SOCKET=path)
        try:
            assert manager.recv(100) == b"READY=1"
            running.process.signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert running.process.wait(30) == 0
        finally:
            running.process.close()


def test_sigusr1_follows_a_rotated_access_log(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "access.log"
    config["access_log"] = {"mode": "all", "path": str(path)}
    running = Serving(tmp_path, config)
    try:
        addresses = running.until_serving()
        get(addresses["http"], "/v2/models/simple")
        wait_until(lambda: bool(whole_lines(path)), what="a line")
        path.rename(tmp_path / "access.log.1")
        running.process.signal(signal.SIGUSR1)
        wait_until(path.exists, what="the new file")
        get(addresses["http"], "/v2/models/simple/config")
        wait_until(lambda: bool(whole_lines(path)), what="a line")
        first = json.loads((tmp_path / "access.log.1").read_text())
        second = json.loads(path.read_text())
    finally:
        running.process.close()
    assert (first["operation"], first["model"], first["backend"]) == (
        "ModelMetadata",
        "simple",
        "only",
    )
    assert (second["operation"], second["status"], second["attempts"]) == ("ModelConfig", 200, 1)


def test_an_idle_process_hardly_uses_the_cpu(serving: Serving) -> None:
    """One backend is probed once a second on two ports; that is all there is to do."""
    serving.until_serving()
    ticks = os.sysconf("SC_CLK_TCK")

    def cpu_s() -> float:
        fields = Path(f"/proc/{serving.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    used: list[float] = []
    # What a start leaves to do may come late.
    while len(used) < 4 and min(used, default=1.0) >= 0.2:
        before = cpu_s()
        time.sleep(2.0)
        used.append(cpu_s() - before)
    assert min(used) < 0.2
