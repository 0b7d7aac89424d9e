"""gRPC through the relay, with grpcio on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from lb.domain.outcome import Outcome, Reason
from tests.fakes.grpc_server import BytesService, grpc_channel, grpc_server, path
from tests.fakes.relay import RunningRelay, running_relay, snapshot_of


@pytest.fixture
async def setup() -> AsyncIterator[tuple[BytesService, RunningRelay, grpc.aio.Channel]]:
    async with (
        grpc_server() as (service, target),
        running_relay(target) as relay,
        grpc_channel(relay.target) as channel,
    ):
        yield service, relay, channel
        await channel.close()
        await until_clean(relay)


async def until_clean(relay: RunningRelay) -> None:
    """Nothing of any call is left behind."""
    for _ in range(500):
        if relay.is_clean():
            return
        await asyncio.sleep(0.01)
    assert relay.leftovers() == dict.fromkeys(relay.leftovers(), 0)


Setup = tuple[BytesService, RunningRelay, grpc.aio.Channel]


async def test_unary_call_passes_metadata_and_trailers_unchanged(setup: Setup) -> None:
    service, relay, channel = setup
    call = channel.unary_unary(path("ModelInfer"))(
        b"\x0a\x06simple", metadata=(("x-a", "b"), ("x-b-bin", b"\0\1\xfe"))
    )
    assert await call == b"\x0a\x06simple"
    assert ("x-initial", "one") in list(await call.initial_metadata())
    assert ("x-bin", b"\0\xff") in list(await call.initial_metadata())
    assert ("x-trailing", "two") in list(await call.trailing_metadata())
    assert ("t-bin", b"\1\2") in list(await call.trailing_metadata())
    assert ("x-a", "b") in service.metadata
    assert ("x-b-bin", b"\0\1\xfe") in service.metadata
    record = relay.finished.records[0]
    assert (record.model, record.grpc_status, record.attempts) == (b"simple", 0, 1)


@pytest.mark.parametrize("count", [1, 300])
async def test_repeated_calls_share_heads_and_leave_nothing(setup: Setup, count: int) -> None:
    _, relay, channel = setup
    method = channel.unary_unary(path("ModelInfer"))
    answers = await asyncio.gather(*(method(b"\x0a\x01%d" % (n % 10)) for n in range(count)))
    assert answers == [b"\x0a\x01%d" % (n % 10) for n in range(count)]
    assert len(relay.finished.records) == count


async def test_error_arrives_with_code_text_and_details(setup: Setup) -> None:
    _, _, channel = setup
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(path("Fail"))(b"x")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "bad ünïcode: 100 %"
    trailers = list(raised.value.trailing_metadata())
    assert ("grpc-status-details-bin", b"\x08\x03\x12\x03bad") in trailers


async def test_unknown_method_is_the_backends_to_refuse(setup: Setup) -> None:
    _, _, channel = setup
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/other.Service/Method")(b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_client_streaming(setup: Setup) -> None:
    _, _, channel = setup

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d," % number

    answer = await channel.stream_unary(path("Collect"))(pieces())
    assert answer == b"".join(b"%d," % number for number in range(100))


async def test_server_streaming(setup: Setup) -> None:
    _, _, channel = setup
    sizes = [len(piece) async for piece in channel.unary_stream(path("Repeat"))(b"50,70000")]
    assert sizes == [70000] * 50


async def test_bidirectional_streaming_takes_turns(setup: Setup) -> None:
    _, _, channel = setup
    call = channel.stream_stream(path("ModelStreamInfer"))()
    for number in range(50):
        await call.write(b"\x0a\x01m%d" % number)
        assert await call.read() == b"\x0a\x01m%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 2**20, 40 * 2**20])
async def test_large_messages_both_ways(setup: Setup, size: int) -> None:
    _, _, channel = setup
    message = b"\x0a\x01m" + bytes(size)
    assert await channel.unary_unary(path("ModelInfer"))(message) == message


async def test_cancelling_reaches_the_backend(setup: Setup) -> None:
    service, relay, channel = setup
    call = channel.unary_unary(path("Hang"))(b"")
    await service.started.wait()
    call.cancel()
    await asyncio.wait_for(service.cancelled.wait(), 30)
    await until_clean(relay)
    assert relay.finished.records[0].reason is Reason.CLIENT_GONE


async def test_losing_the_client_reaches_the_backend(setup: Setup) -> None:
    service, relay, _ = setup
    async with grpc_channel(relay.target) as channel:
        call = channel.unary_unary(path("Hang"))(b"")
        await service.started.wait()
        assert not call.done()
    await asyncio.wait_for(service.cancelled.wait(), 30)


async def test_deadline_is_enforced_and_reaches_the_backend(setup: Setup) -> None:
    service, relay, channel = setup
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(path("Hang"))(b"", timeout=2.0)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(service.cancelled.wait(), 30)
    await until_clean(relay)


async def test_a_thousand_cancelled_streams_leave_nothing(setup: Setup) -> None:
    service, relay, channel = setup
    method = channel.unary_unary(path("Hang"))
    for _ in range(10):
        calls = [method(b"") for _ in range(100)]
        await service.started.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await until_clean(relay)


@pytest.mark.parametrize("state", ["up", "down"])
async def test_own_answers_about_health(setup: Setup, state: str) -> None:
    _, relay, channel = setup
    if state == "down":
        relay.pool.publish(snapshot_of(()))
    ready = await channel.unary_unary(path("ServerReady"))(b"")
    assert ready == (b"\x08\x01" if state == "up" else b"")
    assert await channel.unary_unary(path("ServerLive"))(b"") == b"\x08\x01"
    check = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    assert check == (b"\x08\x01" if state == "up" else b"\x08\x02")


async def test_health_watch_tells_changes(setup: Setup) -> None:
    _, relay, channel = setup
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert await call.read() == b"\x08\x01"
    relay.pool.publish(snapshot_of(()))
    assert await call.read() == b"\x08\x02"
    relay.pool.publish(snapshot_of(relay.backends))
    assert await call.read() == b"\x08\x01"
    call.cancel()


async def test_no_backend_is_unavailable(setup: Setup) -> None:
    _, relay, channel = setup
    relay.pool.publish(snapshot_of(()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(path("ModelInfer"))(b"")
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert relay.finished.records[0].reason is Reason.NO_BACKEND


async def test_full_backends_are_resource_exhausted() -> None:
    async with (
        grpc_server() as (service, target),
        running_relay(target) as relay,
        grpc_channel(relay.target) as channel,
    ):
        relay.backends[0].max_in_flight = 1
        hanging = channel.unary_unary(path("Hang"))(b"")
        await service.started.wait()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(path("ModelInfer"))(b"")
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        hanging.cancel()


async def test_a_refused_connection_goes_to_the_next_backend(unused_tcp_port: int) -> None:
    async with (
        grpc_server() as (_, target),
        running_relay(f"127.0.0.1:{unused_tcp_port}", target) as relay,
        grpc_channel(relay.target) as channel,
    ):
        body = b"\x0a\x01m" + bytes(600_000)
        assert await channel.unary_unary(path("ModelInfer"))(body) == body
        assert relay.outcomes.seen == [("b0", Outcome.CONNECT_REFUSED)]
        assert relay.finished.records[0].attempts == 2


async def test_all_backends_refusing_is_unavailable(unused_tcp_port: int) -> None:
    async with (
        running_relay(f"127.0.0.1:{unused_tcp_port}") as relay,
        grpc_channel(relay.target) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(path("ModelInfer"))(b"m")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "backend b0" in (raised.value.details() or "")
        await until_clean(relay)


async def test_large_metadata_is_refused_on_its_stream_only(setup: Setup) -> None:
    _, _, channel = setup
    method = channel.unary_unary(path("ModelInfer"))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await method(b"m", metadata=(("x-large", "v" * 40_000),))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await method(b"m") == b"m"


async def test_message_limit() -> None:
    async with (
        grpc_server() as (_, target),
        running_relay(target, options={"message_size": 1000}) as relay,
        grpc_channel(relay.target) as channel,
    ):
        method = channel.unary_unary(path("ModelInfer"))
        assert await method(bytes(1000)) == bytes(1000)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await method(bytes(1001))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await until_clean(relay)


async def test_draining_lets_calls_finish_and_closes_the_connection(setup: Setup) -> None:
    _, relay, channel = setup
    call = channel.stream_stream(path("ModelStreamInfer"))()
    await call.write(b"\x0a\x01m")
    assert await call.read() == b"\x0a\x01m"
    relay.begin_drain()
    await call.write(b"again")
    assert await call.read() == b"again"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    for _ in range(200):
        if not relay.client_connections:
            break
        await asyncio.sleep(0.01)
    assert not relay.client_connections


async def test_many_calls_at_once_share_a_connection_without_being_taken_for_a_flood(
    setup: Setup,
) -> None:
    _, relay, channel = setup
    method = channel.unary_unary(path("ModelInfer"))
    message = b"\x0a\x01m" + bytes(20_000)
    answers = await asyncio.gather(*(method(message) for _ in range(600)))
    assert all(answer == message for answer in answers)
    assert relay.outcomes.seen == []


async def test_many_streams_at_once_share_a_connection(setup: Setup) -> None:
    _, relay, channel = setup
    message = b"\x0a\x01m" + bytes(16_000)

    async def converse() -> int:
        call = channel.stream_stream(path("ModelStreamInfer"))()
        for _ in range(10):
            await call.write(message)
        await call.done_writing()
        return sum([len(answer) async for answer in call])

    assert await asyncio.gather(*(converse() for _ in range(150))) == [160_030] * 150
    assert relay.outcomes.seen == []


async def test_the_times_of_a_record_are_in_order(setup: Setup) -> None:
    _, relay, channel = setup
    await channel.unary_unary(path("ModelInfer"))(b"\x0a\x01m")
    await channel.unary_unary(path("Blob"))(b"7")
    await until_clean(relay)
    for record in relay.finished.records:
        times = [
            record.started_at,
            record.placed_at,
            record.connected_at,
            record.first_byte_at,
            record.ended_at,
        ]
        assert times == sorted(times)
