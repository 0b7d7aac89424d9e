"""Secrets stay where they belong, and clients cannot make metrics or logs grow: the process as
users run it, with everything that it tells."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lb.settings.problems import SettingsError
from lb.settings.reading import read_settings
from lb.simulator.process import Ports
from tests.fakes.process import ChildProcess, free_ports, wait_until, whole_lines
from tests.fakes.serving import Serving

CLIENT_TOKEN = "client-5f0c2d9b7a1e4c3d"
ADMIN_TOKEN = "admin-0a9b8c7d6e5f4a3b2c1d"
PROBE_SECRET = "probe-77aa66bb55cc44dd"
WRONG_TOKEN = "wrong-1234567890abcdef"
SECRETS = (CLIENT_TOKEN, ADMIN_TOKEN, PROBE_SECRET, WRONG_TOKEN)


@dataclass
class Balancer:
    process: ChildProcess
    folder: Path
    http: int
    metrics: int
    admin: int

    def ask(self, port: int, path: str, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=20)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def balancer(tmp_path: Path, triton: Ports) -> Iterator[Balancer]:
    ports = free_ports(3)
    at = [f"127.0.0.1:{port}" for port in ports]
    tokens = []
    for name, token, role in (("team", CLIENT_TOKEN, "infer"), ("ops", ADMIN_TOKEN, "operate")):
        (tmp_path / name).write_text(token)
        tokens.append({"name": name, "file": str(tmp_path / name), "roles": [role]})
    (tmp_path / "probe").write_text(PROBE_SECRET)
    backend = {
        "name": "only",
        "http": f"127.0.0.1:{triton.http_port}",
        "headers": {"authorization": f"Bearer ${{file:{tmp_path / 'probe'}}}"},
    }
    config = {
        "listen": {"http": at[0], "metrics": at[1], "admin": at[2]},
        "backends": [backend],
        "access": {"tokens": tokens},
        "access_log": {"mode": "all", "path": str(tmp_path / "access.log")},
        "log": {"level": "debug"},
    }
    serving = Serving(tmp_path, config)
    try:
        serving.until_serving()
        yield Balancer(serving.process, tmp_path, *ports)
    finally:
        serving.process.close()


def test_nothing_that_the_process_tells_holds_a_secret(balancer: Balancer) -> None:
    told = []
    for token, status in ((CLIENT_TOKEN, 200), (WRONG_TOKEN, 401), ("", 401)):
        found, body = balancer.ask(balancer.http, "/v2/models/simple", token)
        assert found == status
        told.append(body)
    for path in ("/api/v1/backends", "/api/v1/openapi.json", "/api/v1/nothing"):
        tokens = (ADMIN_TOKEN, WRONG_TOKEN, CLIENT_TOKEN)
        told += [balancer.ask(balancer.admin, path, token)[1] for token in tokens]
    told.append(balancer.ask(balancer.metrics, "/metrics")[1])
    pid = balancer.process.pid
    told += [Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ")]
    access_log = balancer.folder / "access.log"
    wait_until(lambda: len(whole_lines(access_log)) >= 3, what="lines")
    told += [access_log.read_text(), balancer.process.log.read_text()]
    assert '"token":"team"' in access_log.read_text()
    everything = "\n".join(told)
    assert [secret for secret in SECRETS if secret in everything] == []
    assert "Traceback" not in everything


def test_settings_do_not_show_secrets() -> None:
    text = json.dumps({
        "listen": {"http": "127.0.0.1:8000"},
        "backends": [{"http": "a:1", "headers": {"authorization": "${SECRET}"}}],
        "access": {"tokens": [{"name": "a", "token": "${SECRET}"}]},
    })  # fmt: skip
    settings = read_settings(text, {"SECRET": PROBE_SECRET}, lambda _name: "")
    shown = "\n".join((repr(settings), str(settings), repr(settings.specs())))
    assert PROBE_SECRET not in shown


@pytest.mark.parametrize(
    "more",
    [
        {"access": {"tokens": [{"name": "a", "token": "${SECRET} "}]}},
        {"access": {"tokens": [{"name": "a", "token_sha256": "${SECRET}"}]}},
        {"access": {"tokens": ["${SECRET}"]}},
        {"access": {"tokens": [{"name": "${SECRET} /", "file": "x"}]}},
        {"access": {"tokens": [{"name": "a", "token": {"${SECRET}": 1}}]}},
        {"backends": [{"http": "a:1", "headers": {"authorization": "${SECRET}\n"}}]},
        {"backends": [{"http": "a:1", "headers": ["${SECRET}"]}]},
        {"backends": [{"http": "a:1", "headers": "${SECRET}"}]},
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(more: dict[str, object]) -> None:
    root = {"listen": {"http": "127.0.0.1:8000"}, "backends": [{"http": "a:1"}], **more}
    with pytest.raises(SettingsError) as refused:
        read_settings(json.dumps(root), {"SECRET": PROBE_SECRET}, lambda _name: "")
    assert PROBE_SECRET not in str(refused.value)


def series(page: str) -> int:
    return sum(not line.startswith("#") for line in page.splitlines())


def test_thousands_of_paths_models_and_methods_make_no_series(balancer: Balancer) -> None:
    before = series(balancer.ask(balancer.metrics, "/metrics")[1])
    count = 4000
    with socket.create_connection(("127.0.0.1", balancer.http), timeout=60) as client:
        answered, tail = 0, b""
        for start in range(0, count, 100):
            client.sendall(b"".join(map(_odd_request, range(start, start + 100))))
            while answered < start + 100:
                data = client.recv(65536)
                assert data
                answered += len(re.findall(rb"HTTP/1\.1 \d\d\d ", tail + data))
                tail = data[-12:] if not data.endswith(b"}") else b""
    page = balancer.ask(balancer.metrics, "/metrics")[1]
    # The cap on models, four series each, and what operations and codes there are.
    assert series(page) - before < 100 * 4 + 200
    access_log = balancer.folder / "access.log"
    wait_until(lambda: len(whole_lines(access_log)) >= count, what="all lines")
    for line in whole_lines(access_log):
        assert json.loads(line)["client"]


def _odd_request(number: int) -> bytes:
    path = (
        b"/v2/models/m%d/infer" % number,
        b"/odd/%d" % number,
        b"/v2/models/simple/versions/%d" % number,
        b"/v2/repository/models/r%d/load" % number,
    )[number % 4]
    return (
        b"%s %s HTTP/1.1\r\nHost: h%d\r\nX-Request-Id: %d\r\nX-Odd-%d: %d\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: 0\r\n\r\n"
        % (
            (b"POST", b"GET")[number % 2], path, number, number, number, number,
            CLIENT_TOKEN.encode(),
        )
    )  # fmt: skip
