"""Access of the process as users run it: tokens and their files, the admin API, no secret shown."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc
import pytest
import yaml

from lb.kserve import inference_pb2 as pb
from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, wait_until, whole_lines
from tests.fakes.serving import Serving

GIVEN, HASHED, OLD, NEW, OPERATOR = (
    f"{name}-secret-0123456789" for name in ("given", "hashed", "old", "new", "operator")
)
SECRETS = (GIVEN, HASHED, OLD, NEW, OPERATOR)
METADATA = "/inference.GRPCInferenceService/ServerMetadata"
LOAD = "/v2/repository/models/simple/load"


class Guarded(NamedTuple):
    """A process with tokens, and what it wrote."""

    serving: Serving
    addresses: dict[str, str]
    token_file: Path
    access_log: Path

    def ask(
        self, listener: str, method: str, path: str, token: str = "", **headers: str
    ) -> tuple[int, str]:
        host, _, port = self.addresses[listener].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def listeners(triton: Ports) -> dict[str, Any]:
    return {
        "listen": dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0"),
        "backends": [
            {"http": f"127.0.0.1:{triton.http_port}", "grpc": f"127.0.0.1:{triton.grpc_port}"}
        ],
    }


@pytest.fixture(scope="module")
def guarded(triton: Ports, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    token_file, access_log = folder / "team.token", folder / "access.log"
    token_file.write_text(OLD + "\n")
    config = listeners(triton) | {
        "access_log": {"mode": "all", "path": str(access_log)},
        "log": {"level": "debug"},
        "access": {
            "tokens": [
                {"name": "given", "token": "${GIVEN}", "roles": ["infer", "control"]},
                {"name": "hashed", "token_sha256": hashlib.sha256(HASHED.encode()).hexdigest()},
                {"name": "team", "file": str(token_file)},
                {"name": "operator", "token": "${OPERATOR}", "roles": ["operate"]},
            ],
            "control": {"loopback": False},
        },
    }
    serving = Serving(folder, config, GIVEN=GIVEN, OPERATOR=OPERATOR)
    try:
        yield Guarded(serving, serving.until_serving(), token_file, access_log)
    finally:
        serving.process.close()


def test_every_kind_of_token_opens_both_protocols(guarded: Guarded) -> None:
    with grpc.insecure_channel(guarded.addresses["grpc"]) as channel:
        call = channel.unary_unary(METADATA)
        for token, status, code in (
            ("", 401, "UNAUTHENTICATED"),
            ("wrong-secret-0123456789", 401, "UNAUTHENTICATED"),
            (OPERATOR, 403, "PERMISSION_DENIED"),
            (GIVEN, 200, "OK"),
            (HASHED, 200, "OK"),
        ):
            assert guarded.ask("http", "GET", "/v2", token)[0] == status
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            if code == "OK":
                assert call(b"", metadata=metadata)
                continue
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=metadata)
            assert caught.value.code().name == code  # type: ignore[attr-defined]


def test_control_needs_its_role(guarded: Guarded) -> None:
    assert guarded.ask("http", "POST", LOAD, HASHED)[0] == 403
    assert guarded.ask("http", "POST", LOAD, GIVEN)[0] != 403


class OpenStream:
    """A stream of inferences that its client keeps open."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(iter(self._requests.get, None), metadata=(("authorization", f"Bearer {token}"),))

    def ask(self) -> None:
        """Send a request, and wait for its answer.

        Raises:
            grpc.RpcError: the stream has ended.
        """
        self._requests.put(pb.ModelInferRequest(model_name="simple"))
        next(self._call)

    def ask_for_ever(self) -> None:
        """Send requests until the stream ends: see `ask`."""
        while True:
            self.ask()

    def close(self) -> None:
        """Half-close."""
        self._requests.put(None)


def test_a_replaced_file_of_tokens_is_followed(guarded: Guarded) -> None:
    """On open connections, and by streams that are open."""
    with grpc.insecure_channel(guarded.addresses["grpc"]) as channel:
        stays, ends = OpenStream(channel, GIVEN), OpenStream(channel, OLD)
        stays.ask()
        ends.ask()
        replace_token(guarded)
        with pytest.raises(grpc.RpcError) as caught:
            ends.ask_for_ever()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        stays.ask()
        for stream in (stays, ends):
            stream.close()


def replace_token(guarded: Guarded) -> None:
    """Have the file hold another token, and wait until that is the valid one."""
    assert guarded.ask("http", "GET", "/v2", OLD)[0] == 200
    fresh = guarded.token_file.with_suffix(".new")
    fresh.write_text(NEW + "\n")
    os.replace(fresh, guarded.token_file)
    wait_until(
        lambda: guarded.ask("http", "GET", "/v2", NEW)[0] == 200,
        what="the new token",
    )
    assert guarded.ask("http", "GET", "/v2", OLD)[0] == 401


def test_the_commands_send_their_token(guarded: Guarded, tmp_path: Path) -> None:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "-m", "lb", *arguments, "--admin", guarded.addresses["admin"]),
            env={**ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    path = tmp_path / "admin.token"
    path.write_text(OPERATOR + "\n")
    refused = run("backends")
    assert (refused.returncode, "--token-file" in refused.stderr) == (1, True)
    assert run("backends", TRITON_LB_ADMIN_TOKEN=OPERATOR).returncode == 0
    assert run("backends", "--token-file", str(path)).returncode == 0
    assert run("backends", TRITON_LB_ADMIN_TOKEN=GIVEN).returncode == 1


def test_neither_metrics_nor_data_ports_can_change_anything(guarded: Guarded) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("/metrics", "/readyz", "/api/v1/backends", "/api/v1/backends/x/drain"):
            assert guarded.ask("metrics", method, path, OPERATOR)[0] in (404, 405)
    assert guarded.ask("http", "GET", "/api/v1/backends", OPERATOR)[0] == 403


def test_a_page_with_a_borrowed_name_gets_nothing(guarded: Guarded) -> None:
    status, _ = guarded.ask("admin", "GET", "/api/v1/backends", OPERATOR, Host="evil.example")
    assert status == 403


def test_names_are_told_and_secrets_are_not(guarded: Guarded) -> None:
    """Last in this file: looks at everything that the tests before have made it write."""
    guarded.ask("admin", "POST", "/api/v1/backends/none/drain", OPERATOR)
    _, page = guarded.ask("metrics", "GET", "/metrics/own")
    _, backends = guarded.ask("admin", "GET", "/api/v1/backends", OPERATOR)
    assert 'triton_lb_token_requests_total{token="given"}' in page

    def in_access_log(key: str) -> set[str | None]:
        return {json.loads(line)[key] for line in whole_lines(guarded.access_log)}

    # Threads of the process write both logs.
    for key, wanted in (
        ("token", {"given", "hashed", "team", None}),
        ("reason", {"unauthenticated", "control_refused"}),
    ):
        wait_until(lambda key=key, wanted=wanted: wanted <= in_access_log(key), what=f"each {key}")
    wait_until(lambda: "token=operator" in guarded.serving.log, what="the operator's name")
    command = Path(f"/proc/{guarded.serving.process.pid}/cmdline").read_text()
    written = (guarded.serving.log, guarded.access_log.read_text(), page, backends, command)
    for secret in SECRETS:
        digest = hashlib.sha256(secret.encode()).hexdigest()
        assert not any(secret in text or digest in text for text in written)


# Starting


def check(config: dict[str, Any], folder: Path) -> tuple[int, str]:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        (sys.executable, "-m", "lb", "check", str(path)),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_an_open_admin_api_does_not_start_unless_told(triton: Ports, tmp_path: Path) -> None:
    config = listeners(triton)
    config["listen"]["admin"] = "0.0.0.0:0"
    code, text = check(config, tmp_path)
    assert (code, "listen.admin: 0.0.0.0:0 can be reached from elsewhere" in text) == (1, True)
    assert check({**config, "admin": {"insecure": True}}, tmp_path)[0] == 0
    token = {"name": "a", "token": OPERATOR, "roles": ["operate"]}
    assert check({**config, "access": {"tokens": [token]}}, tmp_path)[0] == 0


def test_a_missing_file_of_tokens_stops_the_start(triton: Ports, tmp_path: Path) -> None:
    access = {"tokens": [{"name": "a", "file": str(tmp_path / "none")}]}
    serving = Serving(tmp_path, {**listeners(triton), "access": access})
    try:
        assert serving.process.wait(30) == 1
        assert f"tokens of {tmp_path / 'none'}: No such file or directory" in serving.log
        assert "Traceback" not in serving.log
    finally:
        serving.process.close()
