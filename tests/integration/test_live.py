"""Events of the live document, from the process as users run it."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path
from typing import Any

from lb.simulator.process import Ports
from tests.integration.test_process import Serving
from tests.unit.admin.schema import answer_problems


def ask(admin: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(admin, timeout=30)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body), headers)
    answer = connection.getresponse()
    read = answer.status, json.loads(answer.read())
    connection.close()
    return read


def next_event(answer: http.client.HTTPResponse) -> dict[str, Any]:
    line = answer.readline()
    assert line.startswith(b"data: ")
    assert answer.readline() == b"\n"
    document: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return document


def test_what_viewers_are_refused_is_in_the_document(triton: Ports, tmp_path: Path) -> None:
    """Too many readers of events, and sessions that cannot be begun."""
    token = "reader-secret-0123456789"
    backend = {"name": "only", "http": f"127.0.0.1:{triton.http_port}"}
    config = {"listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"}, "backends": [backend]}
    guarded = {**config, "access": {"tokens": [{"name": "r", "token": token, "roles": ["read"]}]}}
    for name in ("open", "guarded"):
        (tmp_path / name).mkdir()
    opened, asking = Serving(tmp_path / "open", config), Serving(tmp_path / "guarded", guarded)
    try:
        admin = opened.until_serving()["admin"]
        document = ask(admin, "GET", "/api/v1/openapi.json")[1]
        viewers = [http.client.HTTPConnection(admin, timeout=30) for _ in range(16)]
        events = []
        for viewer in viewers:
            viewer.request("GET", "/api/v1/live/events")
            events.append(viewer.getresponse())
        assert {each.status for each in events} == {200}
        guard = asking.until_serving()["admin"]
        for address, method, path, body, status in (
            (admin, "GET", "/api/v1/live/events", None, 503),
            (admin, "POST", "/api/v1/session", {"token": token}, 409),
            (guard, "POST", "/api/v1/session", {}, 400),
            (guard, "POST", "/api/v1/session", {"token": "x"}, 401),
            (guard, "POST", "/api/v1/session", {"token": token}, 200),
        ):
            got, answer = ask(address, method, path, body)
            assert got == status
            assert answer_problems(document, method, path, got, answer) == []
        for viewer in viewers:
            viewer.close()
    finally:
        opened.process.close()
        asking.process.close()


def test_events_come_once_a_second_and_do_not_keep_the_process(
    triton: Ports, tmp_path: Path
) -> None:
    listen = dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0")
    backend = {"name": "only", "http": f"127.0.0.1:{triton.http_port}"}
    serving = Serving(tmp_path, {"listen": listen, "backends": [backend]})
    try:
        admin = serving.until_serving()["admin"]
        connections = [http.client.HTTPConnection(admin, timeout=30) for _ in range(3)]
        answers = []
        for connection in connections:
            connection.request("GET", "/api/v1/live/events")
            answers.append(connection.getresponse())
        first = [next_event(answer) for answer in answers]
        second = [next_event(answer) for answer in answers]
        assert first[0]["summary"]["requests"] is None
        assert second[0]["summary"]["requests"] == 0.0
        assert 0.8 <= second[0]["window_s"] <= 30.0
        assert len({each["at"] for each in second}) <= 2  # one document for all
        answers.pop().close()
        connections.pop().close()
        for _ in range(3):
            for answer in answers:
                next_event(answer)
        assert "admin request failed" not in serving.process.log.read_text()
        serving.process.signal(signal.SIGTERM)
        assert serving.process.wait(30) == 0  # aiohttp itself would wait for a minute
        for connection in connections:
            connection.close()
    finally:
        serving.process.close()
