"""What backends answer to calls of our own: the same however it comes, or a fault of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lb.domain.errors import UpstreamError
from lb.net.ask.grpc import GrpcClientCall
from lb.net.ask.http import HttpClientCall
from lb.wire.http2 import frames as fr
from tests.fuzz.target import Target, same_for_every_cutting
from tests.fuzz.targets.codec import FRAME_WORDS
from tests.wire import frames as f

_LIMIT = 1000
_MESSAGE = 100_000


def _outcome(client_call: Any, pieces: list[bytes]) -> Any:
    """The answer, or whose fault it is that there is none."""
    client_call.opening()
    try:
        for piece in pieces:
            if client_call.answer is None:
                client_call.receive(piece)
                sent = sum(len(part) for part in client_call.upload())
                assert sent <= _MESSAGE + 2 * fr.HEADER_SIZE
    except UpstreamError as error:
        assert len(error.detail) < 200
        return error.outcome
    if client_call.answer is None:
        client_call.closed()
    return client_call.answer


def _http() -> HttpClientCall:
    return HttpClientCall(b"GET", b"/", (), authority=b"a", limit=_LIMIT)


def _grpc() -> GrpcClientCall:
    return GrpcClientCall(b"/s/M", (), bytes(_MESSAGE), authority=b"a", limit=_LIMIT)


def _check(make: Callable[[], Any]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        answer = same_for_every_cutting(lambda pieces: _outcome(make(), pieces), data)
        body: bytes = getattr(answer, "body", b"") or getattr(answer, "message", b"")
        assert len(body) <= _LIMIT

    return check


_HTTP = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\n\r\nmore",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000),
)
_HTTP_WORDS = (
    b"HTTP/1.1 ", b" 200 OK\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n",
    b"\r\n\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"100", b"204",
)  # fmt: skip
_OPEN = f.headers(1, f.literals([(b":status", b"200"), (b"content-type", b"application/grpc")]))
_OK = f.headers(1, f.literals([(b"grpc-status", b"0")]), end=True)
_ERROR = f.literals([(b":status", b"200"), (b"grpc-status", b"5"), (b"grpc-message", b"no %C3%A4")])
_GRPC = (
    f.settings() + _OPEN + f.data(1, f.message(b"hello")) + _OK,
    f.settings({4: 10, 5: 20_000}) + f.ping() + f.window_update(1, 9) + _OPEN + _OK,
    f.settings() + f.headers(1, _ERROR, end=True) + f.rst(1),
    f.settings() + _OPEN + f.data(1, f.message(b"x" * 900), pad=9) + f.goaway(0) + _OK,
    f.settings() + f.headers(1, _ERROR[:5], done=False) + f.continuation(1, _ERROR[5:]),
    f.settings() + _OPEN + f.data(1, f.message(b"a") * 2) + _OK,
    f.settings() + _OPEN + f.data(1, f.message(b"a", 1), end=True),
)

TARGETS = (
    Target("ask_http", _check(_http), _HTTP, _HTTP_WORDS),
    Target("ask_grpc", _check(_grpc), _GRPC, FRAME_WORDS),
)
