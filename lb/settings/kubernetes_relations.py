"""Rules that span several settings of sources in Kubernetes; see `lb.settings.relations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lb.settings.backend_relations import Finding, check_backend_tls, mapping
from lb.settings.problems import Path

_PORTS: Final = ("http_port", "grpc_port", "metrics_port")
_OF_EACH: Final = ("name", "http", "grpc", "metrics")
_IDENTITY: Final = ("kubeconfig", "context", "namespace", "service", "selector")


def check_kubernetes(sources: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """Yield the path and message of every rule that is broken."""
    seen: dict[object, int] = {}
    for index, entry in enumerate(sources):
        path: Path = ("discovery", "kubernetes", index)
        yield from _check_source(path, entry)
        identity = str([entry.get(key) for key in _IDENTITY] + [_port_of(entry)])
        if identity in seen:
            first = f"discovery.kubernetes[{seen[identity]}]"
            yield path, f"the same endpoints are already found by {first}"
        seen.setdefault(identity, index)


def _port_of(entry: Mapping[str, object]) -> object:
    return entry.get("http_port") or entry.get("grpc_port")


def _check_source(path: Path, entry: Mapping[str, object]) -> Iterator[Finding]:
    given = [key for key in ("service", "selector") if key in entry]
    if not given:
        yield path, "service or selector is needed"
    elif len(given) > 1:
        yield (*path, "selector"), "there is a service already"
    if not entry.keys() & set(_PORTS[:2]):
        yield path, "at least one of http_port and grpc_port is needed"
    if "context" in entry and "kubeconfig" not in entry:
        yield (*path, "context"), "only with kubeconfig"
    template = mapping(entry.get("backend"))
    for key in _OF_EACH:
        if key in template:
            yield (*path, "backend", key), "is found through the API and cannot be given"
    yield from check_backend_tls((*path, "backend"), template)
