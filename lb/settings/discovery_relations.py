"""Rules that span several settings of sources of backends; see `lb.settings.relations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lb.domain.client import ip_of
from lb.settings.backend_relations import Finding, check_backend_tls, entries, mapping
from lb.settings.kubernetes_relations import check_kubernetes
from lb.settings.problems import Path, show
from lb.settings.units import parse_duration
from lb.settings.values import read_target

_PORTS: Final = ("http_port", "grpc_port", "metrics_port")
_OF_EACH: Final = ("name", "http", "grpc", "metrics")
_SOURCES: Final = ("files", "dns", "kubernetes")
_SERVICES: Final = ("http_service", "grpc_service", "metrics_service")
_REFRESH_DEFAULTS: Final = {"refresh_min": 1.0, "refresh_max": 30.0}


def check_any_source(root: Mapping[str, object]) -> Iterator[Finding]:
    """Yield a finding where nothing says where backends come from."""
    discovery = mapping(root.get("discovery"))
    if not (root.get("backends") or any(discovery.get(each) for each in _SOURCES)):
        yield ("backends",), "at least one is needed" if "backends" in root else "is required"


def check_discovery(root: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the path and message of every rule about sources that is broken."""
    discovery = mapping(root.get("discovery"))
    dns, files = _list(discovery.get("dns")), _list(discovery.get("files"))
    yield from _check_repetitions("files", [each for each in files if isinstance(each, str)])
    yield from check_kubernetes(entries(discovery.get("kubernetes")))
    lookups = entries(dns)
    for index, entry in enumerate(lookups):
        yield from _check_dns(("discovery", "dns", index), entry)
    asked = [_asked(entry) for entry in lookups]
    for index, name in enumerate(asked):
        if name and name in asked[:index]:
            message = f"{show(name)} is already looked up by discovery.dns[{asked.index(name)}]"
            yield ("discovery", "dns", index), message


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _asked(entry: Mapping[str, object]) -> object:
    return entry.get("host") or entry.get("http_service") or entry.get("grpc_service")


def _check_repetitions(key: str, values: Sequence[str]) -> Iterator[Finding]:
    for index, value in enumerate(values):
        if value in values[:index]:
            yield ("discovery", key, index), f"{show(value)} is given twice"


def _check_dns(path: Path, entry: Mapping[str, object]) -> Iterator[Finding]:
    services = [key for key in _SERVICES if key in entry]
    if "host" in entry:
        for key in services:
            yield (*path, key), "there is a host already: give its port instead"
        if not entry.keys() & set(_PORTS[:2]):
            yield path, "at least one of http_port and grpc_port is needed"
    elif not entry.keys() & set(_SERVICES[:2]):
        yield path, "host, http_service or grpc_service is needed"
    else:
        for key in (*_PORTS, "family"):
            if key in entry:
                yield (*path, key), "only with host"
    template = mapping(entry.get("backend"))
    for key in _OF_EACH:
        if key in template:
            yield (*path, "backend", key), "is found by DNS and cannot be given"
    yield from check_backend_tls((*path, "backend"), template)
    for index, server in enumerate(_list(entry.get("servers"))):
        yield from _check_server((*path, "servers", index), server)
    yield from _check_refresh(path, entry)


def _check_server(path: Path, server: object) -> Iterator[Finding]:
    try:
        address = read_target(server)
    except ValueError:
        return
    if ip_of(address.host) is None:
        yield path, f"expected the IP address of a DNS server and its port, got {show(server)}"


def _check_refresh(path: Path, entry: Mapping[str, object]) -> Iterator[Finding]:
    try:
        low, high = (
            parse_duration(entry.get(key, default)) for key, default in _REFRESH_DEFAULTS.items()
        )
    except ValueError:
        return
    if low > high:
        yield (*path, "refresh_max"), "is less than refresh_min"
