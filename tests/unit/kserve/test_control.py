"""Control is recognised however it is spelled, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from lb.kserve.control import grpc_control, http_control


@pytest.mark.parametrize(
    "target",
    [
        b"/v2/repository/models/m/load",
        b"/v2/repository/foo/models/m/unload",
        b"/v2/repository/models/m/load?x=1",
        b"/v2/repository/models/m/load/",
        b"//v2/repository//models/m/load",
        b"/V2/Repository/models/m/LOAD",
        b"/v2/%72epository/models/m/load",
        b"/v2/%2572epository/models/m/load",
        b"/v2%2frepository/models/m/load",
        b"/v2/repository/models/m/load%3Fx",
        b"/v2/repository/models/m/load%23x",
        b"/v2/repository;a=b/models/m/load",
        b"/v2/repository/models/m/load;a",
        b"/v2\\repository\\models\\m\\load",
        b"/v2/systemsharedmemory/region/r/register",
        b"/v2/cudasharedmemory/unregister",
        b"/v2/logging",
        b"/v2/trace/setting",
        b"/v2/models/m/trace/setting",
        b"/v2/models/m/versions/1/trace/setting",
        b"/v2/models/..;/repository/models/m/load",
        b"/v2/x/%252e%252e/repository/./models/m/load",
        b"/v1/models/m/load",
        b"/v1/models/%6d/unload",
        b"/v1/Config/reload/",
    ],
)
@pytest.mark.parametrize("method", [b"POST", b"PUT", b"post", b"ANY"])
def test_control_by_any_spelling_and_method(method: bytes, target: bytes) -> None:
    assert http_control(method, target, is_overridden=False) is not None


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"POST", b"/v2/models/m/infer"),
        (b"POST", b"/v2/models/load/infer"),
        (b"POST", b"/v2/models/a%20b/infer"),
        (b"POST", b"/v2/repository/index"),
        (b"POST", b"/v2/repository/foo/index"),
        (b"GET", b"/v2/models/m/config"),
        (b"GET", b"/v2/systemsharedmemory/status"),
        (b"GET", b"/v2/logging"),
        (b"GET", b"/V2/logging/"),
        (b"HEAD", b"/v2/trace/setting"),
        (b"GET", b"/v2/models/m/trace/setting"),
        (b"OPTIONS", b"*"),
        (b"POST", b"/v1/models/m:predict"),
        (b"POST", b"/v1/models/load:predict"),
        (b"POST", b"/v2/repository/models/m/load/..;/x"),
        (b"POST", b"/.."),
        (b"GET", b"/v1/models/load"),
        (b"GET", b"/v1/config"),
        (b"GET", b"/"),
    ],
)
def test_all_else_is_not_control(method: bytes, target: bytes) -> None:
    assert http_control(method, target, is_overridden=False) is None


def test_loading_by_get_is_control_since_nothing_is_to_be_read_there() -> None:
    assert http_control(b"GET", b"/v2/repository/models/m/load", is_overridden=False) is not None


def test_a_method_in_a_header_makes_reading_doubtful() -> None:
    assert http_control(b"GET", b"/v2/logging", is_overridden=True) is not None
    assert http_control(b"GET", b"/v2/models/m/config", is_overridden=True) is None


_SERVICE = b"/inference.GRPCInferenceService/"


@pytest.mark.parametrize(
    "path",
    [
        _SERVICE + b"RepositoryModelLoad",
        _SERVICE + b"TraceSetting",
        _SERVICE + b"LogSettings",
        _SERVICE + b"RepositoryModelLoad?x=1",
        _SERVICE + b"RepositoryModelLoad/",
        _SERVICE + b"repositorymodelload",
        _SERVICE + b"/RepositoryModelLoad",
        _SERVICE + b"Repository%4dodelLoad",
        b"/" + _SERVICE + b"RepositoryModelUnload",
        b"/inference.model_repository.ModelRepositoryService/RepositoryModelLoad",
        b"/inference.model_repository.modelrepositoryservice/RepositoryModelUnload",
    ],
)
def test_grpc_control_by_any_spelling(path: bytes) -> None:
    assert grpc_control(path) is not None


@pytest.mark.parametrize(
    "path", [_SERVICE + b"ModelInfer", _SERVICE + b"RepositoryIndex", b"/x.Y/Load", b"/", b"*"]
)
def test_other_grpc_methods_are_not_control(path: bytes) -> None:
    assert grpc_control(path) is None
