"""Backends that break the rules, or use them in unusual ways: the client gets a clear status, and
neither other calls nor other backends suffer."""
# ruff: noqa: E501  # a case is a line where it can be

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from tests.fakes.frames import (
    CANCEL,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    NO_ERROR,
    OK_TRAILERS,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    Peer,
    RawBackend,
    Script,
    answer,
    call,
    continuation,
    data,
    eventually,
    frame,
    headers,
    literal,
    literals,
    message,
    ping,
    raw_backend,
    raw_client,
    replies,
    rst,
    settings,
    window_update,
)
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.relay import running_relay

BOTH_LOOPS = True
MODES = pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
HEAD = headers(1, RESPONSE_FIELDS)
TRAILERS = headers(1, OK_TRAILERS, end=True)
WHOLE = answer(1)
INTERNAL, UNAVAILABLE = 13, 14


@dataclass(frozen=True)
class Reply:
    """What a backend says to the first request, and what the client hears."""

    name: str
    sent: bytes
    status: int | None
    """gRPC status in our trailers-only answer, or of the backend's; None without one."""
    keeps: bool = True
    """The connection to the backend lives on."""
    http: bytes = b"200"
    reset: int | None = None
    """Code of RST_STREAM toward the client, where the answer had begun."""

    def __str__(self) -> str:
        return self.name


def speaks(sent: bytes, *, piecewise: bool) -> Callable[[RawBackend], Script]:
    """Say `sent` to the first request of the first connection; answer all others."""

    def make(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            if len(backend.peers) == 1:
                await peer.until(lambda f: f.ends_stream)
                if piecewise:
                    await peer.send_slowly(sent, 1 + len(sent) // 400)
                else:
                    peer.send(sent)
            while (found := await peer.next()) is not None:
                if found.ends_stream:
                    peer.send(answer(found.stream))

        return play

    return make


def status_head(*values: bytes, end: bool = False) -> bytes:
    return headers(1, [*((b":status", value) for value in values), RESPONSE_FIELDS[1]], end=end)


REPLIES = [
    Reply("a good answer", WHOLE, 0),
    Reply("trailers only", headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"5")], end=True), 5),
    Reply("padding and priority", headers(1, RESPONSE_FIELDS, pad=9, priority=bytes(5)) + data(1, message(), pad=200) + TRAILERS, 0),
    Reply("a head in parts", headers(1, literals(RESPONSE_FIELDS)[:5], done=False) + continuation(1, literals(RESPONSE_FIELDS)[5:]) + TRAILERS, 0),
    Reply("early hints", 5 * headers(1, [(b":status", b"103"), (b"link", b"</a>")]) + WHOLE, 0),
    Reply("an answer twice", WHOLE + TRAILERS + TRAILERS, 0),
    Reply("DATA after the end", WHOLE + data(1, b"late"), 0),
    Reply("a reset after the end", WHOLE + rst(1, NO_ERROR), 0),
    Reply("an unknown frame", frame(0x77, 1, 1, b"?") + WHOLE, 0),
    Reply("an unknown setting", settings({0x99: 1}) + WHOLE, 0),
    Reply("PING before the answer", ping() + WHOLE, 0),
    Reply("an unknown gRPC status", HEAD + headers(1, [(b"grpc-status", b"99")], end=True), 99),
    Reply("a gRPC status that is none", HEAD + headers(1, [(b"grpc-status", b"1")], end=True), 1),
    Reply("content-length that fits nothing", headers(1, [*RESPONSE_FIELDS, (b"content-length", b"9")]) + data(1, message()) + TRAILERS, 0),
    Reply("the end on DATA", HEAD + data(1, message(), end=True), None),
    Reply("nothing but a head", headers(1, RESPONSE_FIELDS, end=True), None),
    Reply("HTTP 503", headers(1, [(b":status", b"503"), (b"content-type", b"text/html")]) + data(1, b"<p>", end=True), None, http=b"503"),
    Reply("DATA before a head", data(1, message()) + WHOLE, INTERNAL),
    Reply("trailers before a head", TRAILERS, INTERNAL),
    Reply("no status", headers(1, RESPONSE_FIELDS[1:]) + TRAILERS, INTERNAL),
    Reply("status 2000", status_head(b"2000"), INTERNAL),
    Reply("status abc", status_head(b"abc"), INTERNAL),
    Reply("status +200", status_head(b"+200"), INTERNAL),
    Reply("status 099", status_head(b"099"), INTERNAL),
    Reply("status 600", status_head(b"600"), INTERNAL),
    Reply("empty status", status_head(b""), INTERNAL),
    Reply("two statuses", status_head(b"200", b"200"), INTERNAL),
    Reply("status 100 and the end", status_head(b"100", end=True), INTERNAL),
    Reply("status 101", status_head(b"101") + WHOLE, INTERNAL),
    Reply("a request's pseudo-field", headers(1, [*RESPONSE_FIELDS[:1], (b":path", b"/")]), INTERNAL),
    Reply("a connection field", headers(1, [*RESPONSE_FIELDS, (b"connection", b"x")]), INTERNAL),
    Reply("upper case", headers(1, [*RESPONSE_FIELDS, (b"X", b"x")]), INTERNAL),
    Reply("NUL in a value", headers(1, [*RESPONSE_FIELDS, (b"x", b"\0")]), INTERNAL),
    Reply("CRLF in a value", headers(1, [*RESPONSE_FIELDS, (b"x", b"\r\nx: y")]), INTERNAL),
    Reply("hints without end", 100 * headers(1, [(b":status", b"103")]), INTERNAL),
    Reply("two heads", HEAD + HEAD, INTERNAL, reset=INTERNAL_ERROR),
    Reply("status in trailers", HEAD + headers(1, [*RESPONSE_FIELDS, *OK_TRAILERS], end=True), None, reset=INTERNAL_ERROR),
    Reply("CR in trailers", HEAD + headers(1, [*OK_TRAILERS, (b"x", b"a\rb")], end=True), None, reset=INTERNAL_ERROR),
    Reply("more than the window", HEAD + 2 * data(1, bytes(2**19)) + data(1, b"x"), None, reset=INTERNAL_ERROR),
    Reply("a stream window of 0", HEAD + window_update(1, 0), None, reset=INTERNAL_ERROR),
    Reply("PUSH_PROMISE", frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2"), INTERNAL, keeps=False),
    Reply("a head on a stream of its own", headers(2, RESPONSE_FIELDS), INTERNAL, keeps=False),
    Reply("a head on an idle stream", headers(5, RESPONSE_FIELDS), INTERNAL, keeps=False),
    Reply("DATA on an idle stream", data(5, b"x"), INTERNAL, keeps=False),
    Reply("a reset of an idle stream", rst(5), INTERNAL, keeps=False),
    Reply("an undecodable head", headers(1, b"\xff\xff\xff\xff\xff\xff"), INTERNAL, keeps=False),
    Reply("a bomb", headers(1, literals(RESPONSE_FIELDS) + literal(b"x", bytes(4000), 0x40) + 24_000 * b"\xbe"), INTERNAL, keeps=False),
    Reply("a head of 70 kB", headers(1, [*RESPONSE_FIELDS, (b"x", bytes(70_000))]), INTERNAL, keeps=False),
    Reply("twenty CONTINUATIONs", headers(1, b"", done=False) + 20 * continuation(1, b"", done=False), INTERNAL, keeps=False),
    Reply("MAX_FRAME_SIZE of 1", settings({5: 1}), INTERNAL, keeps=False),
    Reply("a frame above our limit", frame(0, 0, 1)[3:].join((b"\x10\0\1", b"")), INTERNAL, keeps=False),
    Reply("PING of 7 bytes", frame(6, 0, 0, bytes(7)), INTERNAL, keeps=False),
    Reply("a connection window above 2^31-1", window_update(0, 2**31 - 1), INTERNAL, keeps=False),
    Reply("plain text", b"HTTP/1.1 400 Bad Request\r\n\r\n", INTERNAL, keeps=False),
]  # fmt: skip


@MODES
@pytest.mark.parametrize("reply", REPLIES, ids=str)
async def test_reply(reply: Reply, piecewise: bool) -> None:
    async with (
        raw_backend(speaks(reply.sent, piecewise=piecewise)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.credits = False
        client.send(call(1))
        await client.until_over(1)
        if reply.reset is None:
            assert 1 in client.ended
            assert client.heads[1][0][0] == (b":status", reply.http)
            assert client.status(1) == reply.status
        else:
            assert client.resets[1] == reply.reset
        client.send(window_update(0, 65_535), call(3))
        await client.until_over(3)
        assert client.status(3) == 0
        assert len(backend.peers) == (1 if reply.keeps else 2)
        await relay.until_clean()


RESETS = [
    (NO_ERROR, INTERNAL), (PROTOCOL_ERROR, INTERNAL), (INTERNAL_ERROR, INTERNAL),
    (FLOW_CONTROL_ERROR, INTERNAL), (4, INTERNAL), (5, INTERNAL), (FRAME_SIZE_ERROR, INTERNAL),
    (REFUSED_STREAM, UNAVAILABLE), (CANCEL, 1), (COMPRESSION_ERROR, INTERNAL), (10, INTERNAL),
    (ENHANCE_YOUR_CALM, 8), (12, 7), (13, INTERNAL), (0xFFFF, INTERNAL),
]  # fmt: skip


@pytest.mark.parametrize(("code", "status"), RESETS)
async def test_reset_before_the_answer(code: int, status: int) -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, code))) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(call(1))
        await client.until_over(1)
        assert client.status(1) == status
        assert b"backend b0" in client.fields(1)[b"grpc-message"]
        await relay.until_clean()


@pytest.mark.parametrize(("code", "status"), RESETS)
async def test_reset_within_the_answer_is_passed_on(code: int, status: int) -> None:
    async with (
        raw_backend(replies(lambda s, _: headers(s, RESPONSE_FIELDS) + rst(s, code))) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(call(1))
        await client.until_over(1)
        assert client.resets[1] == code
        await relay.until_clean()
        assert relay.finished.records[0].grpc_status == status


@pytest.mark.parametrize(
    ("http", "code"),
    [
        ("400", grpc.StatusCode.INTERNAL),
        ("401", grpc.StatusCode.UNAUTHENTICATED),
        ("403", grpc.StatusCode.PERMISSION_DENIED),
        ("404", grpc.StatusCode.UNIMPLEMENTED),
        ("429", grpc.StatusCode.UNAVAILABLE),
        ("500", grpc.StatusCode.UNKNOWN),
        ("502", grpc.StatusCode.UNAVAILABLE),
        ("503", grpc.StatusCode.UNAVAILABLE),
        ("504", grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_http_errors_mean_the_same_to_clients_as_without_us(
    http: str, code: grpc.StatusCode
) -> None:
    def reply(stream: int, _: bytes) -> bytes:
        return headers(stream, [(b":status", http.encode())]) + data(stream, b"<p>", end=True)

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        grpc_channel(relay.target) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(path("ModelInfer"))(b"\x0a\x01m")
        assert raised.value.code() is code
        await relay.until_clean()
        port = relay.backends[0].ports[1]
        assert port is not None
        assert port.codes == {code.value[0]: 1}


@pytest.mark.parametrize(
    "text",
    [b"%0d%0a", b"%zz %", "nö".encode(), b"\xff\xfe", b"", b"x" * 20_000],
    ids=["escapes", "bad escapes", "UTF-8", "bytes", "empty", "20 kB"],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_the_text_of_an_error_is_passed_on_unchanged(text: bytes, begun: bool) -> None:
    status = [(b"grpc-status", b"3"), (b"grpc-message", text), (b"grpc-status-details-bin", b"CAM")]

    def reply(stream: int, _: bytes) -> bytes:
        if not begun:
            return headers(stream, [*RESPONSE_FIELDS, *status], end=True)
        return headers(stream, RESPONSE_FIELDS) + headers(stream, status, end=True)

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        for stream in (1, 3):
            client.send(call(stream))
            await client.until_over(stream)
            assert client.heads[stream][-1][-3:] == status
        assert relay.finished.records[1].grpc_status == 3


@pytest.mark.parametrize(
    "one",
    [ping(), settings(), settings({4: 65_535}), window_update(0, 1), frame(2, 0, 1, bytes(5)),
     frame(0x77, 0, 0, b"?"), data(1)],
    ids=["PING", "SETTINGS", "window", "WINDOW_UPDATE", "PRIORITY", "unknown", "empty DATA"],
)  # fmt: skip
async def test_a_flood_of_one_backend_leaves_calls_on_another_alone(one: bytes) -> None:
    head = headers(1, RESPONSE_FIELDS)
    async with (
        raw_backend(replies(lambda stream, _: head + 5000 * one)) as flooding,
        raw_backend() as other,
        running_relay(flooding.target, other.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(call(1))
        await eventually(lambda: flooding.requests)
        for stream in range(3, 43, 2):
            client.send(call(stream))
            await client.until_over(stream)
            assert client.status(stream) == 0
        assert len(other.requests) == 20
        client.send(rst(1))
        await relay.until_clean()
