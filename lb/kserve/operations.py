"""Which operation a request is: KServe v2 and Triton routes and methods.

Sources: Triton `src/http_server.cc` (route expressions, matched on the raw path without its
query, no percent-decoding), `grpc_service.proto`, `grpc.health.v1`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lb.domain.operation import ModelIn, Operation, OperationKind, Treatment

_READ: Final = OperationKind.READ
_CONTROL: Final = OperationKind.CONTROL

UNKNOWN: Final = Operation("Unknown", OperationKind.OTHER)
"""Relayed like any other request: the backend knows what it means."""
SERVER_LIVE: Final = Operation("ServerLive", _READ, Treatment.ANSWER)
SERVER_READY: Final = Operation("ServerReady", _READ, Treatment.ANSWER)
HEALTH_CHECK: Final = Operation("HealthCheck", _READ, Treatment.ANSWER)
HEALTH_WATCH: Final = Operation("HealthWatch", _READ, Treatment.ANSWER)
SERVER_METADATA: Final = Operation("ServerMetadata", _READ)
MODEL_INFER: Final = Operation("ModelInfer", OperationKind.INFERENCE, model_in=ModelIn.MESSAGE)
MODEL_STREAM_INFER: Final = Operation(
    "ModelStreamInfer", OperationKind.STREAM, model_in=ModelIn.MESSAGE
)

_SERVICE: Final = b"/inference.GRPCInferenceService/"
GRPC_OPERATIONS: Final[dict[bytes, Operation]] = {
    _SERVICE + operation.name.encode(): operation
    for operation in (
        SERVER_LIVE,
        SERVER_READY,
        SERVER_METADATA,
        MODEL_INFER,
        MODEL_STREAM_INFER,
        Operation("ModelReady", _READ),
        Operation("ModelMetadata", _READ),
        Operation("ModelConfig", _READ),
        Operation("ModelStatistics", _READ),
        Operation("RepositoryIndex", _READ),
        Operation("RepositoryModelLoad", _CONTROL),
        Operation("RepositoryModelUnload", _CONTROL),
        Operation("SystemSharedMemoryStatus", _READ),
        Operation("SystemSharedMemoryRegister", _CONTROL),
        Operation("SystemSharedMemoryUnregister", _CONTROL),
        Operation("CudaSharedMemoryStatus", _READ),
        Operation("CudaSharedMemoryRegister", _CONTROL),
        Operation("CudaSharedMemoryUnregister", _CONTROL),
        Operation("TraceSetting", _CONTROL),
        Operation("LogSettings", _CONTROL),
    )
}
GRPC_OPERATIONS[b"/grpc.health.v1.Health/Check"] = HEALTH_CHECK
GRPC_OPERATIONS[b"/grpc.health.v1.Health/Watch"] = HEALTH_WATCH


def grpc_operation(path: bytes) -> Operation:
    """The operation of a gRPC `:path`; `UNKNOWN` for any other service."""
    return GRPC_OPERATIONS.get(path, UNKNOWN)


class Route(NamedTuple):
    """An HTTP request's operation and the raw path segment that names its model."""

    operation: Operation
    model: bytes = b""


_MODEL_ROUTE: Final = re.compile(
    rb"/v2/models/([^/]+)(?:/versions/[0-9]+)?"
    rb"(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY: Final = re.compile(rb"/v2/repository(?:/[^/]+)?/(index|models/([^/]+)/(load|unload))")
_SHARED_MEMORY: Final = re.compile(
    rb"/v2/(system|cuda)sharedmemory(?:/region/[^/]+)?/(status|register|unregister)"
)


def _in_path(name: str, kind: OperationKind) -> Operation:
    return Operation(name, kind, model_in=ModelIn.PATH)


_INFERENCE: Final = OperationKind.INFERENCE
_MODEL_ACTIONS: Final[dict[tuple[bytes, bytes | None], Operation]] = {
    (b"POST", b"infer"): _in_path("ModelInfer", _INFERENCE),
    (b"POST", b"generate"): _in_path("ModelGenerate", _INFERENCE),
    (b"POST", b"generate_stream"): _in_path("ModelGenerateStream", _INFERENCE),
    (b"GET", b"ready"): _in_path("ModelReady", _READ),
    (b"GET", b"config"): _in_path("ModelConfig", _READ),
    (b"GET", b"stats"): _in_path("ModelStatistics", _READ),
    (b"GET", b"trace/setting"): _in_path("TraceSetting", _READ),
    (b"POST", b"trace/setting"): _in_path("TraceSetting", _CONTROL),
    (b"GET", None): _in_path("ModelMetadata", _READ),
}
_FIXED: Final[dict[tuple[bytes, bytes], Operation]] = {
    (b"GET", b"/v2"): SERVER_METADATA,
    (b"GET", b"/v2/health/live"): SERVER_LIVE,
    (b"GET", b"/v2/health/ready"): SERVER_READY,
    (b"GET", b"/v2/models/stats"): Operation("ModelStatistics", _READ),
    (b"GET", b"/v2/logging"): Operation("LogSettings", _READ),
    (b"POST", b"/v2/logging"): Operation("LogSettings", _CONTROL),
    (b"GET", b"/v2/trace/setting"): Operation("TraceSetting", _READ),
    (b"POST", b"/v2/trace/setting"): Operation("TraceSetting", _CONTROL),
}


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
        operation = _MODEL_ACTIONS.get((method, match[2]), UNKNOWN)
        return Route(operation, match[1])
    match = _REPOSITORY.fullmatch(path)
    if match is not None and method == b"POST":
        if match[2] is None:
            return Route(Operation("RepositoryIndex", _READ))
        name = "RepositoryModelLoad" if match[3] == b"load" else "RepositoryModelUnload"
        return Route(Operation(name, _CONTROL), match[2])
    match = _SHARED_MEMORY.fullmatch(path)
    if match is not None:
        area = "System" if match[1] == b"system" else "Cuda"
        action = match[2].decode().capitalize()
        kind = _READ if action == "Status" else _CONTROL
        return Route(Operation(f"{area}SharedMemory{action}", kind))
    return Route(UNKNOWN)
