"""The part of the admin API that concerns the process: its configuration, and its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aiohttp import web

from lb.domain.errors import LoadBalancerError

Act = Callable[[], Awaitable[dict[str, Any]]]
"""Does something with the process and says what it did.

Raises:
    NotDone: nothing has changed.
"""
RELOAD: Final = "/api/v1/reload"
UPGRADE: Final = "/api/v1/upgrade"


class NotDone(LoadBalancerError):
    """The process stays as it is."""

    def __init__(self, summary: str, problems: Iterable[str]) -> None:
        self.summary = summary
        """In one sentence."""
        self.problems = tuple(problems)
        """All that was wrong."""
        super().__init__(summary)


async def cannot() -> dict[str, Any]:
    """Stands for what nobody can do here."""
    raise NotDone("this process cannot do that", ())


class LifeApi:
    """The handlers."""

    def __init__(self, reload: Act, upgrade: Act) -> None:
        self._reload = reload
        self._upgrade = upgrade

    def install(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post(RELOAD, self._handler(self._reload))
        app.router.add_post(UPGRADE, self._handler(self._upgrade))

    def _handler(self, act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_request: web.Request) -> web.Response:
            try:
                # Shielded: a client that leaves must not stop half way what it has asked for.
                return web.json_response(await asyncio.shield(act()))
            except NotDone as error:
                body = {"error": error.summary, "problems": list(error.problems)}
                return web.json_response(body, status=409)

        return handle
