"""What stands behind a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lb.domain.client import TrustedProxies
from lb.domain.outcome import Reason
from lb.proxy.http1.server import Http1ServerConnection
from lb.proxy.http2.server import Http2ServerConnection
from lb.proxy.sniff import SniffProtocol
from lb.runtime.listeners import ConnectionPipeline, drawn_age
from lb.runtime.logs import Logs
from lb.runtime.sockets import endpoints
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings
from tests.fakes.tls import World
from tests.fakes.transport import FakeTransport


@pytest.fixture
async def product(tmp_path: Path) -> AsyncIterator[LoadBalancer]:
    """Plain and TLS listeners, the latter sharing a port."""
    certificate, key = World(tmp_path).server
    tls = {"certificates": [{"certificate": certificate, "key": key}]}
    listen: dict[str, Any] = {
        "http": "a:1",
        "grpc": "a:2",
        "https": {"address": "a:3", "tls": tls},
        "grpcs": "a:3",
        "trusted_proxies": ["unix"],
    }
    settings = Settings.model_validate({"listen": listen, "backends": [{"http": "b:1"}]})
    logs = Logs(settings)
    made = LoadBalancer(settings, logs)
    yield made
    await made.aclose()
    logs.close()


async def test_protocols_stand_behind_their_sockets(product: LoadBalancer) -> None:
    http, grpc, shared = (ConnectionPipeline(product, each) for each in endpoints(product.settings))
    assert isinstance(http.factory(), Http1ServerConnection)
    assert isinstance(grpc.factory(), Http2ServerConnection)
    assert shared.factory is shared.tls
    assert shared.tls is not None
    assert isinstance(shared.tls.factories["http/1.1"](), Http1ServerConnection)
    assert isinstance(shared.tls.factories["h2"](), Http2ServerConnection)
    assert isinstance(shared.tls.fallback(), SniffProtocol)
    shared.tls.on_failure()
    assert product.relay.meter.traffic[0].connection_errors == {Reason.HANDSHAKE: 1}


async def test_a_proxy_header_comes_before_tls(product: LoadBalancer) -> None:
    endpoint = replace(endpoints(product.settings)[2], proxy_protocol=True)
    front = ConnectionPipeline(product, endpoint)
    assert front.factory is front.proxied
    assert front.proxied is not None
    assert front.proxied.factory is front.tls
    assert front.proxied.trusted == TrustedProxies(unix=True)
    front.proxied.on_failure()
    assert product.relay.meter.traffic[0].connection_errors == {Reason.PROXY_HEADER: 1}


async def test_connections_that_have_not_reached_their_protocol_are_counted(
    product: LoadBalancer,
) -> None:
    shared = replace(endpoints(product.settings)[2], proxy_protocol=True)
    front = ConnectionPipeline(product, shared)
    assert len(front) == 0
    plain = FakeTransport()
    front.factory().connection_made(plain)
    assert len(front) == 1
    front.close()
    assert plain.aborted


async def test_connections_get_an_age_by_chance_around_the_limit(product: LoadBalancer) -> None:
    shared = replace(endpoints(product.settings)[2], max_connection_age_s=100.0)
    front = ConnectionPipeline(product, replace(shared, tls=None))
    assert front.tls is not None
    ages = [drawn_age(100.0, product.parts.rng) for _ in range(1000)]
    assert 90.0 <= min(ages) < 92.0
    assert 108.0 < max(ages) <= 110.0
    before = len(product.parts.timers)
    for factory in front.tls.factories.values():
        factory()
    assert len(product.parts.timers) - before == 2
