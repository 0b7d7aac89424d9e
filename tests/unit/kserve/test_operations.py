"""Which call a request is: every route and method of the KServe surface."""

from __future__ import annotations

import pytest

from lb.domain.operation import ModelIn, OperationKind, Treatment
from lb.kserve import inference_pb2 as pb
from lb.kserve import tfserving
from lb.kserve.gate import RESERVED
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
    of_mlserver = {
        f"/inference.model_repository.ModelRepositoryService/{name}".encode()
        for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
    }
    reflection = {
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo".encode()
        for version in ("v1", "v1alpha")
    }
    others = health | of_mlserver | reflection | set(tfserving.GRPC_OPERATIONS)
    assert set(GRPC_OPERATIONS) == paths | others


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


def test_the_model_of_tf_serving_and_mlserver_is_known() -> None:
    predict = http_route(b"POST", b"/v1/models/half%20plus/versions/3:predict")
    stream = http_route(b"POST", b"/v2/models/m/infer_stream")

    assert (predict.operation.name, predict.model) == ("Predict", b"half plus")
    assert (stream.operation.name, stream.model) == ("ModelInferStream", b"m")


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
        (b"POST", b"/v2/repository/any/models/m/load?x=1", "RepositoryModelLoad", CONTROL, b"m"),
        (b"POST", b"/v2/repository/%2f/models/m/unload", "RepositoryModelUnload", CONTROL, b"m"),
        (b"POST", b"/v2/repository/models/models/m/load", "RepositoryModelLoad", CONTROL, b"m"),
        (b"POST", b"/v2/logging?a=/v2", "LogSettings", CONTROL, b""),
        (b"OPTIONS", b"*", "ServerOptions", READ, b""),
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
        (b"POST", b"/v2/%72epository/index"),
        (b"POST", b"//v2/repository/models/m/load"),
        (b"POST", b"/V2/repository/models/m/load"),
        (b"POST", b"/v2/repository/models/m/load;x"),
        (b"POST", b"/v2/repository/models/m/load/"),
        (b"POST", b"/v2/repository/a/b/models/m/load"),
    ],
)
def test_other_http_requests_are_relayed_without_assumptions(method: bytes, target: bytes) -> None:
    """Wrong methods and case, slashes too many, a version that is no number, encoded slashes."""
    operation = http_route(method, target).operation
    assert operation is UNKNOWN
    assert operation.treatment is Treatment.BALANCE


def test_control_operations_are_these_and_no_others() -> None:
    """TraceSetting and LogSettings read as well as write, by the message."""
    control = {
        operation.name
        for operation in GRPC_OPERATIONS.values()
        if operation.kind is OperationKind.CONTROL
    }
    assert control == {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
        "HandleReloadConfigRequest",
    }


_TO_LOAD = b"/v2/repository/models/%b/load"
_TO_INFER = b"/v2/models/%b/infer"


@pytest.mark.parametrize("route", [_TO_LOAD, _TO_INFER])
@pytest.mark.parametrize(
    ("model", "is_fine"),
    [
        (b"m" * 255, True),
        (b"a%20b", True),
        (b"%E2%80%AE", True),
        (b"m" * 256, False),
        (b"a%2fb", False),
        (b"a%2Fb", False),
        (b"a%5cb", False),
        (b"a\\b", False),
    ],
)
def test_names_that_no_model_has(route: bytes, model: bytes, is_fine: bool) -> None:
    found = http_route(b"POST", route % model)
    assert found.operation is not UNKNOWN
    assert bool(found.fault) is not is_fine


@pytest.mark.parametrize(
    ("version", "is_fine"),
    [
        (b"1", True),
        (b"01", True),
        (b"0" * 30 + b"1", True),
        (b"0", True),
        (b"9223372036854775807", True),
        (b"9223372036854775808", False),
        (b"9" * 5000, False),
    ],
)
def test_versions_that_no_model_has(version: bytes, is_fine: bool) -> None:
    found = http_route(b"GET", b"/v2/models/m/versions/%b/ready" % version)
    assert found.operation.name == "ModelReady"
    assert bool(found.fault) is not is_fine


def test_reserved_region_is_a_fault_of_a_registration_only() -> None:
    region = b"/v2/systemsharedmemory/region/triton_python_backend_shm_region_1/"
    assert http_route(b"POST", region + b"register?x=1").fault
    assert not http_route(b"POST", region + b"unregister").fault
    assert not http_route(b"GET", region + b"status").fault


def test_liveness_is_one_operation_on_both_protocols() -> None:
    assert http_route(b"GET", b"/v2/health/live").operation is SERVER_LIVE


@pytest.mark.parametrize("method", [b"HEAD", b"PUT", b"DELETE", b"GET", b"POST"])
@pytest.mark.parametrize("action", [b"status", b"register", b"unregister"])
def test_other_methods_on_shared_memory_are_the_backends_to_refuse(
    method: bytes, action: bytes
) -> None:
    """A Triton says 405, with headers that only it knows how to write for HEAD."""
    right = b"GET" if action == b"status" else b"POST"
    route = http_route(method, b"/v2/systemsharedmemory/region/r/" + action)
    assert route.is_asked is (method == right)
    assert (route.operation is UNKNOWN) is (method != right)
    reserved = http_route(method, b"/v2/systemsharedmemory/region/" + RESERVED + b"1/register")
    assert reserved.fault
