"""What the operations of the admin API do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NoReturn

from aiohttp import web
from pydantic import BaseModel

from lb.admin.answers import JsonText, Refused, json_in_steps, refused
from lb.admin.models import (
    Backend,
    Backends,
    Index,
    NotDone,
    Queue,
    Reload,
    Sources,
    Status,
    Upgrade,
)
from lb.admin.openapi import openapi_document
from lb.admin.operations import BACKENDS, LIVE, OPENAPI, QUEUE, RELOAD, SOURCES, STATUS, UPGRADE
from lb.admin.views import (
    backend_view,
    model_views,
    models_view,
    queue_views,
    source_view,
    status_view,
)
from lb.control.directory import BackendDirectory, StillLeavingError
from lb.control.membership import Membership, MembershipError
from lb.control.record import BackendRecord
from lb.domain.backend import Address, AdminState
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
SourceStatuses = Callable[[], Iterable[SourceStatus]]


def not_done(summary: str, problems: Iterable[str]) -> Refused:
    """Make the exception that says why a reload or an upgrade has changed nothing.

    Args:
        summary: one sentence.
        problems: everything that was wrong.
    """
    return Refused(409, NotDone(error=summary, problems=list(problems)))


async def cannot() -> NoReturn:
    """Stand for a reload or an upgrade in a process that has none."""
    raise not_done("this process cannot do that", ())


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
        reload: Callable[[], Awaitable[Reload]],
        upgrade: Callable[[], Awaitable[Upgrade]],
    ) -> None:
        """See `lb.admin.app.make_admin_app`."""
        self._directory = directory
        self._membership = membership
        self._version = version
        self._clock = clock
        self._own_addresses = own_addresses
        self._sources = sources
        self._queue = queue
        self._reload = reload
        self._upgrade = upgrade
        self._document = JsonText(json.dumps(openapi_document(version)))

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
            "listSources": self._list_sources,
            "getQueue": self._get_queue,
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
            live=LIVE,
            reload=RELOAD,
            upgrade=UPGRADE,
            openapi=OPENAPI,
        )

    async def _get_openapi(self, _request: web.Request) -> JsonText:
        return self._document

    async def _get_status(self, _request: web.Request) -> Status:
        return status_view(self._directory, self._version)

    async def _list_backends(self, _request: web.Request) -> JsonText:
        # The records are those of now; each is described when its turn comes.
        records = tuple(self._directory.records)
        return await json_in_steps(Backends(backends=[]), "backends", map(self._view, records))

    async def _get_queue(self, _request: web.Request) -> JsonText:
        status = self._queue()
        shell = Queue(without_backend=status.unplaced, models=[])
        return await json_in_steps(shell, "models", queue_views(status))

    async def _list_sources(self, _request: web.Request) -> Sources:
        return Sources(sources=[source_view(each) for each in self._sources()])

    async def _get_backend(self, request: web.Request) -> Backend:
        return self._view(self._find(request))

    async def _get_models(self, request: web.Request) -> JsonText:
        record = self._find(request)
        shell = models_view(self._directory, record, self._clock())
        return await json_in_steps(shell, "models", model_views(record))

    def _changer(self, state: AdminState) -> Act:
        """Make the operation that brings a backend into `state`."""

        async def change(request: web.Request) -> Backend:
            limit_s = _limit_of(request)
            record = self._find(request)
            try:
                self._directory.set_admin(record.backend.name, state, self._clock(), limit_s)
            except StillLeavingError as error:
                raise refused(409, str(error)) from error
            return self._view(record)

        return change

    async def _add_backend(self, request: web.Request) -> Backend:
        """Add a backend, or take back the one that was removed under a name."""
        try:
            entry = await request.json()
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
