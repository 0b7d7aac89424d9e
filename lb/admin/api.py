"""What the operations of the admin API do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from lb.admin.answers import JsonText, Refused, json_in_steps, refused
from lb.admin.compare_models import Comparison, Comparisons
from lb.admin.compare_views import comparison_view
from lb.admin.models import (
    Backend,
    Backends,
    Index,
    LogLevelChange,
    LogLevelInForce,
    ModelDrain,
    NotDone,
    PlacementView,
    Promotion,
    Queue,
    Reload,
    Shares,
    Sources,
    Status,
    Upgrade,
    VariantSets,
)
from lb.admin.models import VariantSet as VariantSetView
from lb.admin.openapi import openapi_text
from lb.admin.operations import (
    BACKENDS,
    CONFIG,
    LIVE,
    OPENAPI,
    PLACEMENT,
    QUEUE,
    RELOAD,
    SOURCES,
    STATUS,
    UPGRADE,
)
from lb.admin.views import (
    backend_view,
    model_drain_view,
    model_views,
    models_view,
    placement_view,
    queue_views,
    source_view,
    status_view,
    variant_set_view,
)
from lb.control.directory import BackendDirectory, StillRemovingError
from lb.control.membership import Membership, MembershipError
from lb.control.model_placement import PlacementError, PlacementStatus
from lb.control.record import BackendRecord
from lb.control.standby import NotStandbyError
from lb.domain.backend import Address, AdminState
from lb.domain.names import readable
from lb.net.threads import computed
from lb.proxy.shadow import Shadows
from lb.proxy.variants import VariantBook, VariantSet
from lb.settings.choices import LogLevel
from lb.settings.listed import read_backend
from lb.settings.problems import SettingsError
from lb.settings.units import parse_duration
from lb.telemetry.collector import SourceStatus
from lb.telemetry.queue import QueueStatus

Act = Callable[[web.Request], Awaitable[BaseModel | JsonText]]
"""Carries out an operation and returns its answer.

Raises:
    Refused: it is not carried out.
"""
OwnAddresses = Callable[[], Mapping[str, Address]]
SetLogLevel = Callable[[LogLevel, float], LogLevelInForce]
"""Puts a level in force for so many seconds; 0 ends that."""
_ModelT = TypeVar("_ModelT", bound=BaseModel)
_log = logging.getLogger(__name__)
SourceStatuses = Callable[[], Iterable[SourceStatus]]


def not_done(summary: str, problems: Iterable[str]) -> Refused:
    """Make the exception that says why a reload or an upgrade has changed nothing.

    Args:
        summary: one sentence.
        problems: everything that was wrong.
    """
    return Refused(409, NotDone(error=summary, problems=list(problems)))


def no_log_level(_level: LogLevel, _for_s: float) -> NoReturn:
    """Stand for the change of the level in a process that has no log of its own."""
    raise refused(409, "this process cannot do that")


async def cannot() -> NoReturn:
    """Stand for a reload or an upgrade in a process that has none."""
    raise not_done("this process cannot do that", ())


class PlacementControl(Protocol):
    """Which models are loaded where, and what operators may change of it.

    See `lb.control.model_placement.ModelPlacement`.
    """

    def status(self) -> PlacementStatus:
        """What is known and done now."""
        ...

    def pin(self, model: bytes, *, is_pinned: bool) -> None:
        """Keep a model loaded, or do so no more."""
        ...

    async def evict(self, model: bytes, backend: str = "") -> None:
        """Unload a model."""
        ...


class NoPlacement:
    """Stands for placement in a process that has none. Implements `PlacementControl`."""

    def status(self) -> PlacementStatus:
        """See `PlacementControl`."""
        return PlacementStatus()

    def pin(self, model: bytes, *, is_pinned: bool) -> NoReturn:
        """See `PlacementControl`."""
        raise PlacementError("this process cannot do that")

    async def evict(self, model: bytes, backend: str = "") -> NoReturn:
        """See `PlacementControl`."""
        raise PlacementError("this process cannot do that")


MAX_LOG_LEVEL_S: Final = 86400.0
"""How long another level of the log may last."""


class OrderStandby(Protocol):
    """Activates or releases a standby backend, or raises `NotStandbyError`."""

    def __call__(self, record: BackendRecord, *, is_active: bool) -> None: ...


def no_standby(record: BackendRecord, *, is_active: bool) -> None:  # a protocol
    """Stand for the activation of backends in a process that has none.

    Raises:
        NotStandbyError: always.
    """
    raise NotStandbyError(f"backend {record.backend.name} is no standby backend")


class AdminApi:
    """The operations, each as a method."""

    def __init__(
        self,
        directory: BackendDirectory,
        membership: Membership,
        *,
        version: str,
        clock: Callable[[], float],
        own_addresses: OwnAddresses,
        sources: SourceStatuses,
        queue: Callable[[], QueueStatus],
        placement: PlacementControl,
        order_standby: OrderStandby,
        variants: VariantBook,
        shadows: Shadows | None,
        reload: Callable[[], Awaitable[Reload]],
        upgrade: Callable[[], Awaitable[Upgrade]],
        config: Callable[[], Mapping[str, Any]],
        set_log_level: SetLogLevel,
    ) -> None:
        """See `lb.admin.app.make_admin_app`."""
        self._directory = directory
        self._membership = membership
        self._version = version
        self._clock = clock
        self._own_addresses = own_addresses
        self._sources = sources
        self._queue = queue
        self._placement = placement
        self._order_standby = order_standby
        self._variants = variants
        self._shadows = shadows
        self._reload = reload
        self._upgrade = upgrade
        self._config = config
        self._set_log_level = set_log_level
        self._document: JsonText | None = None
        """The OpenAPI document, once somebody has asked for it."""

    def acts(self) -> dict[str, Act]:
        """All operations by their id."""
        return {
            "getIndex": self._get_index,
            "getStatus": self._get_status,
            "listBackends": self._list_backends,
            "addBackend": self._add_backend,
            "getBackend": self._get_backend,
            "removeBackend": self._remove_backend,
            "getModels": self._get_models,
            "drainBackend": self._changer(AdminState.DRAINING),
            "enableBackend": self._changer(AdminState.ENABLED),
            "disableBackend": self._changer(AdminState.DISABLED),
            "activateBackend": self._orderer(is_active=True),
            "deactivateBackend": self._orderer(is_active=False),
            "getModel": self._get_model,
            "drainModel": self._model_changer(is_drained=True),
            "enableModel": self._model_changer(is_drained=False),
            "listSources": self._list_sources,
            "getQueue": self._get_queue,
            "getPlacement": self._get_placement,
            "pinModel": self._pinner(is_pinned=True),
            "unpinModel": self._pinner(is_pinned=False),
            "evictModel": self._evict_model,
            "listVariants": self._list_variants,
            "listComparisons": self._list_comparisons,
            "getComparison": self._get_comparison,
            "setShares": self._set_shares,
            "promoteVariant": self._promote,
            "resetVariants": self._reset_variants,
            "getConfig": self._get_config,
            "setLogLevel": self._change_log_level,
            "reload": self._apply_configuration,
            "upgrade": self._start_successor,
            "getOpenapi": self._get_openapi,
        }

    async def _get_index(self, _request: web.Request) -> Index:
        return Index(
            name="triton-lb admin",
            status=STATUS,
            backends=BACKENDS,
            sources=SOURCES,
            queue=QUEUE,
            placement=PLACEMENT,
            live=LIVE,
            reload=RELOAD,
            upgrade=UPGRADE,
            config=CONFIG,
            openapi=OPENAPI,
        )

    async def _get_openapi(self, _request: web.Request) -> JsonText:
        if self._document is None:
            self._document = JsonText(await openapi_text(self._version))
        return self._document

    async def _get_status(self, _request: web.Request) -> Status:
        return status_view(self._directory, self._version, self._variants.statuses())

    async def _list_backends(self, _request: web.Request) -> JsonText:
        # The records are those of now; each is described when its turn comes.
        records = tuple(self._directory.records)
        return await json_in_steps(Backends(backends=[]), "backends", map(self._view, records))

    async def _get_queue(self, _request: web.Request) -> JsonText:
        status = self._queue()
        shell = Queue(without_backend=status.unplaced, models=[])
        return await json_in_steps(shell, "models", queue_views(status))

    async def _get_placement(self, _request: web.Request) -> PlacementView:
        return placement_view(self._placement.status(), self._clock())

    def _pinner(self, *, is_pinned: bool) -> Act:
        """Make the operation that pins a model, or ends that."""

        async def change(request: web.Request) -> PlacementView:
            try:
                self._placement.pin(_model_of(request), is_pinned=is_pinned)
            except LookupError as error:
                raise refused(404, str(error)) from error
            except PlacementError as error:
                raise refused(409, str(error)) from error
            return await self._get_placement(request)

        return change

    async def _evict_model(self, request: web.Request) -> PlacementView:
        for key in request.query:
            if key != "backend":
                raise refused(400, f"{key}: unknown; only backend may be given")
        backend = request.query.get("backend", "")
        try:
            # Shielded: a client that leaves must not stop it half way.
            await asyncio.shield(self._placement.evict(_model_of(request), backend))
        except LookupError as error:
            raise refused(404, str(error)) from error
        except PlacementError as error:
            raise refused(409, str(error)) from error
        return await self._get_placement(request)

    async def _list_sources(self, _request: web.Request) -> Sources:
        return Sources(sources=[source_view(each) for each in self._sources()])

    async def _get_backend(self, request: web.Request) -> Backend:
        return self._view(self._find(request))

    async def _get_models(self, request: web.Request) -> JsonText:
        record = self._find(request)
        shell = models_view(self._directory, record, self._clock())
        return await json_in_steps(shell, "models", model_views(record, self._placement.status()))

    def _changer(self, state: AdminState) -> Act:
        """Make the operation that brings a backend into `state`."""

        async def change(request: web.Request) -> Backend:
            limit_s = _limit_of(request)
            record = self._find(request)
            try:
                self._directory.set_admin(record.backend.name, state, self._clock(), limit_s)
            except StillRemovingError as error:
                raise refused(409, str(error)) from error
            return self._view(record)

        return change

    def _orderer(self, *, is_active: bool) -> Act:
        """Make the operation that activates a standby backend, or releases it."""

        async def order(request: web.Request) -> Backend:
            for key in request.query:
                raise refused(400, f"{key}: unknown; nothing may be given")
            record = self._find(request)
            try:
                self._order_standby(record, is_active=is_active)
            except NotStandbyError as error:
                raise refused(409, str(error)) from error
            return self._view(record)

        return order

    async def _get_model(self, request: web.Request) -> ModelDrain:
        record, model = self._find_model(request)
        return model_drain_view(record, model, self._directory.model_use)

    def _model_changer(self, *, is_drained: bool) -> Act:
        """Make the operation that drains a model on a backend, or ends that."""

        async def change(request: web.Request) -> ModelDrain:
            if is_drained:
                record, model = self._find_model(request)
            else:  # a restarted server may not have listed it yet
                record, model = self._find(request), _model_of(request)
            name, directory = record.backend.name, self._directory
            try:
                directory.drain_model(name, model, is_drained=is_drained, now=self._clock())
            except StillRemovingError as error:
                raise refused(409, str(error)) from error
            return model_drain_view(record, model, directory.model_use)

        return change

    def _find_model(self, request: web.Request) -> tuple[BackendRecord, bytes]:
        """The backend and the model that the path names.

        Raises:
            Refused: there is no such backend, or its list does not have the model.
        """
        record, model = self._find(request), _model_of(request)
        if record.models.lists and model not in record.models.names | record.drained_models:
            name = record.backend.name
            raise refused(404, f"backend {name!r} has no model {request.match_info['model']!r}")
        return record, model

    async def _add_backend(self, request: web.Request) -> Backend:
        """Add a backend, or take back the one that was removed under a name."""
        try:
            entry = json.loads(await _text_of(request))
        except (ValueError, RecursionError) as error:  # JSON, or its text, cannot be decoded
            raise refused(400, "the body is not JSON") from error
        if not isinstance(entry, dict):
            raise refused(400, "expected a JSON object with the settings of one backend")
        try:
            name = self._add(entry)
        except SettingsError as error:
            raise refused(400, "; ".join(map(str, error.problems))) from error
        except MembershipError as error:
            raise refused(409, str(error)) from error
        return self._view(self._directory.find(name))

    def _add(self, entry: dict[str, Any]) -> str:
        name = entry.get("name")
        if entry.keys() == {"name"} and isinstance(name, str):
            self._membership.take_back(name)
            return name
        return self._membership.add(read_backend(entry, self._own_addresses()))

    async def _remove_backend(self, request: web.Request) -> Backend:
        limit_s = _limit_of(request)
        record = self._find(request)
        self._membership.remove(record.backend.name, limit_s)
        return self._view(record)

    async def _list_variants(self, _request: web.Request) -> VariantSets:
        return VariantSets(models=[self._split_view(each) for each in self._variants.sets.values()])

    async def _list_comparisons(self, _request: web.Request) -> Comparisons:
        shadows = self._shadows
        if shadows is None:
            return Comparisons(models=[])
        return Comparisons(
            models=[comparison_view(shadows, each) for each in shadows.sets.values()]
        )

    async def _get_comparison(self, request: web.Request) -> Comparison:
        shadows, name = self._shadows, request.match_info["name"]
        shadow = None if shadows is None else shadows.sets.get(name.encode())
        if shadows is None or shadow is None:
            raise refused(404, f"{name!r} has no shadow")
        return comparison_view(shadows, shadow)

    async def _set_shares(self, request: web.Request) -> VariantSetView:
        split = self._split(request)
        wanted = await _body_of(request, Shares)
        return self._changed(split, lambda: split.set_shares(wanted.percents))

    async def _promote(self, request: web.Request) -> VariantSetView:
        split = self._split(request)
        wanted = await _body_of(request, Promotion)
        return self._changed(split, lambda: self._variants.promote(split, wanted.variant))

    async def _reset_variants(self, request: web.Request) -> VariantSetView:
        self._split(request)
        return self._split_view(self._variants.reset(request.match_info["name"]))

    def _changed(self, split: VariantSet, change: Callable[[], None]) -> VariantSetView:
        try:
            change()
        except ValueError as error:
            raise refused(400, str(error)) from error
        shares = {
            each.rules.name: round(percent, 3)
            for each, percent in zip(split.variants, split.percents, strict=True)
        }
        name = readable(split.name)
        _log.info("shares of variants set", extra={"model": name, "percents": str(shares)})
        return self._split_view(split)

    def _split(self, request: web.Request) -> VariantSet:
        """The name with variants that the path names.

        Raises:
            Refused: there is none.
        """
        try:
            return self._variants.find(request.match_info["name"])
        except LookupError as error:
            raise refused(404, str(error)) from error

    def _split_view(self, split: VariantSet) -> VariantSetView:
        return variant_set_view(split, self._variants.statuses_of(split))

    async def _get_config(self, _request: web.Request) -> JsonText:
        # Hundreds of backends have tens of thousands of settings, and nobody changes one.
        return JsonText(await computed(lambda: json.dumps(self._config())))

    async def _change_log_level(self, request: web.Request) -> LogLevelInForce:
        try:
            wanted = LogLevelChange.model_validate_json(await _text_of(request))
            if wanted.level not in list(LogLevel):
                raise ValueError(f"level: expected {', '.join(LogLevel)}, got {wanted.level!r}")
            level = LogLevel(wanted.level)
            for_s = parse_duration(wanted.duration)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise refused(400, f"{where}: {first['msg']}") from error
        except ValueError as error:
            raise refused(400, str(error)) from error
        if for_s > MAX_LOG_LEVEL_S:
            raise refused(400, "for: at most 24h")
        return self._set_log_level(level, for_s)

    async def _apply_configuration(self, _request: web.Request) -> Reload:
        # Shielded: a client that leaves must not stop half way what it has asked for.
        return await asyncio.shield(self._reload())

    async def _start_successor(self, _request: web.Request) -> Upgrade:
        return await asyncio.shield(self._upgrade())

    def _find(self, request: web.Request) -> BackendRecord:
        """The backend that the path names.

        Raises:
            Refused: there is none.
        """
        try:
            return self._directory.find(request.match_info["name"])
        except LookupError as error:
            raise refused(404, str(error)) from error

    def _view(self, record: BackendRecord) -> Backend:
        return backend_view(record, self._clock())


def _model_of(request: web.Request) -> bytes:
    """The name of the model in the path, as it stands on the wire."""
    return request.match_info["model"].encode("utf-8", "surrogatepass")


async def _text_of(request: web.Request) -> str:
    """The body of a request as text.

    Raises:
        Refused: its charset is unknown.
        ValueError: it is no text in that charset.
    """
    try:
        return await request.text()
    except LookupError as error:
        raise refused(400, f"Content-Type: unknown charset {request.charset!r}") from error


async def _body_of(request: web.Request, model: type[_ModelT]) -> _ModelT:
    """The JSON of a request.

    Raises:
        Refused: it is not what was expected.
    """
    try:
        return model.model_validate_json(await _text_of(request))
    except (ValidationError, ValueError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise refused(400, f"body: {what}") from error


def _limit_of(request: web.Request) -> float | None:
    """How long requests under way on a backend may take, in seconds; None: the request does not
    say.

    Raises:
        Refused: the query is invalid.
    """
    for key in request.query:
        if key != "limit":
            raise refused(400, f"{key}: unknown; only limit may be given")
    text = request.query.get("limit")
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise refused(400, f"limit: {error}") from error
