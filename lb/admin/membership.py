"""The part of the admin API that changes which backends there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from lb.admin.access import refuse
from lb.admin.render import render_backend
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership, MembershipError
from lb.control.record import BackendRecord
from lb.control.views import backend_view
from lb.domain.backend import Address
from lb.settings.listed import read_backend
from lb.settings.problems import SettingsError
from lb.settings.units import parse_duration
from lb.telemetry.collector import SourceStatus

OwnAddresses = Callable[[], Mapping[str, Address]]
SourceStatuses = Callable[[], Iterable[SourceStatus]]


def nowhere() -> Mapping[str, Address]:
    """We listen nowhere."""
    return {}


def no_sources() -> Iterable[SourceStatus]:
    """There are no sources."""
    return ()


class BadQuery(Exception):
    """What stands behind the question mark cannot be used; the message says why."""


class MembershipApi:
    """The handlers."""

    def __init__(
        self,
        directory: BackendDirectory,
        membership: Membership,
        clock: Callable[[], float],
        *,
        own_addresses: OwnAddresses = nowhere,
        sources: SourceStatuses = no_sources,
    ) -> None:
        self._directory = directory
        self._membership = membership
        self._clock = clock
        self._own_addresses = own_addresses
        self._sources = sources

    def install(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/api/v1/backends", self.add)
        app.router.add_delete("/api/v1/backends/{name}", self.remove)
        app.router.add_get("/api/v1/sources", self.list_sources)

    async def add(self, request: web.Request) -> web.Response:
        """Add a backend, or take back the one that was removed under a name."""
        try:
            entry = await request.json()
        except (ValueError, RecursionError):  # JSON, or its text, cannot be decoded
            return refuse(400, "the body is not JSON")
        if not isinstance(entry, dict):
            return refuse(400, "expected a JSON object with the settings of one backend")
        try:
            name = self._add(entry)
        except SettingsError as error:
            return refuse(400, "; ".join(map(str, error.problems)))
        except MembershipError as error:
            return refuse(409, str(error))
        return self._show(self._directory.find(name), 201)

    def _add(self, entry: dict[str, Any]) -> str:
        if entry.keys() == {"name"}:
            name = str(entry["name"])
            self._membership.take_back(name)
            return name
        return self._membership.add(read_backend(entry, self._own_addresses()))

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a backend; it finishes what it has."""
        name = request.match_info["name"]
        try:
            limit_s = limit_of(request)
            record = self._directory.find(name)
            self._membership.remove(name, limit_s)
        except BadQuery as error:
            return refuse(400, str(error))
        except LookupError as error:
            return refuse(404, str(error))
        return self._show(record, 200)

    async def list_sources(self, _request: web.Request) -> web.Response:
        """How all sources do."""
        return web.json_response({"sources": [_render_source(each) for each in self._sources()]})

    def _show(self, record: BackendRecord, status: int) -> web.Response:
        shown = render_backend(backend_view(record, self._clock()))
        return web.json_response(text=json.dumps(shown), status=status)


def limit_of(request: web.Request) -> float | None:
    """How long what runs on a backend may take, in seconds; None where the request does not say.

    Raises:
        BadQuery: it says something else.
    """
    for key in request.query:
        if key != "limit":
            raise BadQuery(f"{key}: unknown; only limit may be given")
    text = request.query.get("limit")
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadQuery(f"limit: {error}") from error


def _render_source(status: SourceStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "backends": status.backends,
        "updates": status.updates,
        "failures": status.failures,
        "age_s": None if status.age_s is None else round(status.age_s, 3),
        "error": status.error,
    }
