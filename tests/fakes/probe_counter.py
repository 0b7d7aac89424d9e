"""A backend that counts the probes of its readiness, and answers them only while it may."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.process import wait_until
from tests.fakes.serving import Serving


class ProbeCounter:
    """A backend that counts questions for its readiness."""

    def __init__(self) -> None:
        counter = self
        self.count = 0
        self.answers = threading.Event()
        """Probes are answered."""
        self.answers.set()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/v2/health/ready":
                    counter.count += 1
                    counter.answers.wait()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> ProbeCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def until_probed(self, count: int) -> None:
        """Wait for so many probes in all."""
        wait_until(lambda: self.count >= count, timeout_s=60.0, what=f"{count} probes")


@contextmanager
def holding_successors(serving: Serving, config: dict[str, Any]) -> Iterator[ProbeCounter]:
    """Add a backend, by a reload, whose first probe keeps the next process from being ready.

    The process that runs has probed it, and does not probe it again.
    """
    with ProbeCounter() as gate:
        config["backends"] = [*config["backends"], {"name": "gate", "http": gate.address}]
        config["health"] = {"interval": "10m", "timeout": "60s"}
        reloads = serving.log.count("configuration reloaded")
        serving.write(config)
        serving.signal(signal.SIGHUP)
        serving.until_logged("configuration reloaded", reloads + 1)
        gate.until_probed(1)
        gate.answers.clear()
        yield gate
