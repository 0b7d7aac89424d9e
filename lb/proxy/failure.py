"""Our own errors as clients see them: the only place that knows their HTTP and gRPC codes."""

from __future__ import annotations

import json
from typing import Final

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Outcome, Reason
from lb.proxy.exchange import Exchange
from lb.wire.grpc.status import GrpcStatus

_CODES: Final[dict[Reason, tuple[int, GrpcStatus]]] = {
    Reason.NO_BACKEND: (503, GrpcStatus.UNAVAILABLE),
    Reason.BACKENDS_FULL: (503, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.CONNECT_REFUSED: (503, GrpcStatus.UNAVAILABLE),
    Reason.CONNECT_TIMEOUT: (503, GrpcStatus.UNAVAILABLE),
    Reason.CONNECT_FAILED: (503, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_REFUSED: (503, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_LOST: (502, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_RESET: (502, GrpcStatus.INTERNAL),
    Reason.UPSTREAM_PROTOCOL: (502, GrpcStatus.INTERNAL),
    Reason.ANSWER_HEAD_TOO_LARGE: (502, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.UPSTREAM_BROKEN: (502, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_STALLED: (504, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_SILENT: (502, GrpcStatus.UNAVAILABLE),
    Reason.UPSTREAM_LATE: (504, GrpcStatus.UNAVAILABLE),
    Reason.DEADLINE: (504, GrpcStatus.DEADLINE_EXCEEDED),
    Reason.CLIENT_GONE: (499, GrpcStatus.CANCELLED),
    Reason.OVERTAKEN: (499, GrpcStatus.CANCELLED),
    Reason.BAD_REQUEST: (400, GrpcStatus.INTERNAL),
    Reason.HANDSHAKE: (400, GrpcStatus.INTERNAL),
    Reason.PROXY_HEADER: (400, GrpcStatus.INTERNAL),
    Reason.TOO_MANY_CONNECTIONS: (429, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.HEAD_TOO_LARGE: (431, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.BODY_TOO_LARGE: (413, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.UNSUPPORTED: (501, GrpcStatus.UNIMPLEMENTED),
    Reason.HEAD_TIMEOUT: (408, GrpcStatus.CANCELLED),
    Reason.BODY_TIMEOUT: (408, GrpcStatus.CANCELLED),
    Reason.CLIENT_STALLED: (499, GrpcStatus.CANCELLED),
    Reason.FLOOD: (429, GrpcStatus.CANCELLED),
    Reason.MEMORY: (503, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.DRAINING: (503, GrpcStatus.UNAVAILABLE),
    Reason.UNAUTHENTICATED: (401, GrpcStatus.UNAUTHENTICATED),
    Reason.FORBIDDEN: (403, GrpcStatus.PERMISSION_DENIED),
    Reason.CONTROL_REFUSED: (403, GrpcStatus.PERMISSION_DENIED),
    Reason.RATE_LIMITED: (429, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.CONCURRENCY_LIMITED: (429, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.QUEUE_FULL: (503, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.QUEUE_SHED: (503, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.QUEUE_TIMEOUT: (503, GrpcStatus.RESOURCE_EXHAUSTED),
    Reason.SEQUENCE_LOST: (503, GrpcStatus.UNAVAILABLE),
    Reason.SEQUENCE_ID: (400, GrpcStatus.INVALID_ARGUMENT),
    Reason.BACKENDS_DIFFER: (409, GrpcStatus.FAILED_PRECONDITION),
    Reason.NOT_MERGED: (502, GrpcStatus.INTERNAL),
    Reason.LOOP: (508, GrpcStatus.UNAVAILABLE),
    Reason.INTERNAL: (500, GrpcStatus.INTERNAL),
}

RETRY_AFTER: Final = frozenset({
    Reason.NO_BACKEND, Reason.BACKENDS_FULL, Reason.MEMORY, Reason.RATE_LIMITED,
    Reason.CONCURRENCY_LIMITED, Reason.QUEUE_FULL, Reason.QUEUE_SHED, Reason.QUEUE_TIMEOUT,
})  # fmt: skip
"""HTTP answers with `Retry-After`: the state passes by itself."""

NOT_RUN: Final = frozenset({
    Reason.NO_BACKEND, Reason.BACKENDS_FULL, Reason.CONNECT_REFUSED, Reason.CONNECT_TIMEOUT,
    Reason.CONNECT_FAILED, Reason.UPSTREAM_REFUSED, Reason.MEMORY, Reason.DRAINING,
    Reason.QUEUE_FULL, Reason.QUEUE_SHED, Reason.QUEUE_TIMEOUT, Reason.LOOP,
})  # fmt: skip
"""Why a request did not run, unless an earlier attempt at it did: another balancer may have more
success. Limits of a client are not among them: it would get around them so."""


def not_run(exchange: Exchange, reason: Reason | None, hops: tuple[bytes, ...]) -> bytes:
    """Value of the field `lb.wire.hops.NOT_RUN` in an error of ours; empty: there is none.

    Args:
        exchange: that ends with the error; no attempt of it is under way.
        reason: of the error.
        hops: identities of the balancers that the request has passed.
    """
    if not hops or exchange.may_have_run or reason not in NOT_RUN:
        return b""
    return reason.value.encode()


def http_status(reason: Reason) -> int:
    """HTTP status of an error of ours."""
    return _CODES[reason][0]


def grpc_status(reason: Reason) -> GrpcStatus:
    """gRPC status of an error of ours."""
    return _CODES[reason][1]


def http_body(detail: str) -> bytes:
    """The JSON body, in the shape that Triton writes its errors in."""
    return json.dumps({"error": detail}).encode()


_TEXTS: Final = {
    Outcome.CONNECT_REFUSED: "refused the connection",
    Outcome.CONNECT_TIMEOUT: "did not accept a connection in time",
    Outcome.CONNECT_FAILED: "could not be connected to",
    Outcome.REFUSED: "refused the request",
    Outcome.NOT_HERE: "cannot serve the request",
    Outcome.BROKEN: "says that it is broken",
    Outcome.STALE: "closed the connection before it answered",
    Outcome.LOST: "closed the connection before its answer was complete",
    Outcome.RESET: "reset the request",
    Outcome.CUT_OFF: "shut down, and ended the request",
    Outcome.PROTOCOL_ERROR: "broke the protocol",
    Outcome.HEAD_TOO_LARGE: "answered with a head or trailers that are too large",
    Outcome.STALLED: "stopped taking the request",
    Outcome.SILENT: "does not answer, and is down",
    Outcome.LATE: "did not answer in the time for one attempt",
    Outcome.DEADLINE: "did not answer in time",
    Outcome.CANCELLED: "was cancelled",
    Outcome.OVERTAKEN: "was overtaken by another one",
    Outcome.ANSWERED: "answered",
}


def upstream_detail(name: str, protocol: AppProtocol, outcome: Outcome) -> str:
    """What to tell a client when the attempt at backend `name` failed."""
    return f"backend {name} ({protocol.label}) {_TEXTS[outcome]}"
