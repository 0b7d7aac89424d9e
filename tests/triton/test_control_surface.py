"""Everything but inference: health, metadata, configuration, index, statistics, settings."""

from __future__ import annotations

import grpc
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

from tests.triton.raw_grpc import call_unary
from tests.triton.server import MODELS
from tests.triton.target import WAIT_S, Target

MODEL_NAMES = {folder.name for folder in MODELS.iterdir()}


# HTTP


def test_http_server_is_live_and_ready(http_client: httpclient.InferenceServerClient) -> None:
    assert http_client.is_server_live()
    assert http_client.is_server_ready()


def test_http_model_ready_tells_known_models_from_unknown_ones(
    http_client: httpclient.InferenceServerClient,
) -> None:
    assert http_client.is_model_ready("simple")
    assert http_client.is_model_ready("simple", "1")
    assert not http_client.is_model_ready("nosuch")
    assert not http_client.is_model_ready("simple", "9")


def test_http_server_metadata_names_triton(http_client: httpclient.InferenceServerClient) -> None:
    metadata = http_client.get_server_metadata()
    assert metadata["name"] == "triton"
    assert "binary_tensor_data" in metadata["extensions"]


def test_http_model_metadata_and_config_agree(
    http_client: httpclient.InferenceServerClient,
) -> None:
    metadata = http_client.get_model_metadata("simple")
    config = http_client.get_model_config("simple")
    assert metadata["versions"] == ["1"]
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert [tensor["name"] for tensor in config["input"]] == ["INPUT0", "INPUT1"]
    assert config["max_batch_size"] == 8


def test_http_repository_index_lists_every_model(
    http_client: httpclient.InferenceServerClient,
) -> None:
    index = http_client.get_model_repository_index()
    assert {entry["name"] for entry in index if entry["state"] == "READY"} == MODEL_NAMES


def test_http_statistics_are_reachable_for_all_models_and_for_one(
    http_client: httpclient.InferenceServerClient,
) -> None:
    every = http_client.get_inference_statistics()["model_stats"]
    one = http_client.get_inference_statistics("simple")["model_stats"]
    assert {entry["name"] for entry in every} == MODEL_NAMES
    assert [entry["name"] for entry in one] == ["simple"]


def test_http_trace_and_log_settings_are_reachable(
    http_client: httpclient.InferenceServerClient,
) -> None:
    assert http_client.get_trace_settings()["trace_level"] == ["OFF"]
    assert http_client.get_log_settings()["log_info"] is True


async def test_http_asyncio_client_reads_the_control_surface(target: Target) -> None:
    async with httpaio.InferenceServerClient(target.http, conn_timeout=WAIT_S) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_server_metadata())["name"] == "triton"
        assert (await client.get_model_config("simple"))["name"] == "simple"


# gRPC


def test_grpc_server_is_live_and_ready(grpc_client: grpcclient.InferenceServerClient) -> None:
    assert grpc_client.is_server_live()
    assert grpc_client.is_server_ready()


def test_grpc_model_ready_tells_known_models_from_unknown_ones(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    assert grpc_client.is_model_ready("simple")
    assert grpc_client.is_model_ready("simple", "1")
    assert not grpc_client.is_model_ready("nosuch")


def test_grpc_server_metadata_names_triton(grpc_client: grpcclient.InferenceServerClient) -> None:
    metadata = grpc_client.get_server_metadata()
    assert metadata.name == "triton"
    assert "binary_tensor_data" in metadata.extensions


def test_grpc_model_metadata_and_config_agree(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    metadata = grpc_client.get_model_metadata("repeat_int32")
    config = grpc_client.get_model_config("repeat_int32").config
    assert [tensor.name for tensor in metadata.inputs] == ["IN", "DELAY"]
    assert [tensor.name for tensor in config.input] == ["IN", "DELAY"]
    assert config.model_transaction_policy.decoupled


def test_grpc_repository_index_lists_every_model(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    index = grpc_client.get_model_repository_index().models
    assert {entry.name for entry in index if entry.state == "READY"} == MODEL_NAMES


def test_grpc_statistics_are_reachable_for_all_models_and_for_one(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    every = grpc_client.get_inference_statistics().model_stats
    one = grpc_client.get_inference_statistics("simple").model_stats
    assert {entry.name for entry in every} == MODEL_NAMES
    assert [entry.name for entry in one] == ["simple"]


def test_grpc_trace_and_log_settings_are_reachable(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    assert list(grpc_client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert grpc_client.get_log_settings().settings["log_info"].bool_param is True


async def test_grpc_asyncio_client_reads_the_control_surface(target: Target) -> None:
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_server_metadata()).name == "triton"
        assert (await client.get_model_config("simple")).config.name == "simple"


def test_standard_grpc_health_check_says_serving(target: Target) -> None:
    outcome = call_unary(target.grpc, "/grpc.health.v1.Health/Check", b"")
    assert outcome.code is grpc.StatusCode.OK
    assert outcome.messages == (b"\x08\x01",)


def test_clients_raise_the_error_that_triton_gave(
    http_client: httpclient.InferenceServerClient, grpc_client: grpcclient.InferenceServerClient
) -> None:
    text = "Request for unknown model: 'nosuch' is not found"
    with pytest.raises(InferenceServerException, match=text):
        http_client.get_model_metadata("nosuch")
    with pytest.raises(InferenceServerException, match=text) as raised:
        grpc_client.get_model_metadata("nosuch")
    assert raised.value.status() == "StatusCode.NOT_FOUND"
