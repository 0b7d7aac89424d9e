"""Rules between sections, and between backends wherever they are given.

Rules inside of a section are methods of its model. These here look at the sections that could be
read; for the others the models have said what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from lb.domain.access import Role
from lb.domain.backend import Address
from lb.settings.access import NO_CLIENT_TOKEN, AccessSettings, AdminSettings
from lb.settings.backends import BackendSettings
from lb.settings.choices import PlacementMode
from lb.settings.listening import ListenSettings, is_loopback, overlap
from lb.settings.model import Settings
from lb.settings.problems import Finding, show
from lb.settings.retry import RetryMode
from lb.settings.scheduling import TenantBy
from lb.settings.section import LENIENT
from lb.settings.wording import key_meant

_PORTS: Final = ("http", "grpc", "metrics")
_ONE_PROCESS: Final = "works with workers: 1 only"
_SOURCES: Final = frozenset({"files", "dns", "kubernetes"})


def readable(root: Mapping[str, object]) -> Settings:
    """Return settings without what cannot be read of a plain tree."""
    try:
        return Settings.model_validate(root, context=LENIENT)
    except ValidationError:
        without = {**root, "listen": ListenSettings.model_construct()}
        return Settings.model_validate(without, context=LENIENT)


def check_relations(settings: Settings) -> Iterator[Finding]:
    """Yield every rule that is broken by settings, or by what could be read of them."""
    yield from _check_sources(settings)
    listen, access = settings.listen.addresses, settings.access
    yield from _check_fronts(settings.fronts.addresses, listen)
    yield from check_backends(settings.backends, own_addresses(settings))
    yield from _check_variants(settings)
    yield from _check_workers(settings)
    if "access" in settings.unreadable:
        return
    by_token = settings.scheduling.tenants is TenantBy.TOKEN
    if by_token and access.lacks_role(Role.INFER, Role.CONTROL):
        yield ("scheduling", "tenants"), NO_CLIENT_TOKEN
    if "admin" in listen:
        yield from _check_admin(settings.admin, listen["admin"], access)


def _check_sources(settings: Settings) -> Iterator[Finding]:
    """Backends come from somewhere."""
    discovery = settings.discovery
    if settings.unreadable & {"backends", "discovery"} or discovery.unreadable & _SOURCES:
        return
    if not (settings.backends or any(getattr(discovery, each) for each in _SOURCES)):
        is_given = "backends" in settings.model_fields_set
        yield ("backends",), "at least one is needed" if is_given else "is required"


def _check_variants(settings: Settings) -> Iterator[Finding]:
    """Variants are models and not names with variants, on backends that there may be."""
    split = {name for name, own in settings.models.items() if own.variants}
    discovery = settings.discovery
    is_known = not (settings.unreadable & {"backends", "discovery"}) and not any(
        getattr(discovery, each) for each in _SOURCES
    )
    known = {backend.known_as for backend in settings.backends}
    for name, own in settings.models.items():
        if own.sticky == "tenant" and settings.scheduling.tenants is TenantBy.NOTHING:
            yield ("models", name, "sticky"), "tenant needs scheduling.tenants"
        for index, variant in enumerate(own.variants):
            place = ("models", name, "variants", index)
            if variant.model in split - {name}:
                message = f"{show(variant.model)} has variants itself; name the model"
                yield (*place, "model"), message
            for unknown in set(variant.backends) - known if is_known else ():
                yield (*place, "backends"), f"there is no backend {show(unknown)}"
        if own.shadow is not None:
            yield from _check_shadow(settings, name, own.shadow.model, split)


def _check_shadow(settings: Settings, name: str, model: str, split: set[str]) -> Iterator[Finding]:
    """A shadow is a model that may run requests twice."""
    place = ("models", name, "shadow", "model")
    if model in split - {name}:
        yield place, f"{show(model)} has variants itself; name the model"
    for each in (name, model):
        own = settings.models.get(each)
        if own is not None and own.retry is RetryMode.NEVER:
            yield place, f"requests for {show(each)} must not run twice (retry: never)"


def _check_workers(settings: Settings) -> Iterator[Finding]:
    """What only one process can do is not asked of several."""
    if settings.workers == 1:
        return
    if settings.placement.mode is not PlacementMode.OFF:
        yield ("placement", "mode"), _ONE_PROCESS
    if settings.payload_log.path is not None:
        yield ("payload_log", "path"), _ONE_PROCESS
    sagemaker = settings.fronts.sagemaker
    if sagemaker.enabled and sagemaker.multi_model:  # one process knows which models were loaded
        yield ("fronts", "sagemaker", "multi_model"), _ONE_PROCESS
    for index, backend in enumerate(settings.backends):
        if backend.standby is not None:
            yield ("backends", index, "standby"), _ONE_PROCESS
    for name, own in settings.models.items():
        if own.shadow is not None:
            yield ("models", name, "shadow"), _ONE_PROCESS


def own_addresses(settings: Settings) -> dict[str, Address]:
    """Where we listen ourselves, by what a message calls it: no backend can be there."""
    ours = {f"listen.{name}": address for name, address in settings.listen.addresses.items()}
    return ours | {f"fronts.{name}": address for name, address in settings.fronts.addresses.items()}


def check_backends(
    backends: Sequence[BackendSettings], ours: Mapping[str, Address]
) -> Iterator[Finding]:
    """Yield backends without an address, names that two have, and listeners of our own."""
    owners: dict[str, int] = {}
    for index, backend in enumerate(backends):
        if backend.http is None and backend.grpc is None:
            unknown = backend.unreadable - BackendSettings.model_fields.keys()
            meant = {key_meant(("backends", index, key)) for key in unknown}
            if (backend.unreadable | meant).isdisjoint(("http", "grpc")):
                yield ("backends", index), "at least one of http and grpc is needed"
            continue
        name = backend.name or str(backend.http or backend.grpc)
        if (first := owners.setdefault(name, index)) != index:
            message = f"{show(name)} is already the name of backends[{first}]"
            yield ("backends", index, "name"), message
        for port in _PORTS:
            target: Address | None = getattr(backend, port)
            for listener, address in ours.items():
                if target is not None and overlap(address, target):
                    yield ("backends", index, port), f"{target} is our own listener {listener}"


def _check_fronts(
    fronts: Mapping[str, Address], listen: Mapping[str, Address]
) -> Iterator[Finding]:
    for name, address in fronts.items():
        for owner, other in listen.items():
            if overlap(address, other):
                yield ("fronts", name, "address"), f"{address} is already taken by listen.{owner}"


def _check_admin(
    admin: AdminSettings, address: Address, access: AccessSettings
) -> Iterator[Finding]:
    """The admin API is not open to the world by accident."""
    is_open = not (is_loopback(address) or admin.insecure)
    if is_open and access.lacks_role(Role.READ, Role.OPERATE):
        yield (
            ("listen", "admin"),
            f"{address} can be reached from elsewhere: needs an access.tokens entry with the role "
            "read or operate, or admin.insecure",
        )
