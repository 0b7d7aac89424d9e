"""Answers that we give ourselves: errors, liveness and readiness."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from math import ceil
from typing import Final

from lb.domain.backend import AppProtocol, BackendKind
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import PoolSnapshot
from lb.kserve.health import EXITING
from lb.kserve.operations import SERVER_LIVE, SERVER_OPTIONS
from lb.proxy.failure import RETRY_AFTER, http_body, http_status
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.readiness import readiness
from lb.wire.hops import NOT_RUN, READY_THROUGH
from lb.wire.rope import Payload

PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_PHRASES_OF_TRITON: Final = {405: b"Not Allowed"}
"""Where its server (libevhtp) has another one."""

LONG_ANSWER: Final = 64 * 1024
"""Bytes of a body above which it is written on its own."""
_OF_THE_SERVER: Final = b"text/plain"
"""What Triton's server writes when its handlers say nothing, as in its answers about health."""

REASONS: Final = {
    408: Reason.HEAD_TIMEOUT,
    413: Reason.BODY_TOO_LARGE,
    414: Reason.HEAD_TOO_LARGE,
    431: Reason.HEAD_TOO_LARGE,
    501: Reason.UNSUPPORTED,
}
"""Why a request was refused, by the status that the codec gave; others are BAD_REQUEST."""


class Answer:
    """An answer of ours before it is known what becomes of the connection."""

    __slots__ = (
        "body", "content_type", "is_relayed", "lines", "not_run", "ready_through", "reason",
        "rest", "retry_after_s", "says_methods", "status",
    )  # fmt: skip

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        reason: Reason | None = None,
        *,
        says_methods: bool = False,
        retry_after_s: float = 0.0,
        content_type: bytes = b"",
        is_relayed: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        """Empty for the answers about health, as Triton gives them."""
        self.content_type = content_type or (b"application/json" if body else _OF_THE_SERVER)
        self.is_relayed = is_relayed
        """Backends said so."""
        self.reason = reason
        self.says_methods = says_methods
        self.retry_after_s = retry_after_s
        """When to come again, for the reasons of `RETRY_AFTER`; a second at least."""
        self.ready_through = b""
        """What it adds to an answer about readiness to another balancer, see
        `lb.proxy.readiness`."""
        self.not_run = b""
        """What it adds to an error to another balancer, see `lb.proxy.failure.not_run`."""
        self.lines = b""
        """Further ones of the head."""
        self.rest: Sequence[Payload] = ()
        """Pieces of a long body behind `body`."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) + sum(map(len, self.rest))

    def encode(self, *, keep_alive: bool, is_http10: bool, is_head: bool) -> bytes:
        """The whole message, without a body when it answers HEAD."""
        parts = [
            b"Content-Length: %d\r\n" % self.size,
            b"Content-Type: %b\r\n" % self.content_type,
        ]
        if self.is_relayed:
            if self.content_type != _OF_THE_SERVER:
                parts.reverse()  # what Triton's handlers write names its type first
            phrase = _PHRASES_OF_TRITON.get(self.status) or PHRASES.get(self.status, b"")
        else:
            phrase = PHRASES.get(self.status, b"")
        parts.insert(0, b"HTTP/1.1 %d %b\r\n" % (self.status, phrase))
        if self.says_methods or (self.status == 405 and not self.is_relayed):
            parts.append(b"Allow: GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS\r\n")
        if self.reason in RETRY_AFTER:
            parts.append(b"Retry-After: %d\r\n" % max(1, ceil(self.retry_after_s)))
        if self.ready_through:
            parts.append(b"%b: %b\r\n" % (READY_THROUGH, self.ready_through))
        if self.not_run:
            parts.append(b"%b: %b\r\n" % (NOT_RUN, self.not_run))
        parts.append(self.lines)
        if self.status == 401:
            parts.append(b"WWW-Authenticate: Bearer\r\n")
        if not keep_alive:
            parts.append(b"Connection: close\r\n")
        elif is_http10:
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        if not is_head:
            parts.append(self.body)
        return b"".join(parts)


def error(status: int, reason: Reason, detail: str) -> Answer:
    """An error in the shape of Triton's."""
    return Answer(status, http_body(detail), reason)


def refusal(refused: RequestRefused) -> Answer:
    """What we say to a request that may not pass."""
    status = refused.status or http_status(refused.reason)
    detail = http_body(refused.detail)
    return Answer(status, detail, refused.reason, retry_after_s=refused.retry_after_s)


def own(
    plan: RequestPlan, snapshot: PoolSnapshot, *, draining: bool, identity: bytes = b""
) -> Answer:
    """What we say to a request that is ours.

    Liveness and readiness are as a Triton answers them: empty, 200 or 400, or 503 as it exits.
    """
    if plan.route.fault:
        return error(400, Reason.BAD_REQUEST, plan.route.fault)
    if plan.operation is SERVER_OPTIONS:
        return Answer(200, says_methods=True)
    if plan.operation is SERVER_LIVE:
        return _health("live", snapshot, is_so=True)
    if draining:
        return error(503, Reason.DRAINING, EXITING)
    state = readiness(snapshot, AppProtocol.HTTP, plan.hops, identity)
    if state.loop:
        return error(http_status(Reason.LOOP), Reason.LOOP, state.loop)
    answer = _health("ready", snapshot, is_so=state.is_ready)
    answer.ready_through = state.through
    return answer


def _health(word: str, snapshot: PoolSnapshot, *, is_so: bool) -> Answer:
    """As the backends would put it: a Triton without words, KServe's other servers in JSON."""
    kinds = {backend.spec.kind for backend in snapshot.backends}
    has_words = BackendKind.KSERVE in kinds and BackendKind.TRITON not in kinds
    body = b'{"%b":%b}' % (word.encode(), b"true" if is_so else b"false") if has_words else b""
    return Answer(200 if is_so else 400, body)


def model_ready(plan: RequestPlan, snapshot: PoolSnapshot) -> Answer | None:
    """What we say to a question about a model; None where a backend is to answer it.

    A model that some backend has ready is ready. Servers differ in what they say of others.
    """
    served = snapshot.is_served(plan.model, plan.route.version, AppProtocol.HTTP)
    return Answer(200) if served and not plan.route.fault else None
