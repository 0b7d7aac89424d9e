"""Idle connections: last in, first out, and gone when they are of no use."""

from __future__ import annotations

import asyncio
import socket

from lb.domain.backend import Address, AppProtocol
from lb.proxy.http1.options import Http1Options
from tests.fakes.http1_sides import Sides
from tests.wire.http1 import reply
from tests.wire.waiting import WAIT_S, eventually


async def test_connection_used_last_is_taken_first() -> None:
    sides = Sides(backends=2)
    first, _ = sides.upstream()
    second, _ = sides.upstream()
    other, _ = sides.upstream(1)
    pool = sides.relay.upstreams
    assert len(pool) == 3
    assert pool.take(sides.backends[0]) is second
    assert pool.take(sides.backends[0]) is first
    assert pool.take(sides.backends[0]) is None
    assert pool.take(sides.backends[1]) is other


async def test_old_connections_are_closed_and_young_ones_stay() -> None:
    sides = Sides(Http1Options(upstream_idle_s=0.04))
    _, old = sides.upstream()
    sides.now += 1
    _, young = sides.upstream()
    await eventually(lambda: old.ended == "abort")
    assert young.ended == ""
    sides.now += 1
    await eventually(lambda: young.ended == "abort")
    assert len(sides.relay.upstreams) == 0
    assert len(sides.timers) == 0, "nothing is left to look for"
    sides.timers.close()


async def test_idle_connections_give_way_oldest_of_the_longest_list_first() -> None:
    sides = Sides(backends=2)
    _, other = sides.upstream(1)
    transports = [sides.upstream(0)[1] for _ in range(3)]
    sides.relay.upstreams.close_idle(2)
    assert [transport.ended for transport in transports] == ["abort", "abort", ""]
    assert other.ended == ""
    sides.relay.upstreams.close_idle(10)
    assert len(sides.relay.upstreams) == 0


async def test_closed_pool_keeps_nothing() -> None:
    sides = Sides()
    _, idle = sides.upstream()
    sides.relay.upstreams.close()
    assert idle.ended == "abort"
    _, late = sides.upstream()
    assert late.ended == "abort"
    await asyncio.sleep(0)
    sides.timers.close()


async def test_connections_of_before_are_not_used_again_once_a_name_leads_elsewhere() -> None:
    sides = Sides(backends=2)
    _, idle = sides.upstream(0)
    busy, transport = sides.upstream(0)
    _, other = sides.upstream(1)
    pool = sides.relay.upstreams
    assert pool.take(sides.backends[0]) is busy
    sides.relay.renew(sides.backends[0])
    assert (idle.ended, transport.ended, other.ended) == ("abort", "", "")
    busy.release(reusable=True)
    assert transport.ended == "abort"
    new, _ = sides.upstream(0)
    assert pool.take(sides.backends[0]) is new


async def test_all_connections_of_a_backend_that_is_cut_are_closed() -> None:
    sides = Sides(backends=2)
    _, idle = sides.upstream(0)
    busy, transport = sides.upstream(0)
    _, other = sides.upstream(1)
    assert sides.relay.upstreams.take(sides.backends[0]) is busy
    sides.relay.renew(sides.backends[0])
    sides.relay.cut(sides.backends[0])
    assert (idle.ended, transport.ended, other.ended) == ("abort", "abort", "")


async def test_new_connection_takes_the_place_of_the_oldest_idle_one() -> None:
    sides = Sides(backends=2)
    _, other = sides.upstream(1)
    transports = [sides.upstream(0)[1] for _ in range(2)]
    sides.relay.upstreams.make_room(sides.backends[0])
    assert [transport.ended for transport in transports] == ["abort", ""]
    assert other.ended == ""
    sides.relay.upstreams.make_room(sides.backends[0])
    sides.relay.upstreams.make_room(sides.backends[0])
    assert len(sides.relay.upstreams) == 1


async def test_a_connection_on_its_way_serves_one_request_once_a_name_leads_elsewhere() -> None:
    sides = Sides()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = sides.backends[0].port(AppProtocol.HTTP)
        port.address = Address(host="127.0.0.1", port=server.getsockname()[1])
        downstream, client = sides.client()
        downstream.data_received(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0)  # the dial begins
        assert sides.upstream_connections == 0
        sides.relay.renew(sides.backends[0])
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(server)
        with peer:
            assert await loop.sock_recv(peer, 1000)
            await loop.sock_sendall(peer, reply(b"ok"))
            async with asyncio.timeout(WAIT_S):
                assert await ended(loop, peer)
        assert client.take().endswith(b"ok")
        assert len(sides.relay.upstreams) == 0


async def ended(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bool:
    """Whether the other side closes a connection and sends nothing more."""
    try:
        return await loop.sock_recv(peer, 1) == b""
    except ConnectionResetError:
        return True
