"""The aiohttp application of the admin port."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from aiohttp import hdrs, web

from lb.admin.access import AdminAccess, Handler, refuse
from lb.admin.departure import let_go
from lb.admin.life import RELOAD, UPGRADE
from lb.admin.membership import (
    BadQuery,
    MembershipApi,
    OwnAddresses,
    SourceStatuses,
    limit_of,
    no_sources,
    nowhere,
)
from lb.admin.models import render_models
from lb.admin.openapi import openapi_document
from lb.admin.render import render_backend
from lb.control.directory import BackendDirectory, StillLeavingError
from lb.control.membership import Membership
from lb.control.model_views import models_view
from lb.control.views import backend_view
from lb.domain.backend import AdminState

_log = logging.getLogger(__name__)

_ACTIONS: Final = {
    "drain": AdminState.DRAINING,
    "enable": AdminState.ENABLED,
    "disable": AdminState.DISABLED,
}
_VIEWS_AT_ONCE: Final = 10
"""Backends that are described in one turn of the loop: about a millisecond."""
_INDEX: Final = {
    "name": "triton-lb admin",
    "backends": "/api/v1/backends",
    "sources": "/api/v1/sources",
    "reload": RELOAD,
    "upgrade": UPGRADE,
    "openapi": "/api/v1/openapi.json",
}


def make_admin_app(
    directory: BackendDirectory,
    membership: Membership,
    *,
    version: str,
    clock: Callable[[], float] = monotonic,
    access: AdminAccess | None = None,
    own_addresses: OwnAddresses = nowhere,
    sources: SourceStatuses = no_sources,
) -> web.Application:
    """Make the application; whoever runs it decides where it listens.

    Args:
        directory: what it shows and changes.
        membership: through which it adds and removes backends.
        version: of the product, for the OpenAPI document.
        clock: the clock that the directory is used with.
        access: who may use it; everybody who can reach it if left out.
        own_addresses: where no backend can be; see `lb.settings.listed`.
        sources: how the sources of backends do.
    """
    app = web.Application(middlewares=[_answer_in_json])
    (access or AdminAccess()).install(app)
    app.middlewares.append(let_go)
    api = _Api(directory, clock, openapi_document(version))
    app.router.add_get("/", api.index)
    app.router.add_get("/api/v1/backends", api.list_backends)
    app.router.add_get("/api/v1/backends/{name}", api.show_backend)
    app.router.add_get("/api/v1/backends/{name}/models", api.show_models)
    for action, state in _ACTIONS.items():
        app.router.add_post(f"/api/v1/backends/{{name}}/{action}", api.changer(state))
    MembershipApi(
        directory, membership, clock, own_addresses=own_addresses, sources=sources
    ).install(app)
    app.router.add_get("/api/v1/openapi.json", api.show_openapi)
    return app


class _Api:
    """The handlers."""

    def __init__(
        self, directory: BackendDirectory, clock: Callable[[], float], document: dict[str, Any]
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._document = document

    async def index(self, _request: web.Request) -> web.Response:
        return web.json_response(_INDEX)

    async def show_openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(self._document)

    async def list_backends(self, _request: web.Request) -> web.Response:
        # In parts: hundreds of backends take tens of milliseconds, and others want their turn.
        pieces = []
        for record in tuple(self._directory.records):
            view = backend_view(record, self._clock())
            pieces.append(json.dumps(render_backend(view)))
            if len(pieces) % _VIEWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        text = f'{{"backends": [{", ".join(pieces)}]}}'
        return web.json_response(text=text)

    async def show_backend(self, request: web.Request) -> web.Response:
        return self._backend(request.match_info["name"])

    async def show_models(self, request: web.Request) -> web.Response:
        try:
            record = self._directory.find(request.match_info["name"])
        except LookupError as error:
            return refuse(404, str(error))
        return web.json_response(render_models(models_view(self._directory, record, self._clock())))

    def changer(self, state: AdminState) -> Handler:
        """Make the handler that brings a backend into `state`."""

        async def change(request: web.Request) -> web.Response:
            name = request.match_info["name"]
            try:
                self._directory.set_admin(name, state, self._clock(), limit_of(request))
            except BadQuery as error:
                return refuse(400, str(error))
            except LookupError as error:
                return refuse(404, str(error))
            except StillLeavingError as error:
                return refuse(409, str(error))
            return self._backend(name)

        return change

    def _backend(self, name: str) -> web.Response:
        try:
            record = self._directory.find(name)
        except LookupError as error:
            return refuse(404, str(error))
        return web.json_response(render_backend(backend_view(record, self._clock())))


@web.middleware
async def _answer_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors in JSON, those of aiohttp's router too."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        allow = error.headers.get(hdrs.ALLOW)
        return refuse(error.status, error.reason, {hdrs.ALLOW: allow} if allow else None)
    except Exception:  # top frame: no traceback leaves the process
        _log.exception("admin request failed", extra={"path": request.path})
        return refuse(500, "internal error")
