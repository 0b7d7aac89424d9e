"""The aiohttp application of the admin port."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from aiohttp import hdrs, web

from lb.admin.access import AdminAccess, Handler
from lb.admin.answers import Refused, error_response, response
from lb.admin.api import (
    Act,
    AdminApi,
    NoPlacement,
    OrderStandby,
    OwnAddresses,
    PlacementControl,
    SetLogLevel,
    SourceStatuses,
    cannot,
    no_log_level,
    no_standby,
)
from lb.admin.departure import let_go
from lb.admin.models import Reload, Upgrade
from lb.admin.operations import INDEX, OPERATIONS, Operation
from lb.admin.page import page_response, wants_page
from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.domain.backend import Address
from lb.proxy.shadow import Shadows
from lb.proxy.variants import VariantBook
from lb.telemetry.collector import SourceStatus
from lb.telemetry.queue import QueueStatus

_log = logging.getLogger(__name__)

_BODY_BYTES: Final = 16 * 1024
"""The longest body, which is a few settings. It is judged at once: 1 MiB of unknown keys takes a
second, in which requests stand still."""


def _nowhere() -> Mapping[str, Address]:
    """We listen nowhere."""
    return {}


def _no_sources() -> Iterable[SourceStatus]:
    """There are no sources."""
    return ()


def make_admin_app(
    directory: BackendDirectory,
    membership: Membership,
    *,
    version: str,
    clock: Callable[[], float] = monotonic,
    access: AdminAccess | None = None,
    own_addresses: OwnAddresses = _nowhere,
    sources: SourceStatuses = _no_sources,
    queue: Callable[[], QueueStatus] = QueueStatus,
    placement: PlacementControl | None = None,
    order_standby: OrderStandby = no_standby,
    variants: VariantBook | None = None,
    shadows: Shadows | None = None,
    reload: Callable[[], Awaitable[Reload]] = cannot,
    upgrade: Callable[[], Awaitable[Upgrade]] = cannot,
    config: Callable[[], Mapping[str, Any]] = dict,
    set_log_level: SetLogLevel = no_log_level,
) -> web.Application:
    """Make the application; whoever runs it decides where it listens.

    Args:
        directory: the backends that it shows and changes.
        membership: adds and removes backends.
        version: of the product.
        clock: the clock that the directory is used with.
        access: decides who may use the API; without it everybody who can reach it.
        own_addresses: where no backend can be; see `lb.settings.listed`.
        sources: reads the state of the sources of backends.
        queue: reads the queued requests.
        placement: which models are loaded on demand; without it none are.
        order_standby: activates or releases a standby backend.
        variants: the names that variants serve; without it there are none.
        shadows: makes copies of requests; without it there are none.
        reload: applies the configuration file, or raises `Refused`.
        upgrade: starts the next process, or raises `Refused`.
        config: reads the settings in force, without secrets. Called in a thread.
        set_log_level: changes the level of the application log for a time.
    """
    app = web.Application(middlewares=[_answer_in_json], client_max_size=_BODY_BYTES)
    (access or AdminAccess()).install(app)
    app.middlewares.append(let_go)
    acts = AdminApi(
        directory,
        membership,
        version=version,
        clock=clock,
        own_addresses=own_addresses,
        sources=sources,
        queue=queue,
        placement=placement or NoPlacement(),
        order_standby=order_standby,
        variants=variants or VariantBook(directory.ref, clock),
        shadows=shadows,
        reload=reload,
        upgrade=upgrade,
        config=config,
        set_log_level=set_log_level,
    ).acts()
    for operation in OPERATIONS:
        handler = _handler(operation, acts[operation.id])
        if operation.method == hdrs.METH_GET:
            app.router.add_get(operation.path, handler)  # and HEAD
        else:
            app.router.add_route(operation.method, operation.path, handler)
    return app


def _handler(operation: Operation, act: Act) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        if operation.path == INDEX and wants_page(request):
            return page_response()
        try:
            return response(await act(request), operation.status)
        except Refused as refusal:
            return response(refusal.answer, refusal.status)

    return handle


@web.middleware
async def _answer_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say errors in JSON, those of aiohttp's router too."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        allow = error.headers.get(hdrs.ALLOW)
        headers: dict[str, str] | None = {hdrs.ALLOW: allow} if allow else None
        return error_response(error.status, error.reason, headers)
    except Exception:  # top frame: no traceback leaves the process
        _log.exception("admin request failed", extra={"path": request.path})
        return error_response(500, "internal error")
