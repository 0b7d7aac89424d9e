"""grpcio, in C: sync and asyncio, with the most eager keep-alive that it can be set to."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from tests.fakes.grpc_server import path
from tests.peers.balancer import Balancer

EAGER = (
    ("grpc.keepalive_time_ms", 50),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.ssl_target_name_override", "localhost"),
)
IDLE_S = 1.0


def _credentials(balancer: Balancer) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(balancer.world.authority.pem)


def _aio_channel(balancer: Balancer, *, is_tls: bool) -> grpc.aio.Channel:
    if is_tls:
        return grpc.aio.secure_channel(
            balancer.address("grpcs"), _credentials(balancer), options=EAGER
        )
    return grpc.aio.insecure_channel(balancer.address("grpc"), options=EAGER)


async def _storm(channel: grpc.aio.Channel, calls: int) -> None:
    """Calls of which a third is cancelled after a while; the others must work."""
    chance = random.Random(7)

    async def one(cancel_after: float | None) -> None:
        if cancel_after is None:
            payload = chance.randbytes(chance.choice((0, 10, 3000)))
            assert await channel.unary_unary(path("ModelInfer"))(payload) == payload
            return
        call: Any = channel.unary_unary(path("Hang"))(b"x")
        await asyncio.sleep(cancel_after)
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            pass

    for _ in range(calls // 20):
        plan = [chance.random() / 5 if chance.random() < 0.3 else None for _ in range(20)]
        await asyncio.gather(*map(one, plan))


async def test_cancels_and_keep_alive_of_asyncio(balancer: Balancer, is_tls: bool) -> None:
    with balancer.expecting(connections=1):
        async with _aio_channel(balancer, is_tls=is_tls) as channel:
            await _storm(channel, 200)
            await asyncio.sleep(IDLE_S)  # only keep-alive: twenty of them
            assert await channel.unary_unary(path("ModelInfer"))(b"after") == b"after"


async def _expire(channel: grpc.aio.Channel, calls: int) -> None:
    """Calls that no answer comes to, all under way at once."""
    hang = channel.unary_unary(path("Hang"))
    found = await asyncio.gather(
        *(hang(b"x", timeout=0.5) for _ in range(calls)), return_exceptions=True
    )
    ends = Counter(
        (each.code(), each.details()) if isinstance(each, grpc.aio.AioRpcError) else repr(each)
        for each in found
    )
    assert ends == {(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"): calls}


async def test_five_hundred_deadlines_at_once(balancer: Balancer, is_tls: bool) -> None:
    with balancer.expecting(connections=1):
        async with _aio_channel(balancer, is_tls=is_tls) as channel:
            await _expire(channel, 500)
            assert await channel.unary_unary(path("ModelInfer"))(b"after") == b"after"


async def _stream(channel: grpc.aio.Channel) -> None:
    """All kinds of calls, with many messages or large ones."""
    assert len(await channel.unary_unary(path("Blob"))(b"16777216")) == 1 << 24
    sent = [bytes(100_000)] * 40
    assert await channel.stream_unary(path("Collect"))(iter(sent)) == b"".join(sent)
    repeat = channel.unary_stream(path("Repeat"))
    assert sum([len(part) async for part in repeat(b"3000,10")]) == 30_000
    echo: Any = channel.stream_stream(path("ModelStreamInfer"))()
    for number in range(300):
        await echo.write(b"%d" % number)
        assert await echo.read() == b"%d" % number
    await echo.done_writing()
    assert await echo.read() is grpc.aio.EOF


async def test_streams_and_large_messages(balancer: Balancer, is_tls: bool) -> None:
    with balancer.expecting(connections=1):
        async with _aio_channel(balancer, is_tls=is_tls) as channel:
            await _stream(channel)


def _channel(balancer: Balancer, *, is_tls: bool) -> grpc.Channel:
    if is_tls:
        return grpc.secure_channel(balancer.address("grpcs"), _credentials(balancer), options=EAGER)
    return grpc.insecure_channel(balancer.address("grpc"), options=EAGER)


def _work(channel: grpc.Channel, number: int) -> None:
    """A call, and now and then another that is cancelled at once."""
    assert channel.unary_unary(path("ModelInfer"))(b"%d" % number) == b"%d" % number
    if not number % 3:
        channel.unary_unary(path("Hang")).future(b"x").cancel()


def test_threads_of_the_synchronous_client(balancer: Balancer, is_tls: bool) -> None:
    with balancer.expecting(connections=1), _channel(balancer, is_tls=is_tls) as channel:
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(_work, channel, number) for number in range(400)]:
                done.result()
        threading.Event().wait(IDLE_S)  # only keep-alive
        _work(channel, 1)
