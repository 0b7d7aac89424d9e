"""Answers for all servers are those of one: status line, fields, error texts, order of members."""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import call_on_the_wire
from tests.triton.raw_http import ask_once, message
from tests.triton.server import RealTriton
from tests.triton.target import Target

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
NO_HANDLE = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64}
NO_KEY = {"key": "/lbflow-none", "offset": 0, "byte_size": 64}


@pytest.fixture
def both(
    controlling_balancer: RunningBalancer, controlled_tritons: tuple[RealTriton, ...]
) -> tuple[Target, Target]:
    """One Triton, and the balancer before three like it."""
    return controlled_tritons[3].target, controlling_balancer.target


def post(path: str, body: object = b"", *fields: str) -> bytes:
    return message("POST", path, body if isinstance(body, bytes) else encoded(body), *fields)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def load(model: str, **parameters: object) -> bytes:
    return post(f"/v2/repository/models/{model}/load", {"parameters": parameters})


def without_measures(body: bytes) -> bytes:
    """Statistics without what differs from server to server: counts, times, moments."""
    return re.sub(rb'("(?:count|ns|last_inference|\w+_count)":)\d+', rb"\g<1>0", body)


HTTP_REQUESTS = {
    "server metadata": message("GET", "/v2"),
    "index": post("/v2/repository/index"),
    "index without a body": message("POST", "/v2/repository/index"),
    "index of ready models": post("/v2/repository/index", {"ready": True}),
    "index, bad value": post("/v2/repository/index", {"ready": "x"}),
    "index, bad JSON": post("/v2/repository/index", b"{"),
    "index of a repository": post("/v2/repository/models/index"),
    "GET of index": message("GET", "/v2/repository/index"),
    "compressed index": post(
        "/v2/repository/index", gzip.compress(b"{}"), "Content-Encoding: gzip"
    ),
    "statistics": message("GET", "/v2/models/stats"),
    "statistics of a model": message("GET", "/v2/models/simple/stats"),
    "statistics of a version": message("GET", "/v2/models/simple/versions/1/stats"),
    "statistics of an unknown model": message("GET", "/v2/models/nosuch/stats"),
    "statistics of an unknown version": message("GET", "/v2/models/simple/versions/9/stats"),
    "statistics of a model that is not loaded": message("GET", "/v2/models/simple_int8/stats"),
    "POST of statistics": post("/v2/models/stats"),
    "HEAD of statistics": message("HEAD", "/v2/models/stats"),
    "load of an unknown model": load("nosuch"),
    "load with bad JSON": post("/v2/repository/models/nosuch/load", b"{"),
    "load with a bad configuration": load("simple", config="{"),
    "load with an unknown parameter": load("nosuch", unknown=1),
    "load in a repository": post("/v2/repository/own/models/nosuch/load", b"{}"),
    "GET of load": message("GET", "/v2/repository/models/nosuch/load"),
    "load in chunks": (
        b"POST /v2/repository/models/nosuch/load HTTP/1.1\r\nHost: triton.test\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "unload of an unknown model": post("/v2/repository/models/nosuch/unload", b"{}"),
    "metadata of a model that is not loaded": message("GET", "/v2/models/simple_int8"),
    "readiness of a model that is not loaded": message("GET", "/v2/models/simple_int8/ready"),
    "inference of a model that is not loaded": post("/v2/models/simple_int8/infer", {"inputs": []}),
    "system regions": message("GET", f"{SYSTEM}/status"),
    "an unknown system region": message("GET", f"{SYSTEM}/region/none/status"),
    "system region, no key": post(f"{SYSTEM}/region/r/register", NO_KEY),
    "system region, no fields": post(f"{SYSTEM}/region/r/register", b"{}"),
    "system region, no name": post(f"{SYSTEM}/register", NO_KEY),
    "unknown system region unregistered": post(f"{SYSTEM}/region/none/unregister"),
    "system regions unregistered": post(f"{SYSTEM}/unregister"),
    "regions of GPUs": message("GET", f"{CUDA}/status"),
    "region of a GPU, bad handle": post(f"{CUDA}/region/r/register", NO_HANDLE),
    "unknown region of a GPU unregistered": post(f"{CUDA}/region/none/unregister"),
    "trace settings": message("GET", "/v2/trace/setting"),
    "trace settings of a model": message("GET", "/v2/models/simple/trace/setting"),
    "trace settings of an unknown model": message("GET", "/v2/models/nosuch/trace/setting"),
    "trace settings of a version": message("GET", "/v2/models/simple/versions/1/trace/setting"),
    "bad trace setting": post("/v2/trace/setting", {"trace_rate": "x"}),
    "unknown trace setting": post("/v2/trace/setting", {"nosuch": "1"}),
    "trace file": post("/v2/trace/setting", {"trace_file": "/tmp/trace"}),
    "no trace setting": post("/v2/trace/setting", b"{}"),
    "log settings": message("GET", "/v2/logging"),
    "bad log setting": post("/v2/logging", {"log_verbose_level": "x"}),
    "unknown log setting": post("/v2/logging", {"nosuch": 1}),
    "log file": post("/v2/logging", {"log_file": "x"}),
}


@pytest.mark.parametrize("request_", HTTP_REQUESTS.values(), ids=HTTP_REQUESTS.keys())
def test_http_answer_is_identical(both: tuple[Target, Target], request_: bytes) -> None:
    expected, answer = (ask_once(target.http, request_).end_to_end for target in both)
    if expected.body.startswith(b'{"model_stats"'):
        assert without_measures(answer.body) == without_measures(expected.body)
        assert answer.status_line == expected.status_line
        assert [name for name, _ in answer.fields] == [name for name, _ in expected.fields]
    else:
        assert answer == expected


def settings(request: Any, **given: Any) -> Any:
    for name, value in given.items():
        entry = request.settings[name]
        if isinstance(value, list):
            entry.value.extend(value)
        else:
            entry.string_param = value
    return request


GRPC_REQUESTS: dict[str, tuple[str, Message, type[Message] | None]] = {
    "index": ("RepositoryIndex", pb.RepositoryIndexRequest(), None),
    "index of ready models": ("RepositoryIndex", pb.RepositoryIndexRequest(ready=True), None),
    "load of an unknown model": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="nosuch"),
        None,
    ),
    "load in a repository": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(repository_name="own", model_name="nosuch"),
        None,
    ),
    "load with a bad parameter": (
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="nosuch",
            parameters={"config": pb.ModelRepositoryParameter(int64_param=1)},
        ),
        None,
    ),
    "unload of an unknown model": (
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="nosuch"),
        None,
    ),
    "readiness of a model that is not loaded": (
        "ModelReady",
        pb.ModelReadyRequest(name="simple_int8"),
        None,
    ),
    "statistics of an unknown model": (
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="nosuch"),
        None,
    ),
    "system regions": ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(), None),
    "an unknown system region": (
        "SystemSharedMemoryStatus",
        pb.SystemSharedMemoryStatusRequest(name="none"),
        None,
    ),
    "system region, no key": (
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="r", key="/lbflow-none", byte_size=64),
        None,
    ),
    "unknown system region unregistered": (
        "SystemSharedMemoryUnregister",
        pb.SystemSharedMemoryUnregisterRequest(name="none"),
        None,
    ),
    "regions of GPUs": ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(), None),
    "region of a GPU": (
        "CudaSharedMemoryRegister",
        pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=bytes(64), byte_size=64),
        None,
    ),
    "trace settings": ("TraceSetting", pb.TraceSettingRequest(), pb.TraceSettingResponse),
    "trace settings of an unknown model": (
        "TraceSetting",
        pb.TraceSettingRequest(model_name="nosuch"),
        None,
    ),
    "bad trace setting": (
        "TraceSetting",
        settings(pb.TraceSettingRequest(), trace_rate=["x"]),
        None,
    ),
    "trace file": ("TraceSetting", settings(pb.TraceSettingRequest(), trace_file=["/tmp/x"]), None),
    "log settings": ("LogSettings", pb.LogSettingsRequest(), pb.LogSettingsResponse),
    "bad log setting": (
        "LogSettings",
        settings(pb.LogSettingsRequest(), log_verbose_level="x"),
        None,
    ),
    "log file": ("LogSettings", settings(pb.LogSettingsRequest(), log_file="x"), None),
}
"""Method, request, and the type of answers whose maps Triton writes in a random order."""


@pytest.mark.parametrize(
    ("method", "request_", "unordered"), GRPC_REQUESTS.values(), ids=GRPC_REQUESTS.keys()
)
def test_grpc_answer_is_identical_on_the_wire(
    both: tuple[Target, Target],
    method: str,
    request_: Message,
    unordered: type[Message] | None,
) -> None:
    expected, answer = (
        call_on_the_wire(target.grpc, method, request_.SerializeToString()) for target in both
    )
    assert answer.heads == expected.heads
    if unordered is None:
        assert answer.data == expected.data
    else:
        read: Callable[[bytes], Message] = unordered.FromString
        prefix = struct.calcsize("!BI")
        assert read(answer.data[prefix:]) == read(expected.data[prefix:])
