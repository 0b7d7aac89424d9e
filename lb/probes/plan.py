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
from lb.kserve.tfserving import status_path

READY_PATH: Final = "/v2/health/ready"
_KSERVE: Final = frozenset({BackendKind.TRITON, BackendKind.KSERVE})


class ProbeKind(Enum):
    """What configuration may ask for."""

    AUTO = "auto"
    """Readiness in the port's own protocol, as the backend's kind does it."""
    HTTP = "http"
    GRPC = "grpc"
    TCP = "tcp"


class ProbeQuestion(Enum):
    """What one probe asks."""

    HTTP_GET = "http_get"
    SERVER_READY = "server_ready"
    """`inference.GRPCInferenceService/ServerReady`."""
    GRPC_HEALTH = "grpc_health"
    """`grpc.health.v1.Health/Check` of the whole server."""
    MODEL_STATUS_GET = "model_status_get"
    """TF Serving's REST: an available version of a model."""
    MODEL_STATUS_CALL = "model_status_call"
    """The same by `tensorflow.serving.ModelService/GetModelStatus`."""
    CONNECT = "connect"


_OVER_HTTP: Final = frozenset({ProbeQuestion.HTTP_GET, ProbeQuestion.MODEL_STATUS_GET})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChoice:
    """The probe settings of one backend."""

    kind: ProbeKind = ProbeKind.AUTO
    http_path: str | None = None
    """None: by the backend's kind."""
    expected_status: tuple[int, ...] = (200,)
    grpc_health: bool = False
    """Ask `grpc.health.v1` although the backend's kind has `ServerReady`."""
    model: str | None = None
    """The model whose state a TF Serving is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """Everything that one probe needs."""

    question: ProbeQuestion
    address: Address
    path: str = READY_PATH
    model: str = ""
    """The one that `MODEL_STATUS_CALL` asks about."""
    expected_status: tuple[int, ...] = (200,)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: BackendTls | None = None
    """None where the port is plain, or connecting is all that is asked."""
    identity: bytes = b""
    """Ours, in the hop marker; empty: there is none."""

    @property
    def protocol(self) -> AppProtocol:
        """What is spoken over the connection."""
        return AppProtocol.HTTP if self.question in _OVER_HTTP else AppProtocol.GRPC


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What was found, and why, in words for people."""

    finding: Finding
    detail: str = ""
    ready_through: tuple[bytes, ...] = ()
    """Identities of the balancers through which it is ready; none for a server."""


READY: Final = ProbeAnswer(Finding.READY)
NO_BACKEND_READY: Final = ProbeAnswer(
    Finding.NO_BACKEND_READY, "it is a load balancer, and no backend of its is ready"
)


class Conversation(Protocol):
    """One question in one language, without IO: bytes in, bytes out, at last an answer."""

    answer: ProbeAnswer | None
    """Set once the question is answered; nothing is fed after that."""

    def opening(self) -> bytes:
        """What to send when the connection stands."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the backend; returns what to send back."""
        ...


def plan_probe(
    spec: BackendSpec, protocol: AppProtocol, choice: ProbeChoice, identity: bytes = b""
) -> ProbePlan:
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
    is_tfserving = spec.kind is BackendKind.TFSERVING
    tls = None
    match kind:
        case ProbeKind.HTTP:
            question = _tf_http(choice) if is_tfserving else ProbeQuestion.HTTP_GET
            address = spec.http or own
            tls = spec.tls_of(BackendPort.HTTP if spec.http else BackendPort.GRPC)
        case ProbeKind.GRPC:
            question = _tf_grpc(choice) if is_tfserving else _grpc(spec, choice)
            address = spec.grpc or own
            tls = spec.tls_of(BackendPort.GRPC if spec.grpc else BackendPort.HTTP)
        case ProbeKind.TCP:
            question, address = ProbeQuestion.CONNECT, own
    return ProbePlan(
        question=question,
        address=address,
        path=_path(spec, choice),
        model=choice.model or "",
        expected_status=choice.expected_status,
        headers=spec.headers,
        tls=None if question is ProbeQuestion.CONNECT else tls,
        identity=identity,
    )


def _grpc(spec: BackendSpec, choice: ProbeChoice) -> ProbeQuestion:
    ask_health = choice.grpc_health or spec.kind not in _KSERVE
    return ProbeQuestion.GRPC_HEALTH if ask_health else ProbeQuestion.SERVER_READY


def _tf_http(choice: ProbeChoice) -> ProbeQuestion:
    """A TF Serving has no readiness of its own: without a model, that it accepts must do."""
    if choice.http_path is not None:
        return ProbeQuestion.HTTP_GET
    return ProbeQuestion.CONNECT if choice.model is None else ProbeQuestion.MODEL_STATUS_GET


def _tf_grpc(choice: ProbeChoice) -> ProbeQuestion:
    if choice.grpc_health:
        return ProbeQuestion.GRPC_HEALTH
    return ProbeQuestion.CONNECT if choice.model is None else ProbeQuestion.MODEL_STATUS_CALL


def _path(spec: BackendSpec, choice: ProbeChoice) -> str:
    if choice.http_path is not None:
        return choice.http_path
    if spec.kind is BackendKind.TFSERVING and choice.model is not None:
        return status_path(choice.model)
    return READY_PATH if spec.kind in _KSERVE else "/"
