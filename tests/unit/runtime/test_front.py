"""What stands behind a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lb.domain.outcome import Reason
from lb.net.tls.accept import TlsAcceptor
from lb.proxy.http1.server import ServerConnection
from lb.proxy.http2.server import ServerLink
from lb.proxy.sniff import SniffProtocol
from lb.runtime.endpoints import endpoints
from lb.runtime.front import front
from lb.runtime.logs import Logs
from lb.runtime.wiring import Product, build
from lb.settings.model import Settings
from tests.fakes.tls import World


@pytest.fixture
async def product(tmp_path: Path) -> AsyncIterator[Product]:
    """Plain and TLS listeners, the latter sharing a port."""
    certificate, key = World(tmp_path).server
    tls = {"certificates": [{"certificate": certificate, "key": key}]}
    listen: dict[str, Any] = {
        "http": "a:1",
        "grpc": "a:2",
        "https": {"address": "a:3", "tls": tls},
        "grpcs": "a:3",
    }
    settings = Settings.model_validate({"listen": listen, "backends": [{"http": "b:1"}]})
    logs = Logs(settings)
    made = build(settings, logs)
    yield made
    await made.aclose()
    logs.close()


async def test_protocols_stand_behind_their_sockets(product: Product) -> None:
    http, grpc, shared = (front(product, each) for each in endpoints(product.settings))
    assert isinstance(http(), ServerConnection)
    assert isinstance(grpc(), ServerLink)
    assert isinstance(shared, TlsAcceptor)
    assert isinstance(shared.factories["http/1.1"](), ServerConnection)
    assert isinstance(shared.factories["h2"](), ServerLink)
    assert isinstance(shared.fallback(), SniffProtocol)
    shared.on_failure()
    assert product.meter.traffic[0].connection_errors == {Reason.HANDSHAKE: 1}
