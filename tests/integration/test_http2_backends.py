"""Backends that break the rules, or use them in unusual ways: the client gets a clear status, and
neither other calls nor other backends suffer."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from tests.corpus.grpc_backends import ROWS, BackendRow
from tests.corpus.http2_play import hear
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.relay import running_relay
from tests.wire.frames import (
    CANCEL,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    NO_ERROR,
    OK_TRAILERS,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    answer,
    call,
    data,
    headers,
    message,
    rst,
    settings,
    window_update,
)
from tests.wire.http2 import Peer, RawBackend, Script, raw_backend, raw_client, replies

BOTH_LOOPS = True
MODES = pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
HEAD = headers(1, RESPONSE_FIELDS)
TRAILERS = headers(1, OK_TRAILERS, end=True)
WHOLE = answer(1)
INTERNAL, UNAVAILABLE = 13, 14


def speaks(sent: bytes, *, piecewise: bool) -> Callable[[RawBackend], Script]:
    """Say `sent` to the first request of the first connection; answer all others."""

    def make(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            if len(backend.peers) == 1:
                await peer.until(lambda f: f.ends_stream)
                if piecewise:
                    await peer.send_in_pieces(sent)
                else:
                    peer.send(sent)
            while (found := await peer.next()) is not None:
                if found.ends_stream:
                    peer.send(answer(found.stream))

        return play

    return make


REPLIES = [
    row
    for row in ROWS
    if row.greeting == settings()
    and row.acknowledges
    and not (row.retried or row.hangs_up or row.timeout or row.id == "U-15c")
]
"""Rows that are about the answer to the first request alone."""


@MODES
@pytest.mark.parametrize("row", REPLIES, ids=str)
async def test_reply(row: BackendRow, piecewise: bool) -> None:
    async with (
        raw_backend(speaks(row.reply, piecewise=piecewise)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.credits = False
        client.send(call(1))
        await hear(row.right, client)
        client.send(window_update(0, 65_535), call(3))
        await client.until_over(3)
        assert client.status(3) == 0
        assert len(backend.peers) == (1 if row.keeps else 2)
        await relay.until_clean()


async def test_error_names_the_backend_that_reset_the_call() -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, INTERNAL_ERROR))) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(call(1))
        await client.until_over(1)
        assert b"backend b0" in client.fields(1)[b"grpc-message"]
        await relay.until_clean()


RESETS = [
    (NO_ERROR, INTERNAL), (PROTOCOL_ERROR, INTERNAL), (INTERNAL_ERROR, INTERNAL),
    (FLOW_CONTROL_ERROR, INTERNAL), (4, INTERNAL), (5, INTERNAL), (FRAME_SIZE_ERROR, INTERNAL),
    (REFUSED_STREAM, UNAVAILABLE), (CANCEL, 1), (COMPRESSION_ERROR, INTERNAL), (10, INTERNAL),
    (ENHANCE_YOUR_CALM, 8), (12, 7), (13, INTERNAL), (0xFFFF, INTERNAL),
]  # fmt: skip


@pytest.mark.parametrize(("code", "status"), RESETS)
async def test_reset_within_the_answer_is_passed_on(code: int, status: int) -> None:
    async with (
        raw_backend(
            replies(lambda s, _: headers(s, RESPONSE_FIELDS) + data(s, message()) + rst(s, code))
        ) as backend,
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
