"""TensorFlow Serving: its REST routes and gRPC methods, and whether a model is available.

Sources: `tensorflow_serving/apis/*.proto`, `model_servers/http_rest_api_handler.cc`. Unlike a
Triton it decodes names in paths, and folds the case of routes.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from lb.domain.backend import BackendKind
from lb.domain.operation import ModelIn, Operation, OperationKind, Treatment
from lb.wire.protobuf import BYTES, VARINT, ProtobufError, fields, varint

_READ: Final = OperationKind.READ
_INFERENCE: Final = OperationKind.INFERENCE
_PREDICTION: Final = b"/tensorflow.serving.PredictionService/"
_MODEL: Final = b"/tensorflow.serving.ModelService/"
_SESSION: Final = b"/tensorflow.serving.SessionService/"

MODEL_STATUS_METHOD: Final = _MODEL + b"GetModelStatus"

RELOAD: Final = Operation(
    "HandleReloadConfigRequest",
    OperationKind.CONTROL,
    Treatment.BROADCAST,
    asks=BackendKind.TFSERVING,
)
GRPC_OPERATIONS: Final[dict[bytes, Operation]] = {
    _PREDICTION + b"Predict": Operation("Predict", _INFERENCE, model_in=ModelIn.SPEC),
    _PREDICTION + b"Classify": Operation("Classify", _INFERENCE, model_in=ModelIn.SPEC),
    _PREDICTION + b"Regress": Operation("Regress", _INFERENCE, model_in=ModelIn.SPEC),
    _PREDICTION + b"MultiInference": Operation("MultiInference", _INFERENCE, model_in=ModelIn.TASK),
    _PREDICTION + b"GetModelMetadata": Operation("GetModelMetadata", _READ, model_in=ModelIn.SPEC),
    MODEL_STATUS_METHOD: Operation("GetModelStatus", _READ, model_in=ModelIn.SPEC),
    _MODEL + b"HandleReloadConfigRequest": RELOAD,
    # It may run anything, so nothing may be assumed.
    _SESSION + b"SessionRun": Operation("SessionRun", OperationKind.OTHER, model_in=ModelIn.SPEC),
}

_ROUTE: Final = re.compile(
    rb"/v1/models/([^/:]+)(?:/versions/[0-9]+|/labels/[^/:]+)?"
    rb"(?::(predict|classify|regress)|/(metadata))?",
    re.IGNORECASE,
)
_HTTP_OPERATIONS: Final[dict[tuple[bytes, bytes], Operation]] = {
    (method, verb): Operation(name, kind, model_in=ModelIn.PATH)
    for method, verb, name, kind in (
        (b"POST", b"predict", "Predict", _INFERENCE),
        (b"POST", b"classify", "Classify", _INFERENCE),
        (b"POST", b"regress", "Regress", _INFERENCE),
        (b"GET", b"metadata", "GetModelMetadata", _READ),
        (b"GET", b"", "GetModelStatus", _READ),
    )
}
_AVAILABLE: Final = 30
"""`ModelVersionStatus.State.AVAILABLE`."""
_AVAILABLE_JSON: Final = re.compile(rb'"state"\s*:\s*"AVAILABLE"')


def http_operation(method: bytes, path: bytes) -> tuple[Operation, bytes] | None:
    """The operation and the model's name of a REST request; None for all others."""
    match = _ROUTE.fullmatch(path)
    if match is None:
        return None
    operation = _HTTP_OPERATIONS.get((method, (match[2] or match[3] or b"").lower()))
    return None if operation is None else (operation, unquote_to_bytes(match[1]))


# Whether a model is available


def status_path(model: str) -> str:
    """Where REST tells the state of a model."""
    return f"/v1/models/{quote(model, safe='')}"


def status_request(model: bytes) -> bytes:
    """A `GetModelStatusRequest` without its prefix; the name has fewer than 126 bytes."""
    spec = b"\x0a%c%b" % (len(model), model)
    return b"\x0a%c%b" % (len(spec), spec)


def is_available(message: bytes) -> bool:
    """Whether a `GetModelStatusResponse` without its prefix has an available version."""
    try:
        return any(
            number == 1 and kind == BYTES and _state(message, start, end) == _AVAILABLE
            for number, kind, start, end in fields(message)
        )
    except ProtobufError:
        return False


def _state(message: bytes, start: int, end: int) -> int:
    """Field 2 of a `ModelVersionStatus`."""
    state = 0
    for number, kind, first, last in fields(message, start, end):
        if number == 2 and kind == VARINT:
            state, _ = varint(message, first, last)
    return state


def shows_available(text: bytes) -> bool:
    """Whether as much as there is of the answer to `status_path` shows an available version."""
    return _AVAILABLE_JSON.search(text) is not None
