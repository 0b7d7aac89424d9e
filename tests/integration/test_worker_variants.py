"""Variants of a name before two workers: one bad variant, whose ramp goes on until it is known."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.process import wait_until
from tests.fakes.serving import Serving
from tests.integration.test_workers import get

_CONNECTIONS: Final = 12
_MOST: Final = 20_000


class _Models(BaseHTTPRequestHandler):
    """A server with two models, one of which fails."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = (500, b"{}") if "/bad/" in self.path else (200, b'{"outputs":[]}')
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the standard error."""


@pytest.fixture
def config() -> Iterator[dict[str, Any]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Models)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    models = {"stable": "good", "canary": "bad"}
    variants = [{"name": name, "model": model, "weight": 50} for name, model in models.items()]
    yield {
        "workers": 2,
        "listen": dict.fromkeys(("http", "metrics", "admin"), "127.0.0.1:0"),
        "backends": [{"http": f"127.0.0.1:{server.server_port}", "kind": "kserve"}],
        "health": {"probe": "tcp"},
        "models": {
            "m": {
                "variants": variants,
                "ramp": {"to": 60, "over": "1h"},
                "rollback": {"errors": "2x", "min_requests": 200},
            }
        },
    }
    server.shutdown()
    server.server_close()
    thread.join()


def infer(connection: http.client.HTTPConnection) -> int:
    """One inference. Returns the status."""
    connection.request("POST", "/v2/models/m/infer", b'{"inputs":[]}')
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_rollback_holds_in_all_workers_and_is_shown(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["state"] = str(tmp_path / "state.json")
    serving = Serving(tmp_path, config)
    connections = []
    try:
        addresses = serving.until_serving()
        connections = [
            http.client.HTTPConnection(addresses["http"], timeout=60) for _ in range(_CONNECTIONS)
        ]

        def shown() -> dict[str, Any]:
            (found,) = json.loads(get(addresses["admin"], "/api/v1/variants")[1])["models"]
            return dict(found)

        sent = Counter[int]()

        def send() -> list[int]:
            statuses = [infer(each) for each in connections]
            sent.update(statuses)
            return statuses

        while shown()["changed"] != "rollback":
            send()
            assert sent.total() < _MOST, shown()
        assert shown()["why"].startswith("canary: ")
        ramps = 'triton_lb_variant_rollbacks_total{model="m",variant="canary",why="errors"} 1.0'
        assert ramps in get(addresses["metrics"], "/metrics/own")[1]
        while 500 in send():
            pass  # workers hear of it a tenth of a second later
        assert {infer(each) for _ in range(50) for each in connections} == {200}
        assert [each["percent"] for each in shown()["variants"]] == [100, 0]
        assert serving.log.count("variant rolled back") == 1
        wait_until(
            lambda: shown()["variants"][1]["errors"] == sent[500], what="all errors are counted"
        )
    finally:
        for connection in connections:
            connection.close()
        serving.process.close()
