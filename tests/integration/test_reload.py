"""Reloading the configuration of a process under load, as operators do it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lb.kserve import messages
from lb.simulator.process import Ports
from tests.fakes.process import wait_until
from tests.fakes.serving import Serving, get, metric
from tests.fakes.steady_load import SteadyLoad

RELOADS = 30
POLICIES = ("least_loaded", "least_requests", "least_latency", "round_robin")


@pytest.fixture
def config(triton: Ports) -> dict[str, Any]:
    return {
        "listen": {
            "http": "127.0.0.1:0",
            "grpc": "[::1]:0",
            "metrics": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
        },
        "backends": [backend(triton, "one")],
    }


def backend(triton: Ports, name: str, **more: Any) -> dict[str, Any]:
    ports = {"http": triton.http_port, "grpc": triton.grpc_port}
    return {"name": name, **{key: f"127.0.0.1:{port}" for key, port in ports.items()}, **more}


@pytest.fixture
def serving(tmp_path: Path, config: dict[str, Any]) -> Iterator[Serving]:
    running = Serving(tmp_path, config)
    yield running
    running.process.close()


def reload(serving: Serving, config: dict[str, Any], metrics: str) -> None:
    """Write a configuration, send SIGHUP and wait until it is applied."""
    before = metric(metrics, 'triton_lb_reloads_total{result="applied"}')
    serving.write(config)
    serving.signal(signal.SIGHUP)
    wait_until(
        lambda: metric(metrics, 'triton_lb_reloads_total{result="applied"}') > before,
        timeout_s=30,
        what="the reload",
    )


def test_reloads_under_load_fail_no_request(
    serving: Serving, config: dict[str, Any], triton: Ports
) -> None:
    addresses = serving.until_serving()
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        for turn in range(RELOADS):
            others = [backend(triton, f"other-{turn % 7}", weight=1 + turn % 5)]
            reload(
                serving,
                config
                | {
                    "backends": [*config["backends"], *(others if turn % 3 else [])],
                    "balancing": {"policy": POLICIES[turn % 4]},
                    "limits": {"body_bytes": "1MiB" if turn % 2 else 0, "max_headers": 50 + turn},
                    "timeouts": {"request": f"{20 + turn % 10}s"},
                    "health": {"interval": "500ms" if turn % 2 else "1s"},
                    "access": {
                        "limits": [{"by": "address", "max_concurrent_requests": 500 + turn % 2}]
                        if turn % 4 < 2
                        else []
                    },
                },
                addresses["metrics"],
            )
    load.check()
    assert "Traceback" not in serving.log
    assert metric(addresses["metrics"], "triton_lb_last_reload_success") == 1


def test_a_refused_reload_changes_nothing_and_says_everything(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        serving.write(config | {"retry": {"attempts": 0}, "nonsense": 1, "backends": []})
        done = serving.command("reload", "--admin", addresses["admin"])
        assert done.returncode == 1
        assert "configuration refused, nothing has changed" in done.stderr
        for part in ("retry.attempts", "nonsense", "backends"):
            assert f": {part}: " in done.stderr
    load.check()
    assert metric(addresses["metrics"], 'triton_lb_reloads_total{result="refused"}') == 1
    assert metric(addresses["metrics"], "triton_lb_last_reload_success") == 0
    backends = json.loads(get(addresses["admin"], "/api/v1/backends")[1])["backends"]
    assert [each["name"] for each in backends] == ["one"]


def test_values_of_the_environment_are_in_no_answer_and_no_log(
    tmp_path: Path, config: dict[str, Any], triton: Ports
) -> None:
    serving = Serving(tmp_path, config, TOKEN="hunter2hunter2")
    try:
        addresses = serving.until_serving()
        secret = {"weight": "${TOKEN}", "metrics": "a:${TOKEN}", "kind": "${TOKEN}"}
        serving.write(config | {"backends": [backend(triton, "one", **secret)]})
        done = serving.command("reload", "--admin", addresses["admin"])
        assert done.returncode == 1
        assert "expected a number, got '${TOKEN}'" in done.stderr
        started = serving.command("serve", "--config", str(serving.path))
        assert "got 'a:${TOKEN}'" in started.stderr
        assert "hunter2" not in done.stderr + done.stdout + started.stderr + serving.log
        shared = [backend(triton, "one"), backend(triton, "two")]
        reload(serving, config | {"backends": shared}, addresses["metrics"])
        serving.until_logged("backends have the same address")
    finally:
        serving.process.close()


def test_the_command_says_what_has_changed(serving: Serving, config: dict[str, Any]) -> None:
    addresses = serving.until_serving()
    done = serving.command("reload", "--admin", addresses["admin"])
    assert (done.returncode, done.stdout) == (0, "unchanged\n")
    serving.write(config | {"retry": {"attempts": 2}, "log": {"level": "debug"}})
    done = serving.command("reload", "--admin", addresses["admin"])
    assert (done.returncode, done.stdout) == (0, "applied:\n  retry.attempts\n  log.level\n")


def test_listeners_open_and_close(serving: Serving, config: dict[str, Any], tmp_path: Path) -> None:
    addresses = serving.until_serving()
    path = tmp_path / "http.sock"
    kept = http.client.HTTPConnection(addresses["http"], timeout=30)
    kept.request("GET", "/v2/health/live")
    assert kept.getresponse().read() == b""
    config["listen"] |= {"http": f"unix:{path}", "admin": "[::1]:0"}
    reload(serving, config, addresses["metrics"])
    assert path.exists()
    kept.request("GET", "/v2/models/sleeper")
    answer = kept.getresponse()
    answer.read()
    assert (answer.status, answer.getheader("Connection")) == (200, "close")
    kept.close()
    host, _, port = addresses["http"].rpartition(":")
    with socket.socket() as late:
        assert late.connect_ex((host, int(port))) != 0


def test_a_watched_file_is_applied_by_itself(serving: Serving, config: dict[str, Any]) -> None:
    addresses = serving.until_serving()
    reload(serving, config | {"reload": {"watch": True}}, addresses["metrics"])
    serving.write(config | {"reload": {"watch": True}, "retry": {"attempts": 2}})
    serving.until_logged("by=watch")
    assert metric(addresses["metrics"], 'triton_lb_reloads_total{result="applied"}') == 2


def test_other_rules_of_variants_keep_what_an_operator_set(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()

    def reload_with(**rules: Any) -> None:
        variants = [
            {"name": "old", "model": "sleeper", "weight": 95},
            {"name": "new", "model": "identity_fp32", "weight": 5},
        ]
        models = {"named": {"variants": variants, **rules}}
        reload(serving, config | {"models": models}, addresses["metrics"])

    def shown() -> tuple[str, list[tuple[str, float, int]]]:
        _, text = get(addresses["admin"], "/api/v1/variants")
        named = json.loads(text)["models"][0]
        variants = [(each["name"], each["percent"], each["answers"]) for each in named["variants"]]
        return named["changed"], variants

    def command(*words: str) -> None:
        done = serving.command(*words, "--admin", addresses["admin"])
        assert done.returncode == 0, done.stderr

    reload_with(rollback={"errors": "2x", "min_requests": 200})
    command("promote", "named", "new")
    command("set", "named", "old=0")
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    client = http.client.HTTPConnection(addresses["http"], timeout=30)
    client.request("POST", "/v2/models/named/infer", json.dumps({"inputs": [tensor]}))
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    client.close()
    before = ("operator", [("new", 100, 1), ("old", 0, 0)])
    wait_until(lambda: shown() == before, timeout_s=30, what="the answer to be counted")
    for rules in (
        {"rollback": {"errors": "2x", "min_requests": 300}},
        {"sticky": "header:x-user"},
        {"ramp": {"to": 50, "over": "1s"}},
    ):
        reload_with(**rules)
        assert shown() == before


TOKEN = "0123456789abcdef"


def test_kept_connections_go_by_new_rules(serving: Serving, config: dict[str, Any]) -> None:
    addresses = serving.until_serving()
    kept = http.client.HTTPConnection(addresses["http"], timeout=30)
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    request = messages.SERVER_METADATA.request()

    def ask(**headers: str) -> int:
        kept.request("GET", "/v2/models/sleeper", headers=headers)
        answer = kept.getresponse()
        answer.read()
        return answer.status

    with grpc.insecure_channel(addresses["grpc"]) as channel:
        method = messages.SERVER_METADATA
        call = channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        assert ask() == 200
        assert call(request, timeout=30).name
        sock = kept.sock
        tokens = [{"name": "t", "token": TOKEN, "roles": ["infer"]}]
        reload(serving, config | {"access": {"tokens": tokens}}, addresses["metrics"])
        assert ask() == 401
        with pytest.raises(grpc.RpcError) as raised:
            call(request, timeout=30)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ask(Authorization=f"Bearer {TOKEN}") == 200
        assert call(request, timeout=30, metadata=metadata).name
        assert kept.sock is sock
    kept.close()


def test_a_request_under_way_keeps_the_limits_that_it_began_with(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode() + b" " * 5000
    kept = http.client.HTTPConnection(addresses["http"], timeout=30)
    path = "/v2/models/sleeper/infer"

    def pieces() -> Iterator[bytes]:
        yield body[:100]
        reload(serving, config | {"limits": {"body_bytes": 1000}}, addresses["metrics"])
        yield body[100:]

    kept.request("POST", path, pieces(), encode_chunked=True)
    answer = kept.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    sock = kept.sock
    kept.request("POST", path, body)
    answer = kept.getresponse()
    assert answer.status == 413
    answer.read()
    assert sock is not None
    kept.close()
