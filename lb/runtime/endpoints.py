"""The sockets that the settings ask for: two listeners at one address are one of them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from lb.domain.backend import Address, AppProtocol
from lb.net.listeners import bind, bound_address
from lb.runtime.fronts import front_addresses
from lb.settings.listening import ListenerTlsSettings, RelayListenerSettings
from lb.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listening socket for requests."""

    name: str
    """Of its listener; of the HTTP one where it serves both."""
    names: tuple[str, ...]
    """Of all its listeners."""
    address: Address
    protocols: tuple[AppProtocol, ...]
    tls: ListenerTlsSettings | None
    proxy_protocol: bool = False
    """Connections of trusted proxies begin with a PROXY header."""


def endpoints(settings: Settings) -> tuple[Endpoint, ...]:
    """Where requests are accepted."""
    listen = settings.listen
    return (
        *_pair("http", listen.http, "grpc", listen.grpc),
        *_pair("https", listen.https, "grpcs", listen.grpcs),
        *(
            Endpoint(name, (name,), address, (AppProtocol.HTTP,), None)
            for name, address in front_addresses(settings.fronts).items()
        ),
    )


def _pair(
    http_name: str,
    http: RelayListenerSettings | None,
    grpc_name: str,
    grpc: RelayListenerSettings | None,
) -> tuple[Endpoint, ...]:
    if http is not None and grpc is not None and http.address == grpc.address:
        names = (http_name, grpc_name)
        is_proxied = http.proxy_protocol or grpc.proxy_protocol
        tls = http.tls or grpc.tls
        return (Endpoint(http_name, names, http.address, tuple(AppProtocol), tls, is_proxied),)
    return tuple(
        Endpoint(
            name, (name,), listener.address, (protocol,), listener.tls, listener.proxy_protocol
        )
        for name, listener, protocol in (
            (http_name, http, AppProtocol.HTTP),
            (grpc_name, grpc, AppProtocol.GRPC),
        )
        if listener is not None
    )


class Listeners:
    """The listening sockets by name: those of endpoints, `metrics` and `admin`."""

    def __init__(self, settings: Settings) -> None:
        """Bind all.

        Raises:
            ListenError: one cannot be bound; none stays open.
        """
        self.sockets: dict[str, socket.socket] = {}
        self.addresses: dict[str, Address] = {}
        """By listener, two at one address included."""
        self.endpoints = endpoints(settings)
        try:
            for endpoint in self.endpoints:
                self._bind(endpoint.name, endpoint.address)
                for name in endpoint.names[1:]:
                    self.addresses[name] = self.addresses[endpoint.name]
            for name in ("metrics", "admin"):
                listener = getattr(settings.listen, name)
                if listener is not None:
                    self._bind(name, listener.address)
        except BaseException:
            self.close()
            raise

    def _bind(self, name: str, address: Address) -> None:
        bound = bind(name, address)
        self.sockets[name] = bound
        self.addresses[name] = bound_address(bound, address)

    def close(self) -> None:
        """Close the sockets; a Unix socket's file goes too."""
        for name, bound in self.sockets.items():
            path = self.addresses[name].path if name in self.addresses else ""
            bound.close()
            if path and os.path.exists(path):
                os.unlink(path)
        self.sockets.clear()
