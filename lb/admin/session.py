"""Sessions of browsers: a page cannot send a token with every request, `EventSource` least of all.

Whoever shows a token gets a cookie that stands for it until the session ends. What the session may
do is looked up by the token each time, so that a token that is taken back ends its sessions. What
changes something also needs the session's CSRF token in a header, which no other site can read.
Sessions end with the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from time import monotonic
from typing import Final

from aiohttp import web

from lb.access.tokens import Token, TokenBook, digest_of

LASTS_S: Final = 12 * 3600
"""A working day."""
CSRF_HEADER: Final = "X-CSRF-Token"
_MOST: Final = 100
"""Sessions at once; beyond them the oldest one ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of one browser."""

    token_digest: bytes = field(repr=False)
    csrf: str = field(repr=False)
    ends_at: float


class Sessions:
    """The sessions that have not ended."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        """By digest of the cookie, the oldest first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: Token) -> tuple[Session, str]:
        """Begin a session for a token. Returns it and the value of its cookie."""
        cookie = secrets.token_urlsafe(32)
        now = self._clock()
        session = Session(token.digest, secrets.token_urlsafe(32), now + LASTS_S)
        for key in [key for key, each in self._sessions.items() if each.ends_at <= now]:
            del self._sessions[key]
        while len(self._sessions) >= _MOST:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest_of(cookie.encode())] = session
        return session, cookie

    def set_cookie(self, cookie: str, request: web.Request, response: web.StreamResponse) -> None:
        """Have an answer set the cookie of a session."""
        response.set_cookie(
            cookie_name(request),
            cookie,
            max_age=LASTS_S,
            path="/",
            httponly=True,
            samesite="Strict",
        )

    def find(self, request: web.Request) -> Session | None:
        """The session whose cookie a request shows."""
        cookie = request.cookies.get(cookie_name(request))
        if not cookie:
            return None
        session = self._sessions.get(digest_of(cookie.encode("utf-8", "replace")))
        return session if session is not None and session.ends_at > self._clock() else None

    def end(self, request: web.Request, response: web.StreamResponse) -> None:
        """End the session of a request, if it has one."""
        cookie = request.cookies.get(cookie_name(request), "")
        self._sessions.pop(digest_of(cookie.encode("utf-8", "replace")), None)
        response.del_cookie(cookie_name(request), path="/")


def token_of(session: Session, tokens: TokenBook) -> Token | None:
    """The token that a session stands for, if it is still in force."""
    return tokens.find(session.token_digest)


def shows_csrf(request: web.Request, session: Session) -> bool:
    """Whether a request has the CSRF token of its session."""
    shown = request.headers.get(CSRF_HEADER, "")
    return compare_digest(shown.encode("utf-8", "replace"), session.csrf.encode())


def cookie_name(request: web.Request) -> str:
    """Browsers share cookies among the ports of a host, and each may be another process."""
    port = request.host.rpartition(":")[2]
    return f"triton_lb_{port}" if port.isdecimal() else "triton_lb"
