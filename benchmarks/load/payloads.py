"""Request and response bodies: valid KServe v2 messages of the sizes that the cells name.

Built by hand from the public field numbers, so that the benchmark shares no code with what it
measures. Sizes are bytes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

IMAGE_BYTES = 3 * 224 * 224 * 4
"""One 3x224x224 FP32 image: the usual request of an image classifier."""

LARGE_BYTES = 4 * 1024 * 1024
SMALL_HTTP_BYTES = 130
SMALL_GRPC_BYTES = 200
UNSCHEDULED = "unscheduled"
"""Like `simple`, but triton-lb is configured not to schedule it: what scheduling costs shows."""
MODELS = ("simple", UNSCHEDULED, "image", "large")
INSTANCES = 64
"""Of each model on each backend: the load has fewer requests in flight than two backends run at
once, so scheduled requests are counted and learned from, and none of them queues."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def grpc_message(message: bytes) -> bytes:
    """Put the 5-byte gRPC prefix (not compressed, length) before a message."""
    return struct.pack(">BI", 0, len(message)) + message


def infer_request(model: str, datatype: str, shape: list[int], raw: bytes) -> bytes:
    """A ModelInferRequest with one input in `raw_input_contents`."""
    tensor = (
        _field(1, b"INPUT0")
        + _field(2, datatype.encode())
        + _field(3, b"".join(_varint(size) for size in shape))
    )
    return (
        _field(1, model.encode())
        + _field(3, b"request-1")
        + _field(5, tensor)
        + _field(6, _field(1, b"OUTPUT0"))
        + _field(7, raw)
    )


def infer_response(model: str, raw: bytes) -> bytes:
    """A ModelInferResponse with one INT32 output in `raw_output_contents`."""
    shape = _varint(1) + _varint(len(raw) // 4)
    tensor = _field(1, b"OUTPUT0") + _field(2, b"INT32") + _field(3, shape)
    return (
        _field(1, model.encode())
        + _field(2, b"1")
        + _field(3, b"request-1")
        + _field(5, tensor)
        + _field(6, raw)
    )


def small_grpc_request(model: str = "simple") -> bytes:
    """A prefixed ModelInferRequest whose message has exactly SMALL_GRPC_BYTES."""
    bare = len(infer_request(model, "INT32", [1, 16], b""))
    # The length of the tensor takes two bytes, that of the empty one took one.
    raw = bytes(SMALL_GRPC_BYTES - bare - 1)
    return grpc_message(infer_request(model, "INT32", [1, 16], raw))


def small_stream_answer() -> bytes:
    """A prefixed ModelStreamInferResponse with a result, as long as `small_grpc_request`."""
    answers = (_field(2, infer_response("simple", bytes(size))) for size in range(SMALL_GRPC_BYTES))
    return grpc_message(next(each for each in answers if len(each) == SMALL_GRPC_BYTES))


def tensor_grpc_request(size: int) -> bytes:
    """A prefixed ModelInferRequest that carries an FP32 tensor of `size` bytes."""
    return grpc_message(infer_request("image", "FP32", [1, size // 4], bytes(size)))


def small_http_request() -> bytes:
    """An infer request in JSON, SMALL_HTTP_BYTES long."""
    head = '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":['
    tail = "]}]}"
    room = SMALL_HTTP_BYTES - len(head) - len(tail)
    data = ",".join("1" for _ in range(16))
    return (head + data.ljust(room) + tail).encode()


def tensor_http_request(size: int) -> tuple[bytes, int]:
    """An infer request with a binary tensor of `size` bytes, and the length of its JSON head."""
    tensor = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [1, size // 4],
        "parameters": {"binary_data_size": size},
    }
    head = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
    return head + bytes(size), len(head)


def small_http_response(model: str, numbers: int = 16) -> str:
    """An infer answer in JSON (about 150 B, no quotes that nginx would mind)."""
    output = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, numbers], "data": [2] * numbers}
    answer = {"model_name": model, "model_version": "1", "outputs": [output]}
    return json.dumps(answer, separators=(",", ":"))


def model_config_json(model: str) -> str:
    """The answer to GET /v2/models/MODEL/config, with the instances that a Triton fills in."""
    config = {
        "name": model,
        "platform": "",
        "backend": "python",
        "max_batch_size": 8,
        "instance_group": [{"name": model, "kind": "KIND_CPU", "count": INSTANCES}],
    }
    return json.dumps(config, separators=(",", ":"))


def repository_index_json() -> str:
    """The answer to POST /v2/repository/index: every model of the benchmark is ready."""
    return json.dumps([{"name": name, "version": "1", "state": "READY"} for name in MODELS])


def _repository_index_message() -> bytes:
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, b"1") + _field(3, b"READY"))
        for name in MODELS
    )


TRUE_MESSAGE = grpc_message(b"\x08\x01")
"""`ready = true`, `live = true` and `status = SERVING` are all field 1, varint 1."""

GRPC_ANSWERS = {
    "inference.GRPCInferenceService/ModelInfer": grpc_message(infer_response("simple", bytes(16))),
    "inference.GRPCInferenceService/ServerReady": TRUE_MESSAGE,
    "inference.GRPCInferenceService/ServerLive": TRUE_MESSAGE,
    "inference.GRPCInferenceService/ModelReady": TRUE_MESSAGE,
    "inference.GRPCInferenceService/RepositoryIndex": grpc_message(_repository_index_message()),
    # ModelConfigResponse: config (1) with name (1), max_batch_size (4), instance_group (7) with
    # count (2), and backend (17).
    "inference.GRPCInferenceService/ModelConfig": grpc_message(
        _field(
            1,
            _field(1, b"simple")
            + b"\x20\x08"
            + _field(7, b"\x10" + _varint(INSTANCES))
            + b"\x8a\x01\x06python",
        )
    ),
    "grpc.health.v1.Health/Check": TRUE_MESSAGE,
}
"""Path (without the first slash) to the prefixed answer."""

LARGE_GRPC_ANSWER = grpc_message(infer_response("simple", bytes(LARGE_BYTES)))

INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

JSON_HEADS = {
    "http-image": tensor_http_request(IMAGE_BYTES)[1],
    "http-large": tensor_http_request(LARGE_BYTES)[1],
}
"""Of the bodies with a binary tensor: how long the JSON before it is."""


def write_requests(directory: Path) -> None:
    """Write the request bodies to files, for the load generators."""
    bodies = {
        "http-small": small_http_request(),
        "http-image": tensor_http_request(IMAGE_BYTES)[0],
        "http-large": tensor_http_request(LARGE_BYTES)[0],
        "grpc-small": small_grpc_request(),
        "grpc-unscheduled": small_grpc_request(UNSCHEDULED),
        "grpc-image": tensor_grpc_request(IMAGE_BYTES),
        "grpc-large": tensor_grpc_request(LARGE_BYTES),
        "grpc-foreign": grpc_message(b"y" * IMAGE_BYTES),
    }
    for name, body in bodies.items():
        (directory / name).write_bytes(body)
