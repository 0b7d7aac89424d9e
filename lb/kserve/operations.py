"""Which operation a request is: routes and methods of KServe v2, Triton and TF Serving.

Sources: Triton `src/http_server.cc` (route expressions, matched on the raw path without its
query, no percent-decoding), `grpc_service.proto`, `grpc.health.v1`. `infer_stream` is MLServer's.
"""

from __future__ import annotations

import re
from typing import Final

from lb.domain.operation import ModelIn, Operation, OperationKind, Treatment
from lb.kserve import tfserving
from lb.kserve.gate import REFUSED, is_registration, names_reserved_region

_READ: Final = OperationKind.READ
_CONTROL: Final = OperationKind.CONTROL

_ASKED: Final = frozenset({Treatment.BROADCAST, Treatment.MERGE})

UNKNOWN: Final = Operation("Unknown", OperationKind.OTHER)
"""Relayed like any other request: the backend knows what it means."""
SERVER_LIVE: Final = Operation("ServerLive", _READ, Treatment.ANSWER)
SERVER_READY: Final = Operation("ServerReady", _READ, Treatment.ANSWER)
HEALTH_CHECK: Final = Operation("HealthCheck", _READ, Treatment.ANSWER)
HEALTH_WATCH: Final = Operation("HealthWatch", _READ, Treatment.ANSWER)
REFLECTION: Final = Operation("ServerReflectionInfo", _READ)
"""Which services and messages there are, for grpcurl. Not about health, so it needs a token where
requests do."""
SERVER_METADATA: Final = Operation("ServerMetadata", _READ, Treatment.MERGE)
SERVER_OPTIONS: Final = Operation("ServerOptions", _READ, Treatment.ANSWER)
"""`OPTIONS *`: asks the server that is spoken to, which is us (RFC 9110 9.3.7)."""
MODEL_INFER: Final = Operation("ModelInfer", OperationKind.INFERENCE, model_in=ModelIn.MESSAGE)
MODEL_STREAM_INFER: Final = Operation(
    "ModelStreamInfer", OperationKind.STREAM, model_in=ModelIn.MESSAGE
)

MODEL_READY: Final = Operation("ModelReady", _READ, model_in=ModelIn.MESSAGE)

_SERVICE: Final = b"/inference.GRPCInferenceService/"
GRPC_OPERATIONS: Final[dict[bytes, Operation]] = {
    _SERVICE + operation.name.encode(): operation
    for operation in (
        SERVER_LIVE,
        SERVER_READY,
        SERVER_METADATA,
        MODEL_INFER,
        MODEL_STREAM_INFER,
        MODEL_READY,
        Operation("ModelMetadata", _READ, model_in=ModelIn.MESSAGE),
        Operation("ModelConfig", _READ, model_in=ModelIn.MESSAGE),
        Operation("ModelStatistics", _READ, Treatment.MERGE),
        Operation("RepositoryIndex", _READ, Treatment.MERGE),
        Operation("RepositoryModelLoad", _CONTROL, Treatment.BROADCAST),
        Operation("RepositoryModelUnload", _CONTROL, Treatment.BROADCAST),
        Operation("SystemSharedMemoryStatus", _READ, Treatment.MERGE),
        Operation("SystemSharedMemoryRegister", _CONTROL, Treatment.BROADCAST),
        Operation("SystemSharedMemoryUnregister", _CONTROL, Treatment.BROADCAST),
        Operation("CudaSharedMemoryStatus", _READ, Treatment.MERGE),
        Operation("CudaSharedMemoryRegister", _CONTROL, Treatment.BROADCAST),
        Operation("CudaSharedMemoryUnregister", _CONTROL, Treatment.BROADCAST),
        # These two read when the message names no settings.
        Operation("TraceSetting", _CONTROL, Treatment.BROADCAST),
        Operation("LogSettings", _CONTROL, Treatment.BROADCAST),
    )
}
GRPC_OPERATIONS[b"/grpc.health.v1.Health/Check"] = HEALTH_CHECK
GRPC_OPERATIONS[b"/grpc.health.v1.Health/Watch"] = HEALTH_WATCH
for _version in (b"v1", b"v1alpha"):
    GRPC_OPERATIONS[b"/grpc.reflection.%b.ServerReflection/ServerReflectionInfo" % _version] = (
        REFLECTION
    )
GRPC_OPERATIONS.update(tfserving.GRPC_OPERATIONS)
_OF_MLSERVER: Final = b"/inference.model_repository.ModelRepositoryService/"
"""Its older service for what the common one also does."""
GRPC_OPERATIONS.update(
    (_OF_MLSERVER + name.encode(), Operation(name, kind))
    for name, kind in (
        ("RepositoryIndex", _READ),
        ("RepositoryModelLoad", _CONTROL),
        ("RepositoryModelUnload", _CONTROL),
    )
)


def grpc_operation(path: bytes) -> Operation:
    """The operation of a gRPC `:path`; `UNKNOWN` for any other service."""
    return GRPC_OPERATIONS.get(path, UNKNOWN)


MODEL_NAME_BYTES: Final = 255
"""Longest name of a model: it is that of a folder."""
_MODEL_VERSION_MAX: Final = 2**63 - 1
_SEPARATOR: Final = re.compile(rb"%2f|%5c|\\", re.IGNORECASE)


class Route:
    """What an HTTP request asks for."""

    __slots__ = (
        "fault", "is_asked", "is_ours", "is_registration", "model", "operation", "version"
    )  # fmt: skip

    def __init__(
        self, operation: Operation, model: bytes = b"", fault: str = "", version: bytes = b""
    ) -> None:
        self.operation = operation
        self.model = model
        """The raw path segment that names it."""
        self.version = version
        """The model's version; empty where the path names none."""
        self.fault = fault
        """Why no server should see such a request; empty for all but a few."""
        self.is_ours = fault != "" or operation.treatment is Treatment.ANSWER
        """We answer it."""
        self.is_asked = operation.treatment in _ASKED
        """It concerns all backends."""
        self.is_registration = is_registration(operation)
        """It names shared memory that the server is to open."""


_MODEL_ROUTE: Final = re.compile(
    rb"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
    rb"(?:/(infer|infer_stream|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY: Final = re.compile(rb"/v2/repository(?:/[^/]+)?/(index|models/([^/]+)/(load|unload))")
_SHARED_MEMORY: Final = re.compile(
    rb"/v2/(system|cuda)sharedmemory(?:/region/[^/]+)?/(status|register|unregister)"
)


def _in_path(name: str, kind: OperationKind, treatment: Treatment = Treatment.BALANCE) -> Operation:
    return Operation(name, kind, treatment, ModelIn.PATH)


_INFERENCE: Final = OperationKind.INFERENCE
HTTP_MODEL_READY: Final = _in_path("ModelReady", _READ)
MODEL_GENERATE_STREAM: Final = _in_path("ModelGenerateStream", _INFERENCE)
_ONE_RESPONSE: Final = frozenset(("ModelInfer", "ModelGenerate"))
_MODEL_ACTIONS: Final[dict[tuple[bytes, bytes | None], Operation]] = {
    (b"POST", b"infer"): _in_path("ModelInfer", _INFERENCE),
    (b"POST", b"infer_stream"): _in_path("ModelInferStream", _INFERENCE),
    (b"POST", b"generate"): _in_path("ModelGenerate", _INFERENCE),
    (b"POST", b"generate_stream"): MODEL_GENERATE_STREAM,
    (b"GET", b"ready"): HTTP_MODEL_READY,
    (b"GET", b"config"): _in_path("ModelConfig", _READ),
    (b"GET", b"stats"): _in_path("ModelStatistics", _READ, Treatment.MERGE),
    (b"GET", b"trace/setting"): _in_path("TraceSetting", _READ, Treatment.MERGE),
    (b"POST", b"trace/setting"): _in_path("TraceSetting", _CONTROL, Treatment.BROADCAST),
    (b"GET", None): _in_path("ModelMetadata", _READ),
}
REPOSITORY_INDEX: Final = Operation("RepositoryIndex", _READ, Treatment.MERGE)
_LOAD: Final = Operation("RepositoryModelLoad", _CONTROL, Treatment.BROADCAST)
_UNLOAD: Final = Operation("RepositoryModelUnload", _CONTROL, Treatment.BROADCAST)
_SHARED_MEMORY_ACTIONS: Final[dict[tuple[bytes, ...], Operation]] = {
    (method, area.lower().encode(), action.lower().encode()): Operation(
        f"{area}SharedMemory{action}", kind, treatment
    )
    for area in ("System", "Cuda")
    for method, action, kind, treatment in (
        (b"GET", "Status", _READ, Treatment.MERGE),
        (b"POST", "Register", _CONTROL, Treatment.BROADCAST),
        (b"POST", "Unregister", _CONTROL, Treatment.BROADCAST),
    )
}
_FIXED: Final[dict[tuple[bytes, bytes], Operation]] = {
    (b"OPTIONS", b"*"): SERVER_OPTIONS,
    (b"GET", b"/v2"): SERVER_METADATA,
    (b"GET", b"/v2/health/live"): SERVER_LIVE,
    (b"GET", b"/v2/health/ready"): SERVER_READY,
    (b"GET", b"/v2/models/stats"): Operation("ModelStatistics", _READ, Treatment.MERGE),
    (b"GET", b"/v2/logging"): Operation("LogSettings", _READ, Treatment.MERGE),
    (b"POST", b"/v2/logging"): Operation("LogSettings", _CONTROL, Treatment.BROADCAST),
    (b"GET", b"/v2/trace/setting"): Operation("TraceSetting", _READ, Treatment.MERGE),
    (b"POST", b"/v2/trace/setting"): Operation("TraceSetting", _CONTROL, Treatment.BROADCAST),
}


def answers_once(operation: Operation) -> bool:
    """Whether its response is one answer, which begins when the model has executed it."""
    return operation.name in _ONE_RESPONSE


def http_route(method: bytes, target: bytes) -> Route:
    """The operation of an HTTP request.

    Args:
        method: as on the wire, case-sensitive.
        target: origin-form request target; a query is ignored, as Triton ignores it.
    """
    path = target.partition(b"?")[0]
    fixed = _FIXED.get((method, path))
    if fixed is not None:
        return Route(fixed)
    match = _MODEL_ROUTE.fullmatch(path)
    if match is not None:
        operation = _MODEL_ACTIONS.get((method, match[3]), UNKNOWN)
        fault = _model_fault(match[1], match[2] or b"1")
        return Route(operation, match[1], fault, match[2] or b"")
    match = _REPOSITORY.fullmatch(path)
    if match is not None and method == b"POST":
        if match[2] is None:
            return Route(REPOSITORY_INDEX)
        operation = _LOAD if match[3] == b"load" else _UNLOAD
        return Route(operation, match[2], _model_fault(match[2], b"1"))
    match = _SHARED_MEMORY.fullmatch(path)
    if match is not None:
        operation = _SHARED_MEMORY_ACTIONS.get((method, *match.group(1, 2)), UNKNOWN)
        refused = match[2] == b"register" and names_reserved_region(path)
        return Route(operation, fault=REFUSED if refused else "")
    of_tensorflow = tfserving.http_operation(method, path)
    return Route(UNKNOWN) if of_tensorflow is None else Route(*of_tensorflow)


def _model_fault(name: bytes, version: bytes) -> str:
    """What is wrong with a model's name or version, which Triton takes as they stand in the path.

    Dot segments and NUL do not get this far: no path may hold them.
    """
    if len(name) > MODEL_NAME_BYTES:
        return "model name is too long"
    if _SEPARATOR.search(name) is not None:
        return "model name holds a separator of paths"
    digits = version.lstrip(b"0")
    if len(digits) > 19 or int(digits or b"0") > _MODEL_VERSION_MAX:
        return "model version is too large"
    return ""
