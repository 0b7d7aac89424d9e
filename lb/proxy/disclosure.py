"""What clients that may know learn of how their requests were served, and ids of requests.

The fields go out with the head of an HTTP response and with the trailers of a gRPC one. What a
Triton answers passes unchanged otherwise, so nobody gets them by default.
"""

from __future__ import annotations

import os
from itertools import count
from typing import Final

from lb.access.disclosure import Disclosure
from lb.access.gate import Credentials
from lb.proxy.exchange import Exchange

REQUEST_ID: Final = b"x-request-id"
FIELDS: Final = (
    b"x-triton-lb-backend",
    b"x-triton-lb-request-id",
    b"x-triton-lb-attempts",
    b"server-timing",
    b"x-triton-lb-variant",
)
"""Names of the fields that `facts_of` may return."""
_BACKEND, _REQUEST_ID, _ATTEMPTS, _TIMING, _VARIANT = FIELDS
_PROCESS: Final = os.urandom(8).hex().encode()
_numbers: Final = count(1)


def new_request_id() -> bytes:
    """An id that no other request of this or another process has."""
    return b"%b-%x" % (_PROCESS, next(_numbers))


def facts_of(
    exchange: Exchange, disclosure: Disclosure, credentials: Credentials | None, now: float
) -> list[tuple[bytes, bytes]]:
    """The fields for the client of a request, in the order of `FIELDS`; none if it may not know.

    Args:
        exchange: the request. It gets an id if it has none.
        disclosure: who may know.
        credentials: of its head; the gate has admitted it.
        now: monotonic seconds.
    """
    if not disclosure.concerns(credentials):
        return []
    if not exchange.request_id:
        exchange.request_id = new_request_id()
    fields = [
        (_REQUEST_ID, exchange.request_id),
        (_ATTEMPTS, b"%d" % exchange.attempts),
        (_TIMING, _timing(exchange, now)),
    ]
    if exchange.backend is not None:
        name = exchange.backend.name.encode("ascii", "backslashreplace")
        fields.insert(0, (_BACKEND, name))
    if exchange.variant:
        fields.append((_VARIANT, exchange.variant.encode("ascii", "backslashreplace")))
    return fields


def _timing(exchange: Exchange, now: float) -> bytes:
    """The value of `Server-Timing` (W3C): the stages of the last attempt in milliseconds, as in
    the access log."""
    placed_at = exchange.placed_at
    stages = [(b"queue", (placed_at or now) - exchange.started_at)]
    connected_at, answered_at = exchange.connected_at, exchange.first_byte_at
    if connected_at:
        stages.append((b"connect", connected_at - placed_at))
    if connected_at and answered_at:
        stages.append((b"backend", answered_at - connected_at))
    return b", ".join(b"%b;dur=%.2f" % (name, max(took_s, 0.0) * 1000) for name, took_s in stages)
