"""Clients that leave before they have their whole answer."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web

from lb.admin.access import Handler

_log = logging.getLogger(__name__)

_LEFT: Final = (ConnectionError, web.RequestPayloadError)
"""What reading a request and writing an answer raise then."""


@web.middleware
async def let_go(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note that the client has left; to aiohttp it would be an error of the handler. To be the
    innermost middleware, since others may take it for one, too."""
    try:
        return await handler(request)
    except _LEFT as error:
        transport = request.transport
        if transport is not None and not transport.is_closing():
            raise
        _log.debug("client has left", extra={"path": request.path, "why": str(error)})
        return web.Response(status=400)  # nobody gets it
