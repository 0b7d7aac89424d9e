"""Pages in browsers ask from allowed origins, in headless Chromium and byte by byte."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from lb.access.gate import Gate, GateRules
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from tests.fakes.browser import chromium
from tests.fakes.relay import running_http1_relay
from tests.integration.test_page import Pool
from tests.wire.http1 import Answer, Peer, RawClient, raw_client, reply, scripted_backend

SECRET = "0123456789abcdef"
ORIGIN = b"https://app.example.com"
OPTIONS = {"cors_origins": frozenset({ORIGIN}), "linger_s": 0.2}
ALLOWED = {b"access-control-allow-origin": ORIGIN, b"vary": b"Origin"}
PREFLIGHT = (
    b"Access-Control-Request-Method: POST",
    b"Access-Control-Request-Headers: authorization",
)


async def send(
    client: RawClient, *lines: bytes, method: bytes = b"POST", target: bytes = b"/v2/models/m/infer"
) -> Answer:
    head = (method + b" " + target + b" HTTP/1.1", b"Host: a", b"Content-Length: 2", *lines)
    await client.send(b"\r\n".join((*head, b"", b"{}")))
    return await client.answer(method.decode())


def shown(answer: Answer) -> dict[bytes, bytes]:
    """What tells the browser which page may see the answer."""
    return {name: value for name, value in answer.fields.items() if name in ALLOWED}


async def test_answers_name_the_origin_that_may_see_them() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=OPTIONS) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            answer = await send(client, b"Origin: " + ORIGIN)
            assert shown(answer) == ALLOWED
            exposed = answer.fields[b"access-control-expose-headers"]
            assert b"inference-header-content-length" in exposed
            assert shown(await send(client, b"Origin: https://evil.example")) == {
                b"vary": b"Origin"
            }
            assert shown(await send(client)) == {}
        twice = await send(client, b"Origin: " + ORIGIN, b"Origin: " + ORIGIN)
        assert shown(twice) == {b"vary": b"Origin"}


async def test_what_a_backend_says_of_origins_gives_way() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(fields=b"Access-Control-Allow-Origin: *\r\nX-Other: 1\r\n"))

    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=OPTIONS) as relay,
        raw_client(relay.port) as client,
    ):
        backend.script = script
        answer = await send(client, b"Origin: " + ORIGIN)
        assert shown(answer) == ALLOWED
        assert answer.fields[b"x-other"] == b"1"


async def test_a_preflight_needs_no_token_and_the_request_does() -> None:
    book = TokenBook([Token("key", digest_of(SECRET.encode()), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=True), book)
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=OPTIONS, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        answer = await send(client, b"Origin: " + ORIGIN, *PREFLIGHT, method=b"OPTIONS")
        assert (answer.status, shown(answer)) == (200, ALLOWED)
        assert answer.fields[b"access-control-allow-headers"] == b"authorization"
        assert answer.fields[b"access-control-max-age"] == b"600"
        refused = await send(client, b"Origin: " + ORIGIN)
        assert (refused.status, shown(refused)) == (401, ALLOWED)
        assert backend.requests == []
        bearer = f"Authorization: Bearer {SECRET}".encode()
        assert (await send(client, b"Origin: " + ORIGIN, bearer)).status == 200


@pytest.mark.parametrize(
    ("origin", "target"),
    [
        (b"https://evil.example", b"/v2/models/m/infer"),
        (b"https://app.example.com:8443", b"/v2/models/m/infer"),
        (b"null", b"/v2/models/m/infer"),
        (ORIGIN, b"/v2/repository/models/m/load"),
        (ORIGIN, b"/v2/repository/models/m/%6coad"),
    ],
)
async def test_other_origins_and_control_get_no_permission(origin: bytes, target: bytes) -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=OPTIONS) as relay,
        raw_client(relay.port) as client,
    ):
        answer = await send(
            client, b"Origin: " + origin, *PREFLIGHT, method=b"OPTIONS", target=target
        )
        assert shown(answer) == {b"vary": b"Origin"}
        assert b"access-control-allow-methods" not in answer.fields


# A browser


class Quiet(http.server.BaseHTTPRequestHandler):
    """Serves an empty page at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>app</title>")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def site() -> Iterator[int]:
    """Serve the page on loopback; the port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_FETCH = """async ([url, body]) => {
  try {
    const headers = {"Content-Type": "application/json", "X-Request-Id": "page-1"};
    const answer = await fetch(url, body ? {method: "POST", headers, body} : {headers});
    return [answer.status, answer.headers.get("x-triton-lb-request-id")];
  } catch (error) { return [0, null]; }
}"""
_BODY = (
    '{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}],'
    '"parameters": {}}'
)


def test_a_page_in_a_browser_asks_from_an_allowed_origin(tmp_path: Path) -> None:
    with site() as port, chromium() as browser:
        pool = Pool(
            tmp_path,
            access={"cors_origins": [f"http://127.0.0.1:{port}"]},
            diagnostics={"headers": "all"},
        )
        try:
            addresses = pool.serving.until_serving()
            infer = f"http://{addresses['http']}/v2/models/sleeper/infer"
            load = f"http://{addresses['http']}/v2/repository/models/sleeper/load"

            def fetch(page: Page, url: str, body: str = "") -> list[object]:
                found: list[object] = page.evaluate(_FETCH, [url, body])
                return found

            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            assert fetch(page, infer, _BODY) == [200, "page-1"]
            assert fetch(page, load, "{}") == [0, None]
            assert fetch(page, f"{pool.url}/api/v1/status") == [0, None]
            page.goto(f"http://localhost:{port}/")  # another origin
            assert fetch(page, infer, _BODY) == [0, None]
        finally:
            pool.close()
