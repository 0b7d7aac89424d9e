"""What the connections of the relay share, and their life."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.client import NOBODY, TrustedProxies
from lb.domain.outcome import Reason
from lb.proxy.http2.options import Http2Options
from lb.wire.http2.fields import encode_field
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.relay import snapshot_of
from tests.wire.frames import HEADERS, FieldPair, call


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
    relay.relay.parts.connection_limiter.resize(1, ())
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
