"""What the connections of the relay share, and their life."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.client import NOBODY, TrustedProxies
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.proxy.http2.options import Http2Options
from lb.wire.http2.fields import encode_field
from tests.fakes.gated import FACTS
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fakes.relay import snapshot_of
from tests.wire.frames import (
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    RST_STREAM,
    SETTINGS_ACK,
    FieldPair,
    answer,
    call,
    message,
    settings,
    window_update,
)


@pytest.mark.parametrize(
    ("options", "client", "fields"),
    [
        ({}, "10.0.0.9", []),
        (
            {"x_forwarded": True},
            "10.0.0.9",
            [(b"x-forwarded-for", b"10.0.0.9"), (b"x-forwarded-proto", b"http")],
        ),
        ({"forwarded": True}, "10.0.0.9", [(b"forwarded", b"for=10.0.0.9;proto=http")]),
        ({"forwarded": True}, "::1", [(b"forwarded", b'for="[::1]";proto=http')]),
    ],
)
async def test_forwarding_fields_only_where_switched_on(
    options: dict[str, bool], client: str, fields: list[FieldPair]
) -> None:
    relay = PaperRelay(options=Http2Options(**options)).relay  # type: ignore[arg-type]
    wanted = b"".join(encode_field(name, value) for name, value in fields)
    assert relay.forwarded_fields(replace(NOBODY, address=ip_address(client))) == wanted


@pytest.mark.parametrize("trusted", [False, True])
async def test_only_what_trusted_proxies_claim_of_clients_is_passed_on(trusted: bool) -> None:
    proxies = TrustedProxies((ip_network("127.0.0.1"),) if trusted else ())
    relay = PaperRelay(options=Http2Options(x_forwarded=True, trusted_proxies=proxies))
    backend, client = relay.backend(), relay.client()
    credentials = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-proto", b"https")]
    client.sends(call(1, None, *credentials))
    (head,) = [frame for frame in backend.gets() if frame.kind == HEADERS]
    for name, value in credentials:
        assert (encode_field(name, value) in head.payload) is trusted
    assert encode_field(b"x-forwarded-for", b"127.0.0.1") in head.payload
    assert (encode_field(b"x-forwarded-proto", b"http") in head.payload) is not trusted


async def test_a_client_with_too_many_connections_loses_the_newest() -> None:
    relay = PaperRelay()
    relay.relay.parts.connection_limiter.limit = 1
    first, second = relay.client(), relay.client(b"")
    assert (first.transport.aborted, second.transport.aborted) == (False, True)
    assert second.transport.written == b""
    traffic = relay.finished.meter.traffic[AppProtocol.GRPC]
    assert traffic.connection_errors == {Reason.TOO_MANY_CONNECTIONS: 1}
    for side in (first, second):
        side.goes()
    assert (traffic.connections, len(relay.relay.parts.connection_limiter)) == (0, 0)
    assert not relay.client().transport.aborted


async def test_backends_that_get_nothing_new_lose_their_idle_connections() -> None:
    relay = PaperRelay(backends=2)
    first, second = relay.backend(0), relay.backend(1)
    assert relay.relay.upstream_connections == 2
    relay.ref.publish(snapshot_of(relay.backends[1:], generation=2))
    assert first.transport.is_closing()
    assert not second.transport.is_closing()
    first.goes()
    assert relay.relay.upstream_connections == 1


async def clients_that_leave(relay: PaperRelay, clients: int = 4, calls: int = 300) -> list[Side]:
    """Clients with many calls under way close their connections in one loop iteration. Returns the
    connections to backends."""
    backends = [relay.backend(at, settings({MAX_CONCURRENT_STREAMS: 1000})) for at in range(2)]
    sides = [relay.client() for _ in range(clients)]
    for side in sides:
        side.sends(*(call(stream) for stream in range(1, 2 * calls, 2)))
    assert relay.open_requests == clients * calls
    await asyncio.sleep(0)  # what was read may have been more than an iteration brings
    for side in sides:
        side.goes()
    return backends


async def test_calls_of_clients_that_leave_together_end_in_steps() -> None:
    relay = PaperRelay(backends=2)
    backends = await clients_that_leave(relay)
    assert not relay.relay.servers
    ended = [0, len(relay.finished.records)]
    while relay.open_requests:
        await asyncio.sleep(0)
        ended.append(len(relay.finished.records))
    assert max(after - before for before, after in itertools.pairwise(ended)) <= 400
    assert {record.reason for record in relay.finished.records} == {Reason.CLIENT_GONE}
    relay.flush()
    got = [frame.kind for backend in backends for frame in backend.gets()]
    assert got.count(RST_STREAM) == 1200
    assert relay.is_clean()


async def test_the_end_of_the_process_ends_calls_of_clients_that_have_left() -> None:
    relay = PaperRelay(backends=2)
    backends = await clients_that_leave(relay)
    for backend in backends:
        backend.goes()
    await relay.relay.aclose()
    assert len(relay.finished.records) == 1200
    assert relay.is_clean()


async def test_queued_calls_of_a_client_that_has_left_do_not_begin() -> None:
    relay = PaperRelay()
    plan = QueuePlan(limits={}, default=Capacity(concurrency=1, instances=1))
    route = ModelRoute(facts=FACTS, is_uniform=True, plan=plan)
    relay.ref.publish(replace(relay.ref.current, routes={b"m": route}))
    backend, client = relay.backend(), relay.client()
    client.sends(*(call(stream) for stream in range(1, 600, 2)))
    await asyncio.sleep(0)
    client.goes()
    for _ in range(10):
        await asyncio.sleep(0)
        relay.flush()
    assert [frame.kind for frame in backend.gets()].count(HEADERS) == 1
    assert relay.is_clean()


class FailsOnce(list[Any]):
    """Takes records of requests; there is a bug in how it takes the first."""

    def append(self, record: Any) -> None:
        super().append(record)
        if len(self) == 1:
            raise RuntimeError("a bug")


async def test_a_connection_that_fails_while_it_is_written_keeps_no_other_from_it() -> None:
    relay = PaperRelay()
    relay.finished.records = FailsOnce()
    backend = relay.backend()
    no_window = settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK
    clients = [relay.client(no_window) for _ in range(3)]
    for number, client in enumerate(clients):
        client.sends(call(1))
        backend.sends(answer(2 * number + 1, message(b"answer")))
        client.gets()
    for client in clients:
        client.connection.data_received(window_update(1, 100))
    relay.relay.flush()
    assert GOAWAY in [frame.kind for frame in clients[0].gets()]
    for client in clients[1:]:
        assert b"answer" in b"".join(frame.payload for frame in client.gets())
    assert len(relay.finished.records) == 3
