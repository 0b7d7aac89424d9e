"""Calls that change a server, from one protocol into the other, for backends that have only that.

Sources: Triton `src/http_server.cc` and `src/grpc/grpc_server.cc`, extensions "model repository",
"shared memory", "trace" and "logging" of its protocol.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json, read_message, read_object, write_json
from lb.wire.protobuf import BYTES, ProtobufError, fields

MAX_BYTES: Final = 16 * 2**20
"""Longer requests are not converted: that would hold up everything else for too long."""
_MAX_MARKS: Final = 100_000
"""Quotes, commas, brackets, braces and backslashes of a body that is read as JSON. Reading takes
the longer the more there are, and nothing else runs meanwhile: 10 to 20 ms for so many. A load has
some thousands, nearly all in its configuration; files, however long, have none."""
_NO_MARKS: Final = bytes(set(range(256)) - set(b'",[]{}\\'))
_COUNTED_AT_ONCE: Final = 256 * 1024
"""Bytes whose marks are counted before another thread may run."""

_PATH: Final = re.compile(
    rb"/v2/(?:repository(?:/[^/]+)?/models/(?P<model>[^/]+)/(?:load|unload)"
    rb"|(?:system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?/(?:register|unregister)"
    rb"|models/(?P<traced>[^/]+)(?:/versions/[0-9]+)?/trace/setting|trace/setting|logging)"
)
_NOT_IN_SEGMENT: Final = re.compile(r"[\x00-\x20\x7f/?#%]")
"""What would end a segment of a path, or the path, or be read as something else there."""
_FILE: Final = "file:"


def subject(operation: str, target: bytes, message: bytes | None) -> bytes:
    """Which model or region a call is about; empty where it is about all.

    Args:
        operation: its name.
        target: request target of HTTP, `:path` of gRPC.
        message: of gRPC; None for HTTP, whose path says it.
    """
    if message is None:
        match = _PATH.fullmatch(target.partition(b"?")[0])
        return b"" if match is None else next((name for name in match.groups() if name), b"")
    number = _SUBJECTS.get(operation, 0)
    return _last_bytes(message, number) if number else b""


def read_body(body: bytes) -> Json:
    """What the body of an HTTP request says; an empty one says nothing.

    Raises:
        ValueError: it is no JSON object, or reading it would hold up everything else.
    """
    if len(body) > MAX_BYTES:
        raise ValueError("the request is too long to be put into the other protocol")
    marks = 0
    for at in range(0, len(body), _COUNTED_AT_ONCE):
        marks += len(body[at : at + _COUNTED_AT_ONCE].translate(None, _NO_MARKS))
        if marks > _MAX_MARKS:
            raise ValueError("the request says too much to be put into the other protocol")
    return read_object(body or b"{}")


def to_message(operation: str, target: bytes, body: bytes) -> bytes:
    """The gRPC message that says the same as an HTTP request.

    Raises:
        ValueError: nothing does, or it is too long.
    """
    name = subject(operation, target, None).decode(errors="strict")
    parameters = read_body(body)
    try:
        return _TO_MESSAGE[operation](name, parameters).SerializeToString()
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError("the request cannot be put into the other protocol") from error


def to_http(operation: str, message: bytes) -> tuple[bytes, bytes]:
    """Target and body of the POST that says the same as a gRPC message.

    Raises:
        ValueError: nothing does, or it is too long.
    """
    if len(message) > MAX_BYTES:
        raise ValueError("the request is too long to be put into the other protocol")
    try:
        kind, render = _TO_HTTP[operation]
    except KeyError as error:
        raise ValueError("the request cannot be put into the other protocol") from error
    target, body = render(read_message(kind, message))
    return target.encode(), write_json(body)


def answer_to_http(operation: str, message: bytes) -> bytes:
    """The body of the HTTP answer that says the same as that of a gRPC call.

    Raises:
        ValueError: it is no such answer.
    """
    if operation == "TraceSetting":
        trace = read_message(pb.TraceSettingResponse, message)
        return write_json({
            key: list(each.value) if key == "trace_level" else "".join(each.value)
            for key, each in trace.settings.items()
        })  # fmt: skip
    if operation == "LogSettings":
        log = read_message(pb.LogSettingsResponse, message)
        return write_json({key: _chosen(each) for key, each in log.settings.items()})
    return b""


def answer_to_message(operation: str, body: bytes) -> bytes:
    """The message of the gRPC answer that says the same as the body of an HTTP answer.

    Raises:
        ValueError: it is no such answer.
    """
    if operation == "TraceSetting":
        trace = pb.TraceSettingResponse()
        for key, value in read_object(body).items():
            trace.settings[key].value.extend(_texts(value))
        return trace.SerializeToString()
    if operation == "LogSettings":
        log = pb.LogSettingsResponse()
        try:
            for key, value in read_object(body).items():
                _choose(log.settings[key], value)
        except TypeError as error:
            raise ValueError("the answer cannot be put into the other protocol") from error
        return log.SerializeToString()
    return b""


# From HTTP


def _load(name: str, body: Json) -> Message:
    request = pb.RepositoryModelLoadRequest(model_name=name)
    for key, value in body.get("parameters", {}).items():
        if key.startswith(_FILE):
            request.parameters[key].bytes_param = b64decode(value)
        else:
            _choose_parameter(request.parameters[key], value)
    return request


def _unload(name: str, body: Json) -> Message:
    request = pb.RepositoryModelUnloadRequest(model_name=name)
    for key, value in body.get("parameters", {}).items():
        _choose_parameter(request.parameters[key], value)
    return request


def _register_system(name: str, body: Json) -> Message:
    return pb.SystemSharedMemoryRegisterRequest(
        name=name, key=body["key"], offset=body.get("offset", 0), byte_size=body["byte_size"]
    )


def _register_cuda(name: str, body: Json) -> Message:
    return pb.CudaSharedMemoryRegisterRequest(
        name=name,
        raw_handle=b64decode(body["raw_handle"]["b64"]),
        device_id=body["device_id"],
        byte_size=body["byte_size"],
    )


def _trace(name: str, body: Json) -> Message:
    request = pb.TraceSettingRequest(model_name=name)
    for key, value in body.items():
        request.settings[key].value.extend(_texts(value))
    return request


def _log(_name: str, body: Json) -> Message:
    request = pb.LogSettingsRequest()
    for key, value in body.items():
        _choose(request.settings[key], value)
    return request


_TO_MESSAGE: Final[dict[str, Callable[[str, Json], Message]]] = {
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryRegister": _register_system,
    "SystemSharedMemoryUnregister": lambda name, _: pb.SystemSharedMemoryUnregisterRequest(
        name=name
    ),
    "CudaSharedMemoryRegister": _register_cuda,
    "CudaSharedMemoryUnregister": lambda name, _: pb.CudaSharedMemoryUnregisterRequest(name=name),
    "TraceSetting": _trace,
    "LogSettings": _log,
}


def _choose_parameter(parameter: pb.ModelRepositoryParameter, value: object) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    else:
        raise TypeError("no parameter has such a value")


def _choose(
    setting: pb.LogSettingsRequest.SettingValue | pb.LogSettingsResponse.SettingValue,
    value: object,
) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    elif isinstance(value, str):
        setting.string_param = value
    else:
        raise TypeError("no setting has such a value")


def _texts(value: object) -> list[str]:
    """A trace setting; null, which takes back what was set for a model, is no text at all."""
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


# From gRPC


def _segment(name: str) -> str:
    """A name as a segment of a path.

    Raises:
        ValueError: it would be something else there.
    """
    if _NOT_IN_SEGMENT.search(name) is not None:
        raise ValueError("the name cannot stand in a path")
    return name


def _http_repository(action: str) -> Callable[[Any], tuple[str, Json]]:
    def render(request: Any) -> tuple[str, Json]:
        where = f"/{_segment(request.repository_name)}" if request.repository_name else ""
        target = f"/v2/repository{where}/models/{_segment(request.model_name)}/{action}"
        parameters = {key: _parameter(each) for key, each in request.parameters.items()}
        return target, {"parameters": parameters} if parameters else {}

    return render


def _parameter(parameter: pb.ModelRepositoryParameter) -> object:
    value = _chosen(parameter)
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _http_region(area: str, action: str) -> Callable[[Any], tuple[str, Json]]:
    def render(request: Any) -> tuple[str, Json]:
        where = f"/region/{_segment(request.name)}" if request.name else ""
        body: Json = {}
        if action == "register":
            body = {"byte_size": request.byte_size}
            if area == "system":
                body |= {"key": request.key, "offset": request.offset}
            else:
                handle = b64encode(request.raw_handle).decode()
                body |= {"raw_handle": {"b64": handle}, "device_id": request.device_id}
        return f"/v2/{area}sharedmemory{where}/{action}", body

    return render


def _http_trace(request: pb.TraceSettingRequest) -> tuple[str, Json]:
    where = f"/models/{_segment(request.model_name)}" if request.model_name else ""
    body: Json = {}
    for key, setting in request.settings.items():
        values = list(setting.value)
        one = values[0] if len(values) == 1 and key != "trace_level" else values
        body[key] = one or None
    return f"/v2{where}/trace/setting", body


def _http_log(request: pb.LogSettingsRequest) -> tuple[str, Json]:
    return "/v2/logging", {key: _chosen(each) for key, each in request.settings.items()}


_TO_HTTP: Final[dict[str, tuple[type[Message], Callable[[Any], tuple[str, Json]]]]] = {
    "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, _http_repository("load")),
    "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, _http_repository("unload")),
    "SystemSharedMemoryRegister": (
        pb.SystemSharedMemoryRegisterRequest, _http_region("system", "register"),
    ),
    "SystemSharedMemoryUnregister": (
        pb.SystemSharedMemoryUnregisterRequest, _http_region("system", "unregister"),
    ),
    "CudaSharedMemoryRegister": (
        pb.CudaSharedMemoryRegisterRequest, _http_region("cuda", "register"),
    ),
    "CudaSharedMemoryUnregister": (
        pb.CudaSharedMemoryUnregisterRequest, _http_region("cuda", "unregister"),
    ),
    "TraceSetting": (pb.TraceSettingRequest, _http_trace),
    "LogSettings": (pb.LogSettingsRequest, _http_log),
}  # fmt: skip


def _chosen(value: Message) -> Any:
    name = value.WhichOneof("parameter_choice")
    return getattr(value, name) if name else None


_SUBJECTS: Final = {
    "RepositoryModelLoad": 2,
    "RepositoryModelUnload": 2,
    "SystemSharedMemoryRegister": 1,
    "SystemSharedMemoryUnregister": 1,
    "CudaSharedMemoryRegister": 1,
    "CudaSharedMemoryUnregister": 1,
    "TraceSetting": 2,
    "ModelStatistics": 1,
}
"""Fields of the messages that name what they are about."""


def _last_bytes(message: bytes, number: int) -> bytes:
    """The last of the fields of that number, which is the one that counts."""
    found = b""
    try:
        for each, kind, start, end in fields(message):
            if each == number and kind == BYTES:
                found = message[start:end]
    except ProtobufError:
        return b""
    return found
