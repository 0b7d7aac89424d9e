"""Cross-origin requests of browsers (the Fetch standard, "CORS protocol").

Pages of allowed origins may ask for all that changes no server. A preflight is answered here,
before the gate is asked, since it never shows a token; the request itself passes the gate like any
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lb.access.gate import FieldLine
from lb.proxy.disclosure import FIELDS

_ORIGIN: Final = b"origin"
_METHOD: Final = b"access-control-request-method"
_HEADERS: Final = b"access-control-request-headers"
REQUEST_FIELDS: Final = frozenset({_ORIGIN, _METHOD, _HEADERS})
"""Names of the fields that decide, in lower case."""
RESPONSE_FIELDS: Final = frozenset({
    b"access-control-allow-origin", b"access-control-allow-credentials",
    b"access-control-expose-headers",
})  # fmt: skip
"""Names of the fields of backends that give way to ours: browsers refuse two of one name."""
_EXPOSED: Final = b", ".join((
    b"inference-header-content-length", b"content-encoding", b"retry-after", b"x-request-id",
    *FIELDS,
))  # fmt: skip
_MAX_AGE_S: Final = 600
"""How long browsers may remember a preflight."""
_VARY: Final = b"Vary: Origin\r\n"


class CrossOrigin(NamedTuple):
    """What a head with an origin gets."""

    lines: bytes
    """Lines of the response, whoever makes it."""
    preflight: bytes
    """Further ones of the answer to a preflight; empty where it is none."""


def cross_origin(
    fields: Sequence[FieldLine], origins: frozenset[bytes], *, is_control: bool
) -> CrossOrigin | None:
    """What a request of a browser gets; None for a head without an origin.

    Args:
        fields: those of `REQUEST_FIELDS`, in their order.
        origins: those that are allowed.
        is_control: the request, or what its preflight asks for, changes a server.
    """
    values = dict(fields)
    origin = values.get(_ORIGIN)
    if origin is None:
        return None
    if origin not in origins or is_control or len(values) != len(fields):
        return CrossOrigin(_VARY, b"")
    lines = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\n%b" % (
        origin, _EXPOSED, _VARY,
    )  # fmt: skip
    if _METHOD not in values:
        return CrossOrigin(lines, b"")
    preflight = b"Access-Control-Allow-Methods: GET, HEAD, POST\r\nAccess-Control-Max-Age: %d\r\n"
    preflight %= _MAX_AGE_S
    wanted = values.get(_HEADERS)
    if wanted:
        preflight += b"Access-Control-Allow-Headers: %b\r\n" % wanted
    return CrossOrigin(lines, preflight)


def requested_method(fields: Sequence[FieldLine]) -> bytes | None:
    """The method that a preflight asks for; None where the head is of no preflight."""
    return dict(fields).get(_METHOD)
