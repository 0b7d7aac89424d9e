"""What to ask a port, from what is configured for its backend, and the words for asking."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from lb.domain.backend import (
    Address,
    AppProtocol,
    BackendKind,
    BackendPort,
    BackendSpec,
    BackendTls,
)
from lb.health.port import Finding

READY_PATH: Final = "/v2/health/ready"


class ProbeKind(Enum):
    """What configuration may ask for."""

    AUTO = "auto"
    """Readiness in the port's own protocol, as the backend's kind does it."""
    HTTP = "http"
    GRPC = "grpc"
    TCP = "tcp"


class Question(Enum):
    """What one probe asks."""

    HTTP_GET = "http_get"
    SERVER_READY = "server_ready"
    """`inference.GRPCInferenceService/ServerReady`."""
    GRPC_HEALTH = "grpc_health"
    """`grpc.health.v1.Health/Check` of the whole server."""
    CONNECT = "connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChoice:
    """The probe settings of one backend."""

    kind: ProbeKind = ProbeKind.AUTO
    http_path: str | None = None
    """None: by the backend's kind."""
    expected_status: tuple[int, ...] = (200,)
    grpc_health: bool = False
    """Ask `grpc.health.v1` although the backend's kind has `ServerReady`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """Everything that one probe needs."""

    question: Question
    address: Address
    path: str = READY_PATH
    expected_status: tuple[int, ...] = (200,)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: BackendTls | None = None
    """None where the port is plain, or connecting is all that is asked."""

    @property
    def protocol(self) -> AppProtocol:
        """What is spoken over the connection."""
        return AppProtocol.HTTP if self.question is Question.HTTP_GET else AppProtocol.GRPC


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, and why, in words for people."""

    finding: Finding
    detail: str = ""


class Conversation(Protocol):
    """One question in one language, without IO: bytes in, bytes out, at last an answer."""

    answer: Answer | None
    """Set once the question is answered; nothing is fed after that."""

    def opening(self) -> bytes:
        """What to send when the connection stands."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the backend; returns what to send back."""
        ...


def plan_probe(spec: BackendSpec, protocol: AppProtocol, choice: ProbeChoice) -> ProbePlan:
    """Plan the probe of one port.

    A kind that is not the port's own goes to the port that speaks it, where the backend has
    one: `http` asks the HTTP port for both, so that its answer also decides for gRPC.

    Raises:
        LookupError: the backend has no such port.
    """
    own = spec.address(protocol)
    if own is None:
        raise LookupError(f"backend {spec.name} has no {protocol.label} port")
    kind = choice.kind
    if kind is ProbeKind.AUTO:
        kind = ProbeKind.HTTP if protocol is AppProtocol.HTTP else ProbeKind.GRPC
    is_kserve = spec.kind in (BackendKind.TRITON, BackendKind.KSERVE)
    tls = None
    match kind:
        case ProbeKind.HTTP:
            question, address = Question.HTTP_GET, spec.http or own
            tls = spec.tls_of(BackendPort.HTTP if spec.http else BackendPort.GRPC)
        case ProbeKind.GRPC:
            ask_health = choice.grpc_health or not is_kserve
            question = Question.GRPC_HEALTH if ask_health else Question.SERVER_READY
            address = spec.grpc or own
            tls = spec.tls_of(BackendPort.GRPC if spec.grpc else BackendPort.HTTP)
        case ProbeKind.TCP:
            question, address = Question.CONNECT, own
    return ProbePlan(
        question=question,
        address=address,
        path=choice.http_path or (READY_PATH if is_kserve else "/"),
        expected_status=choice.expected_status,
        headers=spec.headers,
        tls=tls,
    )
