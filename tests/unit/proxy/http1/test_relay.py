"""What connections share, and their life."""

from __future__ import annotations

import gc

from tests.fakes.http1_sides import Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_relay_is_idle_while_no_client_waits() -> None:
    sides = Sides()
    sides.upstream()
    server, _ = sides.client()
    assert sides.relay.idle
    server.data_received(_GET)
    assert not sides.relay.idle


async def test_closed_connections_leave_nothing_for_the_cycle_collector() -> None:
    sides = Sides()
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    chunked = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            connection, backend = sides.upstream()
            server, client = sides.client()
            for wire in (_GET, chunked + b"0\r\n\r\n", chunked):
                server.data_received(wire)
                connection.data_received(ok)
            for transport in (client, backend):
                transport.lose()
                transport.protocol = None  # type: ignore[assignment]
            del connection, backend, server, client, transport
        sides.finished.records.clear()
        assert gc.collect() < 50
    finally:
        gc.enable()
    sides.timers.close()
