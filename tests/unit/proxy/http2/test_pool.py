"""The connections to one backend: room, waiting calls, dials that fail, retirement."""

from __future__ import annotations

import asyncio
import socket

import pytest

from lb.domain.backend import Address, AppProtocol
from lb.domain.outcome import Outcome
from lb.proxy.http2.pool import UpstreamPool
from tests.fakes.http2_connections import GREETING, PaperRelay
from tests.wire.frames import HEADERS, MAX_CONCURRENT_STREAMS, SETTINGS_ACK, answer, call, settings
from tests.wire.waiting import eventually


def pool_of(relay: PaperRelay, number: int = 0) -> UpstreamPool:
    return relay.relay.pool(relay.backends[number])


def aim(relay: PaperRelay, port: int) -> None:
    """Let the first backend's connections be made to a port of loopback."""
    relay.backends[0].port(AppProtocol.GRPC).address = Address(host="127.0.0.1", port=port)


async def test_the_first_connection_with_room_is_used() -> None:
    relay = PaperRelay()
    one_stream = settings({MAX_CONCURRENT_STREAMS: 1}) + SETTINGS_ACK
    first, second = relay.backend(0, one_stream), relay.backend(0)
    relay.client().sends(call(1), call(3), call(5))
    assert [frame.stream for frame in first.gets() if frame.kind == HEADERS] == [1]
    assert [frame.stream for frame in second.gets() if frame.kind == HEADERS] == [1, 3]


async def test_a_refused_dial_fails_those_who_wait(unused_tcp_port: int) -> None:
    relay = PaperRelay()
    aim(relay, unused_tcp_port)
    client = relay.client()
    client.sends(call(1), call(3))
    await eventually(lambda: len(relay.finished.records) == 2)
    relay.relay.flush()
    heads = [frame for frame in client.gets() if frame.kind == HEADERS]
    assert all(b"backend b0 (grpc) refused the connection" in head.payload for head in heads)
    assert relay.outcomes.seen == [("b0", Outcome.CONNECT_REFUSED)] * 2
    assert relay.backends[0].port(AppProtocol.GRPC).connect_failures == 1
    await eventually(lambda: not relay.tasks)
    assert relay.is_clean()


async def test_a_call_that_was_cancelled_while_it_waited_is_passed_over(
    unused_tcp_port: int,
) -> None:
    relay = PaperRelay()
    aim(relay, unused_tcp_port)
    client = relay.client()
    client.sends(call(1))
    client.goes()
    assert relay.dispatcher.open_exchanges == 0
    pool = pool_of(relay)
    backend = relay.backend()
    pool.serve_waiting()
    assert not pool.waiting
    assert not backend.connection.streams
    await relay.tasks.aclose()


@pytest.mark.parametrize("is_greeted", [False, True])
async def test_a_connection_that_calls_wait_for_takes_these_before_it_retires(
    is_greeted: bool,
) -> None:
    relay = PaperRelay(backends=1)
    client = relay.client()
    with socket.create_server(("127.0.0.1", 0)) as server:
        aim(relay, server.getsockname()[1])
        client.sends(call(1))
        pool = pool_of(relay)
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(server)
        with peer:
            await eventually(lambda: len(pool))
            (connection,) = pool._others
            if is_greeted:  # and the task that dials has not heard of it yet
                connection.data_received(GREETING)
            pool.retire_all()
            if not is_greeted:
                await loop.sock_sendall(peer, GREETING)
            await eventually(lambda: connection.retired)
            assert sorted(connection.streams) == [1]
            assert pool.connections == []
            assert not relay.finished.records
            pool.close()
            await eventually(lambda: pool.is_empty)


async def test_a_backend_that_is_cut_has_no_connections_and_its_calls_fail() -> None:
    relay = PaperRelay(backends=1)
    connection = relay.backend(0)
    client = relay.client()
    client.sends(call(1))
    pool = pool_of(relay)
    relay.relay.cut(relay.backends[0])
    assert connection.transport.aborted
    connection.goes()
    assert relay.relay.upstream_connections == 0
    assert pool_of(relay) is not pool
    await eventually(lambda: len(relay.finished.records) == 1)
    assert relay.backends[0].in_flight == 0


async def test_calls_that_wait_for_a_backend_that_is_cut_are_told_so() -> None:
    relay = PaperRelay(backends=1)
    client = relay.client()
    with socket.create_server(("127.0.0.1", 0)) as server:
        aim(relay, server.getsockname()[1])
        client.sends(call(1), call(3))
        pool = pool_of(relay)
        relay.relay.cut(relay.backends[0])
        assert not pool.waiting
        server.setblocking(False)
        peer, _ = await asyncio.get_running_loop().sock_accept(server)
        with peer:
            await asyncio.get_running_loop().sock_sendall(peer, GREETING)
            await eventually(lambda: pool.is_empty)
        await eventually(lambda: len(relay.finished.records) == 2)
    assert relay.backends[0].in_flight == 0


async def test_calls_go_over_new_connections_once_a_name_leads_elsewhere() -> None:
    relay = PaperRelay(backends=1)
    before = relay.backend(0)
    client = relay.client()
    client.sends(call(1))
    relay.relay.renew(relay.backends[0])
    after = relay.backend(0)
    client.sends(call(3))
    assert [frame.kind for frame in after.gets()].count(HEADERS) == 1
    assert not before.transport.is_closing()
    before.sends(answer(1))
    assert before.transport.is_closing()


async def test_a_connection_on_its_way_takes_no_later_calls_once_a_name_leads_elsewhere() -> None:
    relay = PaperRelay(backends=1)
    client = relay.client()
    with socket.create_server(("127.0.0.1", 0)) as server:
        aim(relay, server.getsockname()[1])
        client.sends(call(1))
        await asyncio.sleep(0)  # the dial begins
        pool = pool_of(relay)
        assert pool.all_links() == ()
        relay.relay.renew(relay.backends[0])
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(server)
        with peer:
            await loop.sock_sendall(peer, GREETING)
            await eventually(lambda: any(link.streams for link in pool.all_links()))
            after = relay.backend(0)
            client.sends(call(3))
            assert [frame.kind for frame in after.gets()].count(HEADERS) == 1
            pool.close()
            await eventually(lambda: pool.is_empty or len(pool) == 1)
