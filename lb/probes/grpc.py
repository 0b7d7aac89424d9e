"""A gRPC probe: a unary call with a small request, and what its answer says of the server."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from lb.domain.errors import UpstreamError
from lb.health.port import Finding
from lb.kserve.tfserving import MODEL_STATUS_METHOD, is_available, status_request
from lb.net.ask.client_call import authority, marked, with_operator_fields
from lb.net.ask.grpc import GrpcAnswer, GrpcClientCall
from lb.probes.plan import NO_BACKEND_READY, READY, ProbeAnswer, ProbePlan, ProbeQuestion
from lb.wire.grpc.status import GrpcStatus
from lb.wire.hops import READY_THROUGH, passed

_METHODS: Final = {
    ProbeQuestion.SERVER_READY: b"/inference.GRPCInferenceService/ServerReady",
    ProbeQuestion.GRPC_HEALTH: b"/grpc.health.v1.Health/Check",
    ProbeQuestion.MODEL_STATUS_CALL: MODEL_STATUS_METHOD,
}
_YES: Final = b"\x08\x01"
"""Field 1 is 1: `ServerReadyResponse.ready` is true, `HealthCheckResponse.status` is SERVING."""
_ANSWER_BYTES: Final = 65_535
_ALIKE_BYTES: Final = 1024
_ALIKE_READS: Final = 4
_ALIKE_ANSWERS: Final = 1024
"""Servers answer a question in the same bytes each time: what so many reads have brought is looked
up, and only taken apart where nobody has said the same before."""
_NAMES: Final = {code.value: code.name for code in GrpcStatus}


_Heard: TypeAlias = tuple[bytes, GrpcAnswer | None]
"""What is to be sent back, and the answer, if there is one already."""


def _listener() -> GrpcClientCall:
    """What comes back does not depend on what was asked."""
    return GrpcClientCall(b"", (), authority=b"", limit=_ANSWER_BYTES)


@lru_cache(_ALIKE_ANSWERS)
def _heard(received: bytes) -> _Heard:
    client_call = _listener()
    return client_call.receive(received), client_call.answer


class GrpcCall:
    """One call; a `Conversation`."""

    __slots__ = ("_client_call", "_plan", "_reads", "_received", "_replied", "answer")

    def __init__(self, plan: ProbePlan) -> None:
        self.answer: ProbeAnswer | None = None
        self._plan = plan
        self._received = b""
        """All so far, as long as that may be looked up."""
        self._reads = 0
        self._replied = 0
        self._client_call: GrpcClientCall | None = None
        """Takes apart what is not looked up any more."""

    def opening(self) -> bytes:
        """Preface, settings and the whole request: it fits into any window."""
        plan = self._plan
        asks_model = plan.question is ProbeQuestion.MODEL_STATUS_CALL
        client_call = GrpcClientCall(
            _METHODS[plan.question],
            marked(
                with_operator_fields(((b"user-agent", b"triton-lb"),), plan.headers), plan.identity
            ),
            status_request(plan.model.encode()) if asks_model else b"",
            authority=authority(plan.headers, plan.address),
            is_secure=plan.tls is not None,
            limit=_ANSWER_BYTES,
        )
        return b"".join((client_call.opening(), *client_call.upload()))

    def receive(self, data: bytes) -> bytes:
        """Take the complete frames; returns acknowledgements."""
        try:
            reply, answer = self._hear(data)
        except UpstreamError as error:
            self.answer = ProbeAnswer(Finding.ERROR, error.detail)
            return b""
        if answer is not None:
            self.answer = self._judge(answer)
        return reply

    def _hear(self, data: bytes) -> _Heard:
        client_call = self._client_call
        if client_call is None:
            self._received += data
            self._reads += 1
            if self._reads <= _ALIKE_READS and len(self._received) <= _ALIKE_BYTES:
                replies, answer = _heard(self._received)
                before, self._replied = self._replied, len(replies)
                return replies[before:], answer
            client_call = self._client_call = _listener()
            data, self._received = self._received, b""
            return client_call.receive(data)[self._replied :], client_call.answer
        return client_call.receive(data), client_call.answer

    def _judge(self, answer: GrpcAnswer) -> ProbeAnswer:
        if answer.status != GrpcStatus.OK:
            name = _NAMES.get(answer.status, str(answer.status))
            text = f"{name}: {answer.detail}" if answer.detail else name
            return ProbeAnswer(Finding.NOT_READY, text)
        if self._plan.question is ProbeQuestion.MODEL_STATUS_CALL:
            if is_available(answer.message):
                return READY
            return ProbeAnswer(Finding.NOT_READY, "no version of the model is available")
        through = answer.field(READY_THROUGH)
        if answer.message.startswith(_YES):
            return ProbeAnswer(Finding.READY, ready_through=passed(through)) if through else READY
        if through:
            return NO_BACKEND_READY
        return ProbeAnswer(Finding.MODELS_NOT_READY, "it says that it is not ready")
