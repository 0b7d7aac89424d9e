"""Rules that span several settings.

They work on the plain tree, not on the models: a model with one bad field is never built, and
operators want to hear of everything at once. What cannot be read is passed over here; the models
complain about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lb.domain.backend import Address
from lb.settings.model import LimitSettings
from lb.settings.problems import Path, show
from lb.settings.units import format_size, parse_size
from lb.settings.values import read_address

Finding = tuple[Path, str]

_ANY: Final = frozenset({"0.0.0.0", "::"})
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LISTENERS: Final = ("http", "grpc", "metrics", "admin")
_PORTS: Final = ("http", "grpc", "metrics")


def check_relations(root: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the path and message of every rule that is broken."""
    listeners = _listeners(_mapping(root.get("listen")))
    backends = root.get("backends")
    entries = [_mapping(entry) for entry in backends] if isinstance(backends, list) else []
    yield from _check_listeners(root, listeners)
    yield from _check_backends(entries)
    yield from _check_loops(listeners, entries)
    yield from _check_limits(_mapping(root.get("limits")))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


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
    if isinstance(listen, dict) and not listen.keys() & {"http", "grpc"}:
        yield ("listen",), "at least one of http and grpc is needed"
    for index, name in enumerate(found):
        for earlier in list(found)[:index]:
            shared = {name, earlier} == {"http", "grpc"} and found[name] == found[earlier]
            if not shared and _overlap(found[name], found[earlier]):
                yield ("listen", name), f"{found[name]} is already taken by listen.{earlier}"


def _check_backends(entries: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    if not entries:
        return
    owners: dict[str, int] = {}
    for index, entry in enumerate(entries):
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
                    message = f"{target} is our own listener listen.{name}"
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
