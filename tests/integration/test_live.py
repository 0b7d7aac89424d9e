"""Events of the live document, from the process as users run it."""

from __future__ import annotations

import http.client
import json
import signal
import time
from pathlib import Path
from typing import Any

from lb.simulator.process import Ports
from tests.integration.test_process import Serving


def next_event(answer: http.client.HTTPResponse) -> dict[str, Any]:
    line = answer.readline()
    assert line.startswith(b"data: ")
    assert answer.readline() == b"\n"
    document: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return document


def test_events_come_once_a_second_and_do_not_keep_the_process(
    triton: Ports, tmp_path: Path
) -> None:
    listen = dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0")
    backend = {"name": "only", "http": f"127.0.0.1:{triton.http_port}"}
    serving = Serving(tmp_path, {"listen": listen, "backends": [backend]})
    try:
        admin = serving.until_serving()["admin"]
        connections = [http.client.HTTPConnection(admin, timeout=10) for _ in range(3)]
        answers = []
        for connection in connections:
            connection.request("GET", "/api/v1/live/events")
            answers.append(connection.getresponse())
        first = [next_event(answer) for answer in answers]
        second = [next_event(answer) for answer in answers]
        assert first[0]["summary"]["requests"] is None
        assert second[0]["summary"]["requests"] == 0.0
        assert 0.8 <= second[0]["at"] - first[0]["at"] <= 5.0
        assert len({each["at"] for each in second}) <= 2  # one document for all
        began = time.monotonic()
        serving.process.signal(signal.SIGTERM)
        assert serving.process.wait(10) == 0
        assert time.monotonic() - began < 5.0
        for connection in connections:
            connection.close()
    finally:
        serving.process.close()
