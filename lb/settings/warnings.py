"""What a configuration allows but nearly nobody means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lb.domain.backend import BackendKind
from lb.settings.backends import BackendSettings
from lb.settings.model import Settings
from lb.settings.scheduling import PolicyName
from lb.settings.shared_addresses import shared_addresses


def warnings_of(settings: Settings, backends: Sequence[BackendSettings]) -> list[str]:
    """Return a sentence for each doubt.

    Args:
        settings: the whole configuration.
        backends: those of `settings` and of the files with backends that it names.
    """
    return [
        *map(str, shared_addresses(backends)),
        *_idle_listeners(settings, backends),
        *_split_hosts(backends),
        *_unused_weights(settings, backends),
    ]


def _idle_listeners(settings: Settings, backends: Sequence[BackendSettings]) -> Iterator[str]:
    """Listeners whose requests no backend can take."""
    if settings.discovery.dns or settings.discovery.kubernetes:
        return  # they may find such backends
    listen = settings.listen
    for name, protocol in (
        ("http", "http"),
        ("https", "http"),
        ("grpc", "grpc"),
        ("grpcs", "grpc"),
    ):
        if getattr(listen, name) is not None and not any(getattr(b, protocol) for b in backends):
            yield f"listen.{name} has no backend that can serve it: none has {protocol!r}"


def _split_hosts(backends: Sequence[BackendSettings]) -> Iterator[str]:
    """Backends whose two ports are on different hosts: health and load are counted as one."""
    for backend in backends:
        http, grpc = backend.http, backend.grpc
        if http and grpc and not http.path and not grpc.path and http.host != grpc.host:
            yield (
                f"backend {backend.known_as!r} has HTTP on {http.host} and gRPC on {grpc.host}: "
                "one backend is one server"
            )


def _unused_weights(settings: Settings, backends: Sequence[BackendSettings]) -> Iterator[str]:
    """Weights of Tritons whose models are scheduled by learnt speed."""
    if settings.scheduling.max_requests_per_backend is not None:
        return
    if settings.balancing.policy is not PolicyName.LEAST_LOADED:
        return
    for backend in backends:
        if backend.kind is BackendKind.TRITON and backend.weight != 1.0:
            yield (
                f"weight of backend {backend.known_as!r} counts only for models that are not "
                "scheduled: scheduled ones go by the speed that was learnt"
            )
