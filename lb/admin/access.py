"""Who may use the admin API: tokens with roles, no other web site, no borrowed host name.

A browser of an operator is the way in for web pages of others: they can have it send requests here
(so `Origin` must be our own, bodies JSON, and no answer ever names an allowed origin), and they
can have their own name lead to our address (so `Host` must be a name that we go by).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web

from lb.access.tokens import AUTHORIZATION, Token, TokenBook, shown_digest
from lb.admin.answers import error_response
from lb.admin.operations import INDEX, SESSION, role_for
from lb.admin.page import wants_page
from lb.admin.session import CSRF_HEADER, Sessions, shows_csrf, token_of
from lb.domain.access import Role
from lb.domain.client import ip_of

_audit = logging.getLogger("lb.admin.audit")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEADERS: Final = {
    hdrs.CACHE_CONTROL: "no-store",
    hdrs.SERVER: "triton-lb",
    hdrs.X_CONTENT_TYPE_OPTIONS: "nosniff",
    "Referrer-Policy": "no-referrer",
}


class AdminAccess:
    """Decides about every request to the admin API."""

    def __init__(
        self, tokens: TokenBook | None = None, *, hosts: frozenset[str] = frozenset()
    ) -> None:
        """
        Args:
            tokens: those in force; None lets everybody in.
            hosts: names that the API goes by, in lower case; `localhost` and IP addresses are
                always good.
        """
        self.sessions = Sessions()
        """The sessions of browsers. Each one stands for a token."""
        self.replace(tokens, hosts)

    def replace(self, tokens: TokenBook | None, hosts: frozenset[str]) -> None:
        """Go by other tokens and names from now on."""
        self.tokens = tokens
        """The tokens in force. None: nobody needs one."""
        self._hosts = hosts | {"localhost"}

    @property
    def asks_for_tokens(self) -> bool:
        """Whether nobody gets in without."""
        return self.tokens is not None

    def install(self, app: web.Application) -> None:
        """Have an application ask here; its own middlewares come first."""
        app.middlewares.append(self._check)
        app.on_response_prepare.append(_add_headers)

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request pass, or say why not; note what changes anything."""
        token = self.identify(request)
        refusal = self.refusal(request, token)
        status = 500
        try:
            response = await handler(request) if refusal is None else refusal
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            if role_for(request.method) is not Role.READ:
                _note(request, token, status)

    def identify(self, request: web.Request) -> Token | None:
        """The token that a request shows, or that its session stands for."""
        if self.tokens is None:
            return None
        if hdrs.AUTHORIZATION not in request.headers:
            session = self.sessions.find(request)
            return token_of(session, self.tokens) if session is not None else None
        shown = request.headers.getall(hdrs.AUTHORIZATION, [])
        digest = shown_digest(AUTHORIZATION, [value.encode("utf-8", "replace") for value in shown])
        return self.tokens.find(digest) if digest is not None else None

    def refusal(self, request: web.Request, token: Token | None) -> web.Response | None:
        """What to answer a request that may not pass; None: it may.

        Args:
            request: of a client.
            token: what `identify` says of it.
        """
        if not self._goes_by(request.headers.get(hdrs.HOST, "")):
            return error_response(403, "this host name is not one of admin.hosts")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST):
            return error_response(403, "requests from other web sites are refused")
        if self.tokens is not None and not _is_open(request):
            wanted = role_for(request.method)
            if token is None:
                return error_response(
                    401,
                    "this needs a valid token (Authorization: Bearer TOKEN)",
                    {hdrs.WWW_AUTHENTICATE: "Bearer"},
                )
            if not token.roles & {wanted, Role.OPERATE}:
                return error_response(403, f"this needs a token with the role {wanted}")
            if wanted is not Role.READ and not self._is_meant(request):
                return error_response(403, f"requests of a session need the header {CSRF_HEADER}")
        if request.can_read_body and request.content_type != "application/json":
            return error_response(415, "a body must be application/json; none is needed")
        return None

    def _is_meant(self, request: web.Request) -> bool:
        """Whether a request is the client's own: a browser adds cookies whoever makes it send."""
        if hdrs.AUTHORIZATION in request.headers:
            return True
        session = self.sessions.find(request)
        return session is not None and shows_csrf(request, session)

    def _goes_by(self, host: str) -> bool:
        name = host
        if host.startswith("["):
            name = host[1:].partition("]")[0]
        elif host.count(":") == 1:
            name = host.partition(":")[0]
        return name.lower() in self._hosts or ip_of(name) is not None


def _is_open(request: web.Request) -> bool:
    """Whether a request needs no token: the page, which shows nothing by itself, and logging in."""
    path = request.rel_url.raw_path
    if path == INDEX:
        return role_for(request.method) is Role.READ and wants_page(request)
    return path == SESSION


def _note(request: web.Request, token: Token | None, status: int) -> None:
    """One line for everything that changed something, or would have.

    So many lines of one message are written and no more. So what anybody may send, refused
    requests and those about sessions, has messages of its own.
    """
    message = "admin request"
    if 400 <= status < 500:
        message = "admin request refused"
    elif request.rel_url.raw_path == SESSION:
        message = "admin session"
    _audit.info(
        message,
        extra={
            "method": request.method,
            "path": request.rel_url.raw_path,
            "status": status,
            "token": token.name if token is not None else "",
            "client": request.remote or "unix",
        },
    )


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    # The page has a policy of its own.
    response.headers.setdefault(
        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
    )
