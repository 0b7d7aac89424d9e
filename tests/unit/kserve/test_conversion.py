"""Control calls in the other protocol."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from google.protobuf.message import Message

from lb.kserve import conversion
from lb.kserve import inference_pb2 as pb
from lb.kserve.conversion import (
    MAX_BYTES,
    answer_to_http,
    answer_to_message,
    subject,
    to_http,
    to_message,
)

Log = pb.LogSettingsRequest.SettingValue
Trace = pb.TraceSettingRequest.SettingValue
Parameter = pb.ModelRepositoryParameter

PAIRS: list[tuple[str, str, dict[str, Any], Message]] = [
    (
        "RepositoryModelLoad",
        "/v2/repository/models/m/load",
        {"parameters": {"config": "{}", "file:1/model.py": b64encode(b"\0\xff").decode()}},
        pb.RepositoryModelLoadRequest(
            model_name="m",
            parameters={
                "config": Parameter(string_param="{}"),
                "file:1/model.py": Parameter(bytes_param=b"\0\xff"),
            },
        ),
    ),
    (
        "RepositoryModelLoad",
        "/v2/repository/models/m/load",
        {},
        pb.RepositoryModelLoadRequest(model_name="m"),
    ),
    (
        "RepositoryModelUnload",
        "/v2/repository/models/m/unload",
        {"parameters": {"unload_dependents": True, "n": 3}},
        pb.RepositoryModelUnloadRequest(
            model_name="m",
            parameters={
                "unload_dependents": Parameter(bool_param=True),
                "n": Parameter(int64_param=3),
            },
        ),
    ),
    (
        "SystemSharedMemoryRegister",
        "/v2/systemsharedmemory/region/r/register",
        {"key": "/k", "offset": 4, "byte_size": 10},
        pb.SystemSharedMemoryRegisterRequest(name="r", key="/k", offset=4, byte_size=10),
    ),
    (
        "CudaSharedMemoryRegister",
        "/v2/cudasharedmemory/region/r/register",
        {"raw_handle": {"b64": "AAE="}, "device_id": 1, "byte_size": 10},
        pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"\0\1", device_id=1, byte_size=10),
    ),
    (
        "SystemSharedMemoryUnregister",
        "/v2/systemsharedmemory/region/r/unregister",
        {},
        pb.SystemSharedMemoryUnregisterRequest(name="r"),
    ),
    (
        "SystemSharedMemoryUnregister",
        "/v2/systemsharedmemory/unregister",
        {},
        pb.SystemSharedMemoryUnregisterRequest(),
    ),
    (
        "CudaSharedMemoryUnregister",
        "/v2/cudasharedmemory/region/r/unregister",
        {},
        pb.CudaSharedMemoryUnregisterRequest(name="r"),
    ),
    (
        "TraceSetting",
        "/v2/models/m/trace/setting",
        {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "5", "trace_count": None},
        pb.TraceSettingRequest(
            model_name="m",
            settings={
                "trace_level": Trace(value=["TIMESTAMPS", "TENSORS"]),
                "trace_rate": Trace(value=["5"]),
                "trace_count": Trace(),
            },
        ),
    ),
    (
        "TraceSetting",
        "/v2/trace/setting",
        {"trace_level": ["OFF"]},
        pb.TraceSettingRequest(settings={"trace_level": Trace(value=["OFF"])}),
    ),
    (
        "LogSettings",
        "/v2/logging",
        {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"},
        pb.LogSettingsRequest(
            settings={
                "log_info": Log(bool_param=False),
                "log_verbose_level": Log(uint32_param=2),
                "log_format": Log(string_param="ISO8601"),
            }
        ),
    ),
]


@pytest.mark.parametrize(("operation", "target", "body", "message"), PAIRS)
def test_requests_say_the_same_in_both_protocols(
    operation: str, target: str, body: dict[str, Any], message: Message
) -> None:
    given = json.dumps(body).encode() if body else b""
    assert type(message).FromString(to_message(operation, target.encode(), given)) == message
    found, text = to_http(operation, message.SerializeToString())
    assert found.decode() == target
    assert json.loads(text) == body


@pytest.mark.parametrize(("operation", "target", "body", "message"), PAIRS)
def test_both_protocols_are_about_the_same(
    operation: str, target: str, body: dict[str, Any], message: Message
) -> None:
    named = getattr(message, "model_name", "") or getattr(message, "name", "")
    assert subject(operation, target.encode() + b"?q", None) == named.encode()
    assert subject(operation, b"/x", message.SerializeToString()) == named.encode()


def test_calls_that_are_about_nothing_in_particular_say_so() -> None:
    assert subject("Unknown", b"/v2/x", None) == b""
    assert subject("Unknown", b"/x", b"\x0a\x01m") == b""
    assert subject("RepositoryModelLoad", b"/x", b"\x0a\xff") == b""


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("RepositoryModelLoad", b'{"parameters":{"file:x":3}}'),
        ("RepositoryModelLoad", b'{"parameters":{"config":{}}}'),
        ("RepositoryModelLoad", b'{"parameters":3}'),
        ("RepositoryModelLoad", b"no JSON"),
        ("SystemSharedMemoryRegister", b"{}"),
        ("CudaSharedMemoryRegister", b'{"raw_handle":3}'),
        ("LogSettings", b'{"log_info":null}'),
        ("Unknown", b"{}"),
        ("RepositoryModelLoad", b" " * (MAX_BYTES + 1)),
    ],
)
def test_what_cannot_be_said_as_a_message_is_refused(operation: str, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"other protocol|no JSON"):
        to_message(operation, b"/v2/repository/models/m/load", body)


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 50_000 + b"[]]",
        b"[" + b"1," * 100_000 + b"1]",
        b'"' + rb"\u0041" * 100_001 + b'"',
        b'"","y":' * 20_001 + b'""',
    ],
    ids=["lists", "numbers", "escapes", "keys"],
)
@pytest.mark.parametrize("operation", ["RepositoryModelLoad", "TraceSetting"])
def test_what_says_very_much_is_not_read(
    operation: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(conversion, "read_object", read.append)
    with pytest.raises(ValueError, match="says too much"):
        to_message(operation, b"/v2/repository/models/m/load", b'{"x":' + value + b"}")
    assert read == []


def test_long_files_and_configurations_of_many_tensors_are_read() -> None:
    tensors = [{"name": f"IN_{n}", "data_type": "TYPE_FP32", "dims": [-1, 3]} for n in range(2000)]
    config = json.dumps({"name": "m", "input": tensors})
    data = bytes(range(256)) * 20_000
    body = {"parameters": {"config": config, "file:1/model.onnx": b64encode(data).decode()}}
    target = b"/v2/repository/models/m/load"
    message = to_message("RepositoryModelLoad", target, json.dumps(body).encode())
    found = pb.RepositoryModelLoadRequest.FromString(message).parameters
    assert found["config"].string_param == config
    assert found["file:1/model.onnx"].bytes_param == data


def test_what_cannot_be_said_in_http_is_refused() -> None:
    for name in ("a b", "a?b", "a#b", "a\nb", "a/versions/1", "../../a", "a%2fb"):
        message = pb.RepositoryModelLoadRequest(model_name=name).SerializeToString()
        with pytest.raises(ValueError, match="cannot stand in a path"):
            to_http("RepositoryModelLoad", message)
    with pytest.raises(ValueError, match="other protocol"):
        to_http("Unknown", b"")
    with pytest.raises(ValueError, match="too long"):
        to_http("RepositoryModelLoad", bytes(MAX_BYTES + 1))


TRACE = b'{"trace_level":["OFF"],"trace_rate":"7"}'
LOG = b'{"log_info":true,"log_verbose_level":0,"log_format":"default"}'


@pytest.mark.parametrize(("operation", "body"), [("TraceSetting", TRACE), ("LogSettings", LOG)])
def test_answers_with_settings_say_the_same_in_both_protocols(operation: str, body: bytes) -> None:
    message = answer_to_message(operation, body)
    assert json.loads(answer_to_http(operation, message)) == json.loads(body)


def test_other_answers_are_empty_in_both_protocols() -> None:
    assert answer_to_message("RepositoryModelLoad", b"{}") == b""
    assert answer_to_http("RepositoryModelLoad", b"") == b""


def test_settings_that_no_message_can_hold_are_no_answer() -> None:
    with pytest.raises(ValueError, match="other protocol"):
        answer_to_message("LogSettings", b'{"log_info":{}}')
