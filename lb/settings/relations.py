"""Rules that span several settings.

They work on the plain tree, not on the models: a model with one bad field is never built, and
operators want to hear of everything at once. What cannot be read is passed over here; the models
complain about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lb.domain.backend import Address
from lb.settings.access_relations import (
    check_admin,
    check_client_limits,
    check_tenants,
    check_tokens,
)
from lb.settings.backend_relations import (
    address_at,
    check_backends,
    check_loops,
    entries,
    mapping,
    overlap,
)
from lb.settings.discovery_relations import check_discovery
from lb.settings.front_relations import check_fronts, enabled_fronts
from lb.settings.fronts import DEFAULT_ADDRESS
from lb.settings.limits import LimitSettings
from lb.settings.problems import Path
from lb.settings.units import format_size, parse_size

Finding = tuple[Path, str]

_LISTENERS: Final = ("http", "grpc", "https", "grpcs", "metrics", "admin")
_RELAYS: Final = _LISTENERS[:4]
_PAIRS: Final = (("http", "grpc"), ("https", "grpcs"))
"""Listeners that may be at one address."""
_RESERVED: Final = frozenset({
    "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers with a meaning for the relay itself."""


def check_relations(root: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the path and message of every rule that is broken."""
    listeners = _listeners(mapping(root.get("listen")))
    fronts = enabled_fronts(root)
    front_addresses = _front_addresses(fronts)
    backends = entries(root.get("backends"))
    yield from _check_listeners(root, listeners)
    yield from check_discovery(root)
    yield from check_fronts(fronts, front_addresses)
    yield from _check_front_addresses(front_addresses, listeners)
    yield from _check_listener_tls(mapping(root.get("listen")), listeners)
    yield from check_backends(backends)
    ours = {f"listen.{name}": address for name, address in listeners.items()}
    ours |= {f"fronts.{name}": address for name, address in front_addresses.items()}
    yield from check_loops(ours, backends)
    yield from _check_limits(mapping(root.get("limits")))
    access = mapping(root.get("access"))
    tokens = entries(access.get("tokens"))
    yield from check_tokens(tokens)
    yield from check_client_limits(entries(access.get("limits")), tokens)
    yield from check_tenants(mapping(root.get("scheduling")), tokens)
    yield from check_admin(mapping(root.get("admin")), listeners.get("admin"), tokens)
    if str(access.get("header", "")).lower() in _RESERVED:
        yield ("access", "header"), "this header has another meaning"


def _listeners(listen: Mapping[str, object]) -> dict[str, Address]:
    """Return the addresses that can be read, by listener."""
    found = {}
    for name in _LISTENERS:
        value = listen.get(name)
        address = address_at(value.get("address") if isinstance(value, dict) else value)
        if address is not None:
            found[name] = address
    return found


def _front_addresses(fronts: Mapping[str, Mapping[str, object]]) -> dict[str, Address]:
    found = {
        name: address_at(front.get("address", DEFAULT_ADDRESS)) for name, front in fronts.items()
    }
    return {name: address for name, address in found.items() if address is not None}


def _check_listeners(root: Mapping[str, object], found: Mapping[str, Address]) -> Iterator[Finding]:
    listen = root.get("listen")
    if isinstance(listen, dict) and not listen.keys() & set(_RELAYS):
        yield ("listen",), "at least one of http and grpc is needed"
    for index, name in enumerate(found):
        for earlier in list(found)[:index]:
            shared = (earlier, name) in _PAIRS and found[name] == found[earlier]
            if not shared and overlap(found[name], found[earlier]):
                yield ("listen", name), f"{found[name]} is already taken by listen.{earlier}"


def _check_front_addresses(
    fronts: Mapping[str, Address], listeners: Mapping[str, Address]
) -> Iterator[Finding]:
    taken = {f"listen.{name}": address for name, address in listeners.items()}
    for name, address in fronts.items():
        for owner, other in taken.items():
            if overlap(address, other):
                yield ("fronts", name, "address"), f"{address} is already taken by {owner}"
        taken[f"fronts.{name}"] = address


def _check_listener_tls(
    listen: Mapping[str, object], found: Mapping[str, Address]
) -> Iterator[Finding]:
    given = {name: mapping(listen.get(name)).get("tls") for name in _RELAYS}
    for http, grpc in _PAIRS:
        if http in found and found[http] == found.get(grpc):
            if given[http] and given[grpc] and given[http] != given[grpc]:
                yield ("listen", grpc, "tls"), f"differs from listen.{http}.tls at the same address"
            given[http] = given[grpc] = given[http] or given[grpc]
    for name in _RELAYS:
        tls = mapping(given[name])
        if name in _PAIRS[1] and name in listen and not tls:
            yield ("listen", name), "needs tls"
        if mapping(listen.get(name)).get("proxy_protocol") and not listen.get("trusted_proxies"):
            yield ("listen", name, "proxy_protocol"), "needs listen.trusted_proxies"
        header = tls.get("subject_header")
        if header is not None and tls.get("client_ca") is None:
            yield ("listen", name, "tls", "subject_header"), "needs client_ca"
        if isinstance(header, str) and header.lower() in _RESERVED:
            yield ("listen", name, "tls", "subject_header"), "this header has another meaning"


def _check_limits(limits: Mapping[str, object]) -> Iterator[Finding]:
    for lower, upper in (
        ("request_line_bytes", "head_bytes"),
        ("stream_window_bytes", "stream_window_max_bytes"),
        ("stream_window_max_bytes", "memory_bytes"),
    ):
        low, high = _size(limits, lower), _size(limits, upper)
        # 0 stands for "find out" and "off", not for a bound.
        if low and high and low > high:
            yield (
                ("limits", upper),
                f"{format_size(high)} is less than limits.{lower} ({format_size(low)})",
            )


def _size(limits: Mapping[str, object], name: str) -> int | None:
    try:
        return parse_size(limits.get(name, LimitSettings.model_fields[name].default))
    except ValueError:
        return None
