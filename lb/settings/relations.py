"""Rules that span several settings.

They work on the plain tree, not on the models: a model with one bad field is never built, and
operators want to hear of everything at once. What cannot be read is passed over here; the models
complain about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lb.domain.backend import Address
from lb.settings.access_relations import check_admin, check_client_limits, check_tokens
from lb.settings.front_relations import check_fronts, enabled_fronts
from lb.settings.fronts import DEFAULT_ADDRESS
from lb.settings.limits import LimitSettings
from lb.settings.problems import Path, show
from lb.settings.units import format_size, parse_size
from lb.settings.values import read_address

Finding = tuple[Path, str]

_ANY: Final = frozenset({"0.0.0.0", "::"})
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LISTENERS: Final = ("http", "grpc", "https", "grpcs", "metrics", "admin")
_RELAYS: Final = _LISTENERS[:4]
_PAIRS: Final = (("http", "grpc"), ("https", "grpcs"))
"""Listeners that may be at one address."""
_RESERVED: Final = frozenset({
    "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers with a meaning for the relay itself."""
_PORTS: Final = ("http", "grpc", "metrics")


def check_relations(root: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the path and message of every rule that is broken."""
    listeners = _listeners(_mapping(root.get("listen")))
    fronts = enabled_fronts(root)
    front_addresses = _front_addresses(fronts)
    entries = _entries(root.get("backends"))
    yield from _check_listeners(root, listeners)
    yield from check_fronts(fronts, front_addresses)
    yield from _check_front_addresses(front_addresses, listeners)
    yield from _check_listener_tls(_mapping(root.get("listen")), listeners)
    yield from _check_backends(entries)
    ours = {f"listen.{name}": address for name, address in listeners.items()}
    ours |= {f"fronts.{name}": address for name, address in front_addresses.items()}
    yield from _check_loops(ours, entries)
    yield from _check_limits(_mapping(root.get("limits")))
    access = _mapping(root.get("access"))
    tokens = _entries(access.get("tokens"))
    yield from check_tokens(tokens)
    yield from check_client_limits(_entries(access.get("limits")), tokens)
    yield from check_admin(_mapping(root.get("admin")), listeners.get("admin"), tokens)
    if str(access.get("header", "")).lower() in _RESERVED:
        yield ("access", "header"), "this header has another meaning"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _entries(value: object) -> list[Mapping[str, object]]:
    return [_mapping(entry) for entry in value] if isinstance(value, list) else []


def _address(value: object) -> Address | None:
    try:
        return read_address(value)
    except ValueError:
        return None


def _listeners(listen: Mapping[str, object]) -> dict[str, Address]:
    """Return the addresses that can be read, by listener."""
    found = {}
    for name in _LISTENERS:
        value = listen.get(name)
        address = _address(value.get("address") if isinstance(value, dict) else value)
        if address is not None:
            found[name] = address
    return found


def _front_addresses(fronts: Mapping[str, Mapping[str, object]]) -> dict[str, Address]:
    found = {
        name: _address(front.get("address", DEFAULT_ADDRESS)) for name, front in fronts.items()
    }
    return {name: address for name, address in found.items() if address is not None}


def _overlap(listener: Address, other: Address) -> bool:
    """Whether a listener would also take what is meant for the other address on this machine."""
    if listener.path or other.path:
        return listener.path == other.path
    if listener.port == 0 or listener.port != other.port:
        return False
    hosts = {listener.host, other.host}
    wildcard = bool(hosts & _ANY) and hosts <= _ANY | _LOOPBACK
    return wildcard or len(hosts) == 1 or hosts == {"localhost", "127.0.0.1"}


def _check_listeners(root: Mapping[str, object], found: Mapping[str, Address]) -> Iterator[Finding]:
    listen = root.get("listen")
    if isinstance(listen, dict) and not listen.keys() & set(_RELAYS):
        yield ("listen",), "at least one of http and grpc is needed"
    for index, name in enumerate(found):
        for earlier in list(found)[:index]:
            shared = (earlier, name) in _PAIRS and found[name] == found[earlier]
            if not shared and _overlap(found[name], found[earlier]):
                yield ("listen", name), f"{found[name]} is already taken by listen.{earlier}"


def _check_front_addresses(
    fronts: Mapping[str, Address], listeners: Mapping[str, Address]
) -> Iterator[Finding]:
    taken = {f"listen.{name}": address for name, address in listeners.items()}
    for name, address in fronts.items():
        for owner, other in taken.items():
            if _overlap(address, other):
                yield ("fronts", name, "address"), f"{address} is already taken by {owner}"
        taken[f"fronts.{name}"] = address


def _check_listener_tls(
    listen: Mapping[str, object], found: Mapping[str, Address]
) -> Iterator[Finding]:
    given = {name: _mapping(listen.get(name)).get("tls") for name in _RELAYS}
    for http, grpc in _PAIRS:
        if http in found and found[http] == found.get(grpc):
            if given[http] and given[grpc] and given[http] != given[grpc]:
                yield ("listen", grpc, "tls"), f"differs from listen.{http}.tls at the same address"
            given[http] = given[grpc] = given[http] or given[grpc]
    for name in _RELAYS:
        tls = _mapping(given[name])
        if name in _PAIRS[1] and name in listen and not tls:
            yield ("listen", name), "needs tls"
        if _mapping(listen.get(name)).get("proxy_protocol") and not listen.get("trusted_proxies"):
            yield ("listen", name, "proxy_protocol"), "needs listen.trusted_proxies"
        header = tls.get("subject_header")
        if header is not None and tls.get("client_ca") is None:
            yield ("listen", name, "tls", "subject_header"), "needs client_ca"
        if isinstance(header, str) and header.lower() in _RESERVED:
            yield ("listen", name, "tls", "subject_header"), "this header has another meaning"


def _check_backend_tls(index: int, entry: Mapping[str, object]) -> Iterator[Finding]:
    tls = _mapping(entry.get("tls"))
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if one in tls and other not in tls:
            yield ("backends", index, "tls", one), f"needs {other}, too"
    ports = tls.get("ports", _PORTS)
    for port in _PORTS if tls and "server_name" not in tls else ():
        address = _address(entry.get(port))
        if address is not None and address.path and isinstance(ports, Sequence) and port in ports:
            yield ("backends", index, "tls"), f"needs server_name, since {address} has no host"


def _check_backends(entries: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    if not entries:
        return
    owners: dict[str, int] = {}
    for index, entry in enumerate(entries):
        yield from _check_backend_tls(index, entry)
        address = entry.get("http") or entry.get("grpc")
        if address is None:
            yield ("backends", index), "at least one of http and grpc is needed"
        name = entry.get("name") or address
        if not isinstance(name, str):
            continue
        if name in owners:
            yield (
                ("backends", index, "name"),
                f"{show(name)} is already the name of backends[{owners[name]}]",
            )
        owners.setdefault(name, index)


def _check_loops(
    listeners: Mapping[str, Address], entries: Sequence[Mapping[str, object]]
) -> Iterator[Finding]:
    for index, entry in enumerate(entries):
        for port in _PORTS:
            target = _address(entry.get(port))
            for name, listener in listeners.items():
                if target is not None and _overlap(listener, target):
                    message = f"{target} is our own listener {name}"
                    yield ("backends", index, port), message


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
