"""A gRPC probe: a unary call with a small request, and what its answer says of the server."""

from __future__ import annotations

from typing import Final

from lb.domain.errors import UpstreamError
from lb.health.port import Finding
from lb.kserve.tfserving import MODEL_STATUS_METHOD, is_available, status_request
from lb.net.ask.grpc import GrpcAnswer, GrpcTalk
from lb.net.ask.talk import authority, with_operator_fields
from lb.probes.plan import Answer, ProbePlan, Question
from lb.wire.grpc.status import GrpcStatus

_METHODS: Final = {
    Question.SERVER_READY: b"/inference.GRPCInferenceService/ServerReady",
    Question.GRPC_HEALTH: b"/grpc.health.v1.Health/Check",
    Question.MODEL_STATUS_CALL: MODEL_STATUS_METHOD,
}
_YES: Final = b"\x08\x01"
"""Field 1 is 1: `ServerReadyResponse.ready` is true, `HealthCheckResponse.status` is SERVING."""
_ANSWER_BYTES: Final = 65_535
_NAMES: Final = {code.value: code.name for code in GrpcStatus}


class GrpcCall:
    """One call; a `Conversation`."""

    def __init__(self, plan: ProbePlan) -> None:
        self.answer: Answer | None = None
        self._plan = plan
        asks_model = plan.question is Question.MODEL_STATUS_CALL
        self._talk = GrpcTalk(
            _METHODS[plan.question],
            with_operator_fields(((b"user-agent", b"triton-lb"),), plan.headers),
            status_request(plan.model.encode()) if asks_model else b"",
            authority=authority(plan.headers, plan.address),
            is_secure=plan.tls is not None,
            limit=_ANSWER_BYTES,
        )

    def opening(self) -> bytes:
        """Preface, settings and the whole request: it fits into any window."""
        return b"".join((self._talk.opening(), *self._talk.upload()))

    def receive(self, data: bytes) -> bytes:
        """Take the complete frames; returns acknowledgements."""
        try:
            reply = self._talk.receive(data)
        except UpstreamError as error:
            self.answer = Answer(Finding.ERROR, error.detail)
            return b""
        if self._talk.answer is not None:
            self.answer = self._judge(self._talk.answer)
        return reply

    def _judge(self, answer: GrpcAnswer) -> Answer:
        if answer.status != GrpcStatus.OK:
            name = _NAMES.get(answer.status, str(answer.status))
            text = f"{name}: {answer.detail}" if answer.detail else name
            return Answer(Finding.NOT_READY, text)
        if self._plan.question is Question.MODEL_STATUS_CALL:
            if is_available(answer.message):
                return Answer(Finding.READY)
            return Answer(Finding.NOT_READY, "no version of the model is available")
        if answer.message.startswith(_YES):
            return Answer(Finding.READY)
        return Answer(Finding.MODELS_NOT_READY, "it says that it is not ready")
