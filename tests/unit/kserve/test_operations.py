"""Which call a request is: every route and method of the KServe surface."""

from __future__ import annotations

import pytest

from lb.domain.operation import ModelIn, OperationKind, Treatment
from lb.kserve import inference_pb2 as pb
from lb.kserve.operations import (
    GRPC_OPERATIONS,
    HEALTH_CHECK,
    HEALTH_WATCH,
    MODEL_STREAM_INFER,
    SERVER_LIVE,
    UNKNOWN,
    grpc_operation,
    http_route,
)

READ, CONTROL, INFERENCE = OperationKind.READ, OperationKind.CONTROL, OperationKind.INFERENCE


def test_every_method_of_the_service_is_known() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    paths = {
        f"/inference.GRPCInferenceService/{method.name}".encode() for method in service.methods
    }
    health = {b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"}
    assert set(GRPC_OPERATIONS) == paths | health


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/inference.GRPCInferenceService/Nothing",
        b"/inference.GRPCInferenceService/modelinfer",
        b"/inference.GRPCInferenceService/ModelInfer/",
        b"/other.Service/ModelInfer",
    ],
)
def test_other_grpc_paths_are_relayed_without_assumptions(path: bytes) -> None:
    """Unknown methods and services, wrong case, a path that goes on."""
    operation = grpc_operation(path)
    assert operation is UNKNOWN
    assert operation.treatment is Treatment.BALANCE
    assert not operation.may_run_twice


def test_health_and_liveness_are_answered_here() -> None:
    answered = [
        operation.name
        for operation in GRPC_OPERATIONS.values()
        if operation.treatment is Treatment.ANSWER
    ]
    assert sorted(answered) == ["HealthCheck", "HealthWatch", "ServerLive", "ServerReady"]
    assert grpc_operation(b"/grpc.health.v1.Health/Check") is HEALTH_CHECK
    assert grpc_operation(b"/grpc.health.v1.Health/Watch") is HEALTH_WATCH


def test_a_stream_of_inferences_must_not_run_twice() -> None:
    assert MODEL_STREAM_INFER.model_in is ModelIn.MESSAGE
    assert not MODEL_STREAM_INFER.may_run_twice


@pytest.mark.parametrize(
    ("method", "target", "name", "kind", "model"),
    [
        (b"GET", b"/v2", "ServerMetadata", READ, b""),
        (b"GET", b"/v2/health/live", "ServerLive", READ, b""),
        (b"GET", b"/v2/health/ready", "ServerReady", READ, b""),
        (b"GET", b"/v2/health/live?x=1", "ServerLive", READ, b""),
        (b"POST", b"/v2/models/m/infer", "ModelInfer", INFERENCE, b"m"),
        (b"POST", b"/v2/models/m/versions/3/infer", "ModelInfer", INFERENCE, b"m"),
        (b"POST", b"/v2/models/a%20b/infer?q=/x", "ModelInfer", INFERENCE, b"a%20b"),
        (b"POST", b"/v2/models/m/generate", "ModelGenerate", INFERENCE, b"m"),
        (b"POST", b"/v2/models/m/generate_stream", "ModelGenerateStream", INFERENCE, b"m"),
        (b"GET", b"/v2/models/m", "ModelMetadata", READ, b"m"),
        (b"GET", b"/v2/models/m/versions/1", "ModelMetadata", READ, b"m"),
        (b"GET", b"/v2/models/m/ready", "ModelReady", READ, b"m"),
        (b"GET", b"/v2/models/m/config", "ModelConfig", READ, b"m"),
        (b"GET", b"/v2/models/m/stats", "ModelStatistics", READ, b"m"),
        (b"GET", b"/v2/models/stats", "ModelStatistics", READ, b""),
        (b"GET", b"/v2/models/m/trace/setting", "TraceSetting", READ, b"m"),
        (b"POST", b"/v2/models/m/trace/setting", "TraceSetting", CONTROL, b"m"),
        (b"GET", b"/v2/trace/setting", "TraceSetting", READ, b""),
        (b"POST", b"/v2/trace/setting", "TraceSetting", CONTROL, b""),
        (b"GET", b"/v2/logging", "LogSettings", READ, b""),
        (b"POST", b"/v2/logging", "LogSettings", CONTROL, b""),
        (b"POST", b"/v2/repository/index", "RepositoryIndex", READ, b""),
        (b"POST", b"/v2/repository/r/index", "RepositoryIndex", READ, b""),
        (b"POST", b"/v2/repository/models/m/load", "RepositoryModelLoad", CONTROL, b"m"),
        (b"POST", b"/v2/repository/models/m/unload", "RepositoryModelUnload", CONTROL, b"m"),
        (b"GET", b"/v2/systemsharedmemory/status", "SystemSharedMemoryStatus", READ, b""),
        (b"GET", b"/v2/cudasharedmemory/region/r/status", "CudaSharedMemoryStatus", READ, b""),
        (
            b"POST",
            b"/v2/systemsharedmemory/region/r/register",
            "SystemSharedMemoryRegister",
            CONTROL,
            b"",
        ),
        (b"POST", b"/v2/cudasharedmemory/unregister", "CudaSharedMemoryUnregister", CONTROL, b""),
    ],
)
def test_http_routes(
    method: bytes, target: bytes, name: str, kind: OperationKind, model: bytes
) -> None:
    route = http_route(method, target)
    assert (route.operation.name, route.operation.kind, route.model) == (name, kind, model)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"GET", b""),
        (b"GET", b"/"),
        (b"GET", b"/v2/"),
        (b"POST", b"/v2"),
        (b"post", b"/v2/models/m/infer"),
        (b"GET", b"/v2/models/m/infer"),
        (b"POST", b"/v2/models/m/infer/"),
        (b"POST", b"/v2/models//infer"),
        (b"POST", b"/v2/models/m/versions/x/infer"),
        (b"POST", b"/v2/models/m/infer\n"),
        (b"GET", b"/v2/repository/index"),
        (b"GET", b"/v2%2Fhealth/live"),
        (b"GET", b"*"),
    ],
)
def test_other_http_requests_are_relayed_without_assumptions(method: bytes, target: bytes) -> None:
    """Wrong methods and case, slashes too many, a version that is no number, encoded slashes."""
    operation = http_route(method, target).operation
    assert operation is UNKNOWN
    assert operation.treatment is Treatment.BALANCE


def test_liveness_is_one_operation_on_both_protocols() -> None:
    assert http_route(b"GET", b"/v2/health/live").operation is SERVER_LIVE
