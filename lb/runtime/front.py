"""What stands behind a listening socket: the protocols of its listeners, with TLS or without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.net.tls.accept import TlsAcceptor
from lb.proxy.sniff import SniffProtocol
from lb.runtime.endpoints import Endpoint
from lb.runtime.wiring import Product


def front(product: Product, endpoint: Endpoint) -> Callable[[], asyncio.Protocol]:
    """Make the protocol factory of an endpoint.

    With TLS the client says what it speaks; where it does not, and without TLS, the only protocol
    of the endpoint or its first bytes decide.
    """
    factories: dict[AppProtocol, Callable[[], asyncio.Protocol]] = {
        AppProtocol.HTTP: product.http1.server_protocol,
        AppProtocol.GRPC: product.http2.server_protocol,
    }
    fallback = factories[endpoint.protocols[0]]
    if len(endpoint.protocols) > 1:

        def fallback() -> asyncio.Protocol:
            return SniffProtocol(
                product.http1.server_protocol,
                product.http2.server_protocol,
                product.timers,
                product.settings.timeouts.head,
            )

    tls = product.security.servers.get(endpoint.name)
    if tls is None:
        return fallback
    traffic = product.meter.traffic[endpoint.protocols[0]]
    return TlsAcceptor(
        tls,
        {protocol.alpn: factories[protocol] for protocol in endpoint.protocols},
        fallback,
        product.timers,
        product.settings.timeouts.handshake,
        lambda: traffic.connection_failed(Reason.HANDSHAKE),
    )
