"""What stands behind a listening socket: the protocols of its listeners, with TLS or without."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.net.proxy_protocol import ProxyAcceptor
from lb.net.tls.accept import TlsAcceptor
from lb.proxy.sniff import Sniffer
from lb.runtime.endpoints import Endpoint
from lb.runtime.fronts import front_factory
from lb.runtime.wiring import LoadBalancer

ProtocolFactory = Callable[[], Any]
_AGE_JITTER: Final = 0.1
"""Clients that came at once must not all come again at once."""


def drawn_age(limit_s: float, rng: Random) -> float:
    """How long one connection may last where the limit is `limit_s`; 0 is no limit."""
    return limit_s * rng.uniform(1.0 - _AGE_JITTER, 1.0 + _AGE_JITTER)


def _ageing(make: ProtocolFactory, limit_s: float, rng: Random) -> ProtocolFactory:
    def make_ageing() -> Any:
        protocol = make()
        protocol.limit_age(drawn_age(limit_s, rng))
        return protocol

    return make_ageing


class Front:
    """The stages of an endpoint's connections, from the first byte to the protocol."""

    def __init__(self, balancer: LoadBalancer, endpoint: Endpoint) -> None:
        """
        A PROXY header comes first, if there is one. With TLS the client says what it speaks; where
        it does not, and without TLS, the only protocol of the endpoint or its first bytes decide.
        """
        factories: dict[AppProtocol, ProtocolFactory] = {
            AppProtocol.HTTP: balancer.relay.http1.server_protocol,
            AppProtocol.GRPC: balancer.relay.http2.server_protocol,
        }
        own = front_factory(balancer.settings.fronts, endpoint.name, balancer.relay.http1)
        if own is not None:
            factories[AppProtocol.HTTP] = own
        if endpoint.max_connection_age_s:
            for protocol, make in factories.items():
                factories[protocol] = _ageing(
                    make, endpoint.max_connection_age_s, balancer.parts.rng
                )
        timeouts, timers = balancer.settings.timeouts, balancer.parts.timers
        traffic = balancer.relay.meter.traffic[endpoint.protocols[0]]
        self.sniffer: Sniffer | None = None
        self.tls: TlsAcceptor | None = None
        self.proxied: ProxyAcceptor | None = None
        self.factory = factories[endpoint.protocols[0]]
        """Of the first stage."""
        if len(endpoint.protocols) > 1:
            self.factory = self.sniffer = Sniffer(
                factories[AppProtocol.HTTP],
                factories[AppProtocol.GRPC],
                timers,
                timeouts.head,
            )
        tls = balancer.security.servers.get(endpoint.name)
        if tls is not None:
            self.factory = self.tls = TlsAcceptor(
                tls,
                {protocol.alpn: factories[protocol] for protocol in endpoint.protocols},
                self.factory,
                timers,
                balancer.relay.http1.iteration,
                timeouts.handshake,
                lambda: traffic.connection_failed(Reason.HANDSHAKE),
            )
        if endpoint.proxy_protocol:
            self.factory = self.proxied = ProxyAcceptor(
                self.factory,
                balancer.settings.listen.proxies,
                timers,
                timeouts.handshake,
                lambda: traffic.connection_failed(Reason.PROXY_HEADER),
            )

        for stage in (self.sniffer, self.tls):
            if stage is not None:
                stage.crowd = balancer.relay.http1.parts.crowd
                stage.on_crowded = lambda: traffic.connection_failed(Reason.TOO_MANY_CONNECTIONS)

    def __len__(self) -> int:
        """Connections that have not reached their protocol."""
        stages = (self.sniffer, self.tls, self.proxied)
        return sum(len(stage) for stage in stages if stage is not None)

    def close(self) -> None:
        """End the connections that would not get further than a handshake or a header."""
        for stage in (self.tls, self.proxied):
            if stage is not None:
                stage.close()
