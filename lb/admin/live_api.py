"""The part of the admin API that the page lives on: the live document, its events, and sessions."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import hdrs, web

from lb.access.tokens import Token, digest_of
from lb.admin.access import AdminAccess
from lb.admin.answers import error_response
from lb.admin.live import EVERY_S, LiveView
from lb.admin.live_document import SessionRights
from lb.admin.operations import EVENTS, LIVE, SESSION
from lb.admin.session import Session
from lb.domain.access import Role

MOST_VIEWERS: Final = 16
"""Readers of events at once; each holds a connection and up to one document."""
_WRITE_S: Final = 5.0
"""A reader that does not take an event within this time is dropped."""


class LiveApi:
    """The handlers."""

    def __init__(self, view: LiveView, access: AdminAccess) -> None:
        self._view = view
        self._access = access
        self._viewers = 0
        self._event = b""
        """The newest document as an event of the stream."""
        self._making = asyncio.Lock()
        """Held by whoever makes the next document, or waits until it is due."""
        self._closing = asyncio.Event()

    def install(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get(LIVE, self._show)
        app.router.add_get(EVENTS, self._send_events, allow_head=False)
        app.router.add_get(SESSION, self._show_session)
        app.router.add_post(SESSION, self._log_in)
        app.router.add_delete(SESSION, self._log_out)
        app.on_shutdown.append(self._close)

    async def _close(self, _app: web.Application) -> None:
        """Readers of events would otherwise keep the process from ending."""
        self._closing.set()

    # The document

    async def _show(self, _request: web.Request) -> web.Response:
        """The document; if nobody has looked lately, after the second that rates need."""
        if not self._view.has_rates:
            await self._fresh_event()
            await self._pause(EVERY_S)
        await self._fresh_event()
        return web.Response(body=self._view.text, content_type="application/json")

    async def _send_events(self, request: web.Request) -> web.StreamResponse:
        """One document a second until the reader leaves or is too slow."""
        if self._viewers >= MOST_VIEWERS:
            return error_response(503, f"{MOST_VIEWERS} viewers are connected already")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream"})
        self._viewers += 1
        try:
            await response.prepare(request)
            event = await self._fresh_event()
            while not self._closing.is_set():
                async with asyncio.timeout(_WRITE_S):
                    await response.write(event)
                event = await self._next_event(event)
                token = self._access.identify(request)
                if self._access.refusal(request, token) is not None:
                    break  # its session has ended, or its token was taken back
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            pass  # the reader has left
        finally:
            self._viewers -= 1
        return response

    async def _next_event(self, seen: bytes) -> bytes:
        """The event after one that was seen.

        One viewer waits for it and makes it. The others wait for the lock, which they get one after
        the other, so that each writes the event in an iteration of its own.
        """
        async with self._making:
            if self._event is seen:
                await self._pause(EVERY_S - self._view.age_s)
            return await self._make_if_old()

    async def _fresh_event(self) -> bytes:
        """The newest event at once, or another one if it is old."""
        if self._view.age_s < EVERY_S:
            return self._event
        async with self._making:
            return await self._make_if_old()

    async def _make_if_old(self) -> bytes:
        # Timers may be a little early; that must not mean the same document again.
        if self._view.age_s >= 0.9 * EVERY_S:
            for _ in self._view.make():
                await asyncio.sleep(0)
            self._event = b"data: %b\n\n" % self._view.text
        return self._event

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the process shuts down meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass

    # Sessions

    async def _show_session(self, request: web.Request) -> web.Response:
        """What this browser may do."""
        return web.json_response(self._rights(request))

    async def _log_in(self, request: web.Request) -> web.Response:
        """Begin a session for the token in the body."""
        tokens = self._access.tokens
        try:
            body = await request.json()
            shown = body["token"]
        except (ValueError, RecursionError, LookupError, TypeError):
            return error_response(400, 'expected {"token": "..."}')
        if tokens is None:
            return error_response(409, "no token is needed here")
        token = tokens.find(digest_of(str(shown).strip().encode("utf-8", "replace")))
        if token is None or not token.roles & {Role.READ, Role.OPERATE}:
            return error_response(401, "this is no token with the role read or operate")
        session, cookie = self._access.sessions.begin(token)
        response = web.json_response(_rights(token, session))
        self._access.sessions.set_cookie(cookie, request, response)
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        response = web.json_response({})
        self._access.sessions.end(request, response)
        return response

    def _rights(self, request: web.Request) -> SessionRights:
        access = self._access
        if access.tokens is None:
            return SessionRights(needs_token=False, token="", may_operate=True, csrf="")
        return _rights(access.identify(request), access.sessions.find(request))


def _rights(token: Token | None, session: Session | None) -> SessionRights:
    return SessionRights(
        needs_token=True,
        token=token.name if token is not None else "",
        may_operate=token is not None and Role.OPERATE in token.roles,
        csrf=session.csrf if session is not None and token is not None else "",
    )
