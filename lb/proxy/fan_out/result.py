"""What one backend made of a question."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import UpstreamError
from lb.domain.outcome import OUTCOME_REASONS, UNREACHED, Outcome, Reason
from lb.kserve.errors import Meaning, http_error_text, meaning
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer
from lb.proxy.failure import grpc_status, http_status
from lb.wire.grpc.status import GrpcStatus

_LACKING: Final = frozenset({
    Meaning.NO_VERSION, Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY,
})  # fmt: skip
_NO_MODEL: Final = "Request for unknown model"
_GRPC_OF_HTTP: Final = {
    400: GrpcStatus.INVALID_ARGUMENT,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.UNAVAILABLE,  # a restricted API; Triton's own code for it in gRPC
    404: GrpcStatus.NOT_FOUND,
    501: GrpcStatus.UNIMPLEMENTED,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.DEADLINE_EXCEEDED,
    508: GrpcStatus.UNAVAILABLE,  # a loop of balancers
}
_HTTP_OF_GRPC: Final = {
    GrpcStatus.CANCELLED: 400,
    GrpcStatus.UNKNOWN: 400,
    GrpcStatus.INVALID_ARGUMENT: 400,
    GrpcStatus.DEADLINE_EXCEEDED: 504,
    GrpcStatus.NOT_FOUND: 404,
    GrpcStatus.ALREADY_EXISTS: 400,
    GrpcStatus.PERMISSION_DENIED: 403,
    GrpcStatus.UNIMPLEMENTED: 501,
    GrpcStatus.UNAVAILABLE: 503,
    GrpcStatus.UNAUTHENTICATED: 401,
}
"""The two tables of Triton's own codes, `HttpCodeFromError` and `GrpcStatusUtil`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer, or why there is none."""

    backend: Backend
    protocol: AppProtocol
    """In which it was asked."""
    status: int
    """HTTP or gRPC status."""
    body: bytes = b""
    """HTTP body or gRPC message."""
    content_type: bytes = b""
    detail: str = ""
    """What went wrong, in its words or ours."""
    outcome: Outcome = Outcome.ANSWERED
    asked_at: float = 0.0
    answered_at: float = 0.0

    @property
    def is_ok(self) -> bool:
        """Whether it did what it was asked for."""
        if self.protocol is AppProtocol.GRPC:
            return self.status == GrpcStatus.OK
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def is_unreached(self) -> bool:
        """Whether it never heard of the question."""
        return self.outcome in UNREACHED

    @property
    def lacks_model(self) -> bool:
        """Whether it says that it does not have the model, which others may have."""
        if self.is_ok or self.outcome is not Outcome.ANSWERED:
            return False
        # With a blank before the colon where settings are asked for.
        return meaning(self.detail) in _LACKING or self.detail.startswith(_NO_MODEL)

    @property
    def is_loop(self) -> bool:
        """Whether it is a balancer that the question has passed before."""
        return not self.is_ok and meaning(self.detail) is Meaning.LOOP

    @property
    def reason(self) -> Reason | None:
        """Why there is no answer."""
        return OUTCOME_REASONS.get(self.outcome)

    @property
    def label(self) -> str:
        """What the metrics call it."""
        if self.outcome is not Outcome.ANSWERED:
            return str(self.outcome.value)
        return "ok" if self.is_ok else "error"

    def status_in(self, protocol: AppProtocol) -> int:
        """The status of a failure in either protocol."""
        if protocol is self.protocol:
            return self.status
        if protocol is AppProtocol.GRPC:
            return _GRPC_OF_HTTP.get(self.status, GrpcStatus.INTERNAL)
        known = self.status in GrpcStatus.__members__.values()
        return _HTTP_OF_GRPC.get(GrpcStatus(self.status), 500) if known else 500


def answered_http(backend: Backend, answer: HttpAnswer, asked_at: float, now: float) -> Result:
    """A result out of an HTTP answer."""
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        # No Triton says so; and to a client a 304 with a body would be two answers.
        error = UpstreamError(Outcome.PROTOCOL_ERROR, f"HTTP status {answer.status}")
        return unanswered(backend, AppProtocol.HTTP, error)
    is_error = answer.status >= HTTPStatus.BAD_REQUEST
    text = http_error_text(answer.body) or f"HTTP status {answer.status}" if is_error else ""
    return Result(
        backend=backend,
        protocol=AppProtocol.HTTP,
        status=answer.status,
        body=answer.body,
        content_type=answer.content_type,
        detail=text,
        asked_at=asked_at,
        answered_at=now,
    )


def answered_grpc(backend: Backend, answer: GrpcAnswer, asked_at: float, now: float) -> Result:
    """A result out of a gRPC answer."""
    return Result(
        backend=backend,
        protocol=AppProtocol.GRPC,
        status=answer.status,
        body=answer.message,
        detail=answer.detail,
        asked_at=asked_at,
        answered_at=now,
    )


def unanswered(backend: Backend, protocol: AppProtocol, error: UpstreamError) -> Result:
    """A result without an answer."""
    reason = OUTCOME_REASONS.get(error.outcome, Reason.INTERNAL)
    status = grpc_status(reason) if protocol is AppProtocol.GRPC else http_status(reason)
    return Result(
        backend=backend,
        protocol=protocol,
        status=int(status),
        detail=error.detail,
        outcome=error.outcome,
    )
