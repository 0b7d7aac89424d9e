"""TensorFlow Serving's routes, methods and model states."""

from __future__ import annotations

import pytest

from lb.domain.backend import BackendKind
from lb.domain.operation import ModelIn, OperationKind, Treatment
from lb.kserve.tfserving import (
    GRPC_OPERATIONS,
    RELOAD,
    http_operation,
    is_available,
    shows_available,
    status_path,
    status_request,
)

AVAILABLE = b"\x0a\x04\x08\x01\x10\x1e"
LOADING = b"\x0a\x04\x08\x02\x10\x14"


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        (b"POST", b"/v1/models/m:predict", "Predict"),
        (b"POST", b"/v1/models/m/versions/12:classify", "Classify"),
        (b"POST", b"/v1/models/m/labels/stable:regress", "Regress"),
        (b"POST", b"/V1/Models/m:PREDICT", "Predict"),
        (b"GET", b"/v1/models/m", "GetModelStatus"),
        (b"GET", b"/v1/models/m/versions/1", "GetModelStatus"),
        (b"GET", b"/v1/models/m/labels/canary/metadata", "GetModelMetadata"),
    ],
)
def test_rest_routes_name_operation_and_model(method: bytes, path: bytes, name: str) -> None:
    found = http_operation(method, path)

    assert found is not None
    assert (found[0].name, found[1]) == (name, b"m")


def test_names_in_paths_are_decoded() -> None:
    found = http_operation(b"GET", b"/v1/models/half%20plus%2ftwo")

    assert found is not None
    assert found[1] == b"half plus/two"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"GET", b"/v1/models/m:predict"),
        (b"POST", b"/v1/models/m"),
        (b"GET", b"/v1/models"),
        (b"POST", b"/v1/models/m/load"),
        (b"POST", b"/v1/models/m:predict/"),
        (b"POST", b"/v1/chat/completions"),
    ],
)
def test_other_requests_are_not_tf_servings(method: bytes, path: bytes) -> None:
    assert http_operation(method, path) is None


def test_a_change_of_the_configuration_concerns_all_tf_servings() -> None:
    assert RELOAD.kind is OperationKind.CONTROL
    assert (RELOAD.treatment, RELOAD.asks) == (Treatment.BROADCAST, BackendKind.TFSERVING)


def test_calls_of_models_say_where_the_name_stands() -> None:
    places = {operation.name: operation.model_in for operation in GRPC_OPERATIONS.values()}

    assert places.pop("HandleReloadConfigRequest") is ModelIn.NOWHERE
    assert places.pop("MultiInference") is ModelIn.TASK
    assert set(places.values()) == {ModelIn.SPEC}


def test_the_state_is_asked_for_by_name() -> None:
    assert status_path("a b") == "/v1/models/a%20b"
    assert status_request(b"m") == b"\x0a\x03\x0a\x01m"


@pytest.mark.parametrize(
    ("message", "is_so"),
    [
        (AVAILABLE, True),
        (LOADING + AVAILABLE, True),
        (LOADING, False),
        (b"", False),
        (AVAILABLE[:-1], False),
        (b"\x0a\x02\x08\x1e", False),
    ],
)
def test_one_available_version_is_enough(message: bytes, is_so: bool) -> None:
    assert is_available(message) is is_so


def test_json_shows_an_available_version() -> None:
    assert shows_available(b'{"model_version_status":[{"version":"1",\n "state": "AVAILABLE",')
    assert not shows_available(b'{"model_version_status":[{"state": "UNAVAILABLE"}]}')
