"""Rules about backends, wherever they are given: in the configuration, by a source, by the admin
API. Like those of `lb.settings.relations` they work on the plain tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from lb.domain.backend import Address
from lb.settings.problems import Path, show
from lb.settings.values import read_address

Finding = tuple[Path, str]

_ANY: Final = frozenset({"0.0.0.0", "::"})
_PORTS: Final = ("http", "grpc", "metrics")


def mapping(value: object) -> Mapping[str, object]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def entries(value: object) -> list[Mapping[str, object]]:
    """The mappings of a list; what is none is empty."""
    return [mapping(entry) for entry in value] if isinstance(value, list) else []


def address_at(value: object) -> Address | None:
    """The address, None where it cannot be read."""
    try:
        return read_address(value)
    except ValueError:
        return None


def overlap(listener: Address, other: Address) -> bool:
    """Whether a listener would also take what is meant for the other address on this machine."""
    if listener.path or other.path:
        return listener.path == other.path
    if listener.port == 0 or listener.port != other.port:
        return False
    hosts = {listener.host, other.host}
    wildcard = bool(hosts & _ANY) and all(host in _ANY or _is_loopback(host) for host in hosts)
    return wildcard or len(hosts) == 1 or hosts == {"localhost", "127.0.0.1"}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_backend_tls(path: Path, entry: Mapping[str, object]) -> Iterator[Finding]:
    """Yield what is wrong with the TLS of a backend at `path`."""
    tls = mapping(entry.get("tls"))
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if one in tls and other not in tls:
            yield (*path, "tls", one), f"needs {other}, too"
    ports = tls.get("ports", _PORTS)
    for port in _PORTS if tls and "server_name" not in tls else ():
        address = address_at(entry.get(port))
        if address is not None and address.path and isinstance(ports, Sequence) and port in ports:
            yield (*path, "tls"), f"needs server_name, since {address} has no host"


def check_backends(backends: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """Yield what is wrong with single backends, and names that two have."""
    owners: dict[str, int] = {}
    for index, entry in enumerate(backends):
        yield from check_backend_tls(("backends", index), entry)
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


def check_loops(
    listeners: Mapping[str, Address], backends: Sequence[Mapping[str, object]]
) -> Iterator[Finding]:
    """Yield backends that are listeners of our own."""
    for index, entry in enumerate(backends):
        for port in _PORTS:
            target = address_at(entry.get(port))
            for name, listener in listeners.items():
                if target is not None and overlap(listener, target):
                    message = f"{target} is our own listener {name}"
                    yield ("backends", index, port), message
