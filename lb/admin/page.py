"""The page for browsers: one file, with its script and its style, and nothing from elsewhere."""

from __future__ import annotations

import secrets
from functools import cache
from importlib import resources
from typing import Final

from aiohttp import hdrs, web

_NONCE: Final = "@NONCE@"
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def wants_page(request: web.Request) -> bool:
    """Whether whoever asks for `/` prefers HTML to JSON, as browsers do."""
    accept = request.headers.get(hdrs.ACCEPT, "").lower()
    html, json = accept.find("text/html"), accept.find("application/json")
    return html >= 0 and (json < 0 or html < json)


def page_response() -> web.Response:
    """The page, with a nonce of its own for its script and style."""
    nonce = secrets.token_urlsafe(16)
    return web.Response(
        text=_page().replace(_NONCE, nonce),
        content_type="text/html",
        charset="utf-8",
        headers={"Content-Security-Policy": _POLICY.format(nonce), hdrs.VARY: hdrs.ACCEPT},
    )


@cache
def _page() -> str:
    return resources.files("lb.admin").joinpath("assets", "page.html").read_text("utf-8")
