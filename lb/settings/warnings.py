"""What a configuration allows but nearly nobody means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lb.domain.backend import BackendKind
from lb.settings.backends import BackendSettings
from lb.settings.choices import PlacementMode
from lb.settings.listening import is_loopback
from lb.settings.model import Settings
from lb.settings.problems import Problem
from lb.settings.retry import RetryMode
from lb.settings.scheduling import PolicyName, SplitMode
from lb.settings.shared_addresses import shared_addresses
from lb.settings.units import format_duration, format_size


def warnings_of(settings: Settings, backends: Sequence[BackendSettings]) -> list[Problem]:
    """Return each doubt, without its line.

    Args:
        settings: the whole configuration.
        backends: those of `settings` and of the files with backends that it names.
    """
    return [
        *(Problem("backends", str(pair)) for pair in shared_addresses(backends)),
        *_idle_listeners(settings, backends),
        *_split_hosts(backends),
        *_unused_weights(settings, backends),
        *_impossible_placement(settings, backends),
        *_doubtful_standby(settings, backends),
        *_per_worker(settings),
        *_useless_splits(settings),
    ]


def _useless_splits(settings: Settings) -> Iterator[Problem]:
    """Models whose batches are never cut although they are to be."""
    for name, own in settings.models.items():
        if own.split is SplitMode.OFF:
            continue
        if own.variants:
            yield Problem(f"models.{name}.split", "has no effect on a name with variants")
        elif own.retry is RetryMode.NEVER:
            yield Problem(f"models.{name}.split", "has no effect with retry: never")


def _doubtful_standby(settings: Settings, backends: Sequence[BackendSettings]) -> Iterator[Problem]:
    """Servers that nothing stops, requests that give up too early, and two who load models."""
    for backend in backends:
        activate, place = backend.activate, f"backends[{backend.known_as}]"
        if activate is None:
            continue
        if activate.exec_ and backend.deactivate is None:
            yield Problem(f"{place}.activate.exec", "nothing stops what it starts: no deactivate")
        if activate.load and settings.placement.mode is PlacementMode.ON_DEMAND:
            yield Problem(f"{place}.activate.load", "placement.mode: on_demand loads models, too")
        if activate.timeout > settings.standby.hold:
            yield Problem(
                "standby.hold",
                f"requests give up before an activation of {backend.known_as} has had its time: "
                f"activate.timeout is {format_duration(activate.timeout)}",
            )
    if settings.standby.cooldown < settings.standby.for_:
        yield Problem("standby.cooldown", "is shorter than for: backends come and go with bursts")


def _impossible_placement(
    settings: Settings, backends: Sequence[BackendSettings]
) -> Iterator[Problem]:
    """Models that do not fit, and requests that do not wait long enough for a load."""
    placement, discovery = settings.placement, settings.discovery
    kept = {
        name: max(own.min_copies, int(own.pin))
        for name, own in settings.models.items()
        if own.pin or own.min_copies
    }
    if placement.mode is PlacementMode.OFF:
        if kept:
            name = next(iter(kept))
            key = "pin" if settings.models[name].pin else "min_copies"
            yield Problem(f"models.{name}.{key}", "has no effect without placement.mode: on_demand")
        return
    tritons = [each for each in backends if each.kind is BackendKind.TRITON]
    if not (discovery.dns or discovery.kubernetes):
        yield from _too_much_kept(settings, kept, len(tritons))
    if placement.memory is not None:
        for name, own in settings.models.items():
            if own.size is not None and own.size > placement.memory:
                yield Problem(f"models.{name}.size", "is more than placement.memory: it never fits")
        blind = [each.known_as for each in tritons if each.metrics is None]
        if blind and not any(own.size for own in settings.models.values()):
            yield Problem(
                "placement.memory",
                f"no model has a size, and backend {blind[0]} has no metrics port: nothing tells "
                "how much memory its models take",
            )
    if placement.wait <= placement.min_age:
        yield Problem(
            "placement.wait",
            "is not longer than min_age and a load: where all models are young, requests give up "
            "before one may be evicted",
        )


def _too_much_kept(settings: Settings, kept: Mapping[str, int], tritons: int) -> Iterator[Problem]:
    """Copies that are always loaded, and leave no room for others."""
    placement = settings.placement
    for name, copies in kept.items():
        if copies > tritons:
            yield Problem(
                f"models.{name}.min_copies", f"is {copies}, and there are {tritons} Tritons"
            )
    copies = sum(kept.values())
    if placement.max_models is not None and copies >= placement.max_models * tritons:
        yield Problem(
            "placement.max_models",
            f"{copies} copies of models are pinned, and all backends have room for "
            f"{placement.max_models * tritons}: no other model can be loaded",
        )
    size = sum((settings.models[name].size or 0) * count for name, count in kept.items())
    if placement.memory is not None and size >= placement.memory * tritons:
        yield Problem(
            "placement.memory",
            f"models that are pinned take {format_size(size)}, and all backends have room for "
            f"{format_size(placement.memory * tritons)}: no other model can be loaded",
        )


def _per_worker(settings: Settings) -> Iterator[Problem]:
    """What each worker decides by what it alone has seen."""
    if settings.workers != 1 and settings.limits.max_connections_per_client:
        why = (
            "counts in each worker alone, so that all together may let through `workers` times this"
        )
        yield Problem("limits.max_connections_per_client", why)


def _idle_listeners(settings: Settings, backends: Sequence[BackendSettings]) -> Iterator[Problem]:
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
            yield Problem(
                f"listen.{name}",
                f"no backend has {protocol}: give one that address, or drop the listener",
            )


def _split_hosts(backends: Sequence[BackendSettings]) -> Iterator[Problem]:
    """Backends whose two ports are on different hosts: health and load are counted as one."""
    for backend in backends:
        http, grpc = backend.http, backend.grpc
        if http is None or grpc is None or http.path or grpc.path or http.host == grpc.host:
            continue
        if not (is_loopback(http) and is_loopback(grpc)):
            yield Problem(
                f"backends[{backend.known_as}]",
                f"HTTP is on {http.host}, and gRPC on {grpc.host}: write two backends, or correct "
                "one address",
            )


def _unused_weights(settings: Settings, backends: Sequence[BackendSettings]) -> Iterator[Problem]:
    """Weights that change nothing: of Tritons whose models are scheduled by measured speed, or the
    same for all backends."""
    weights = {backend.weight for backend in backends}
    if weights <= {1.0}:
        return
    if len(weights) == 1:
        (weight,) = weights
        yield Problem("backends", f"all have the weight {weight:g}, which is as good as none")
        return
    is_scheduled = (
        settings.balancing.policy is PolicyName.LEAST_LOADED
        and settings.scheduling.max_requests_per_backend != "off"
    )
    weighted = [each.known_as for each in backends if each.weight != 1.0]
    if is_scheduled and all(each.kind is BackendKind.TRITON for each in backends):
        yield Problem(
            f"backends[{weighted[0]}].weight",
            "counts only for models that are not scheduled; scheduled ones go by measured speed "
            "(balancing.policy: least_requests goes by weights)",
        )
