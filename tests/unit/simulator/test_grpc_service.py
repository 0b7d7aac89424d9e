"""The gRPC port of a simulated Triton, over a real channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from lb.kserve.messages import Method, Request, Response
from lb.simulator.grpc_service import make_grpc_server
from lb.simulator.server import SimulatedTriton
from tests.unit.simulator.samples import repeat, request_for


class Client:
    """Calls one simulated Triton."""

    def __init__(self, channel: grpc.aio.Channel, triton: SimulatedTriton) -> None:
        self.channel = channel
        self.triton = triton

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        call = self.channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return await call(request)

    def stream(self) -> grpc.aio.StreamStreamCall:
        method = messages.MODEL_STREAM_INFER
        return self.channel.stream_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    triton = SimulatedTriton(speed=1e6)
    server = make_grpc_server(triton)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Client(channel, triton)
    await server.stop(None)


async def refusal(
    client: Client, method: Method[Request, Response], request: Request
) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.call(method, request)
    return caught.value.code(), caught.value.details() or ""


async def test_readiness_of_an_unknown_model_is_false_and_no_error(client: Client) -> None:
    assert (await client.call(messages.MODEL_READY, pb.ModelReadyRequest(name="simple"))).ready
    assert not (await client.call(messages.MODEL_READY, pb.ModelReadyRequest(name="x"))).ready


async def test_settings_and_regions_are_those_of_a_triton_without_options(client: Client) -> None:
    trace = await client.call(messages.TRACE_SETTING, pb.TraceSettingRequest())
    assert list(trace.settings["trace_level"].value) == ["OFF"]
    log = await client.call(messages.LOG_SETTINGS, pb.LogSettingsRequest())
    assert log.settings["log_info"].bool_param
    assert log.settings["log_verbose_level"].WhichOneof("parameter_choice") == "uint32_param"
    assert log.settings["log_format"].string_param == "default"
    system = pb.SystemSharedMemoryStatusRequest()
    assert not (await client.call(messages.SYSTEM_SHARED_MEMORY_STATUS, system)).regions
    cuda = pb.CudaSharedMemoryStatusRequest()
    assert not (await client.call(messages.CUDA_SHARED_MEMORY_STATUS, cuda)).regions


async def test_inference_is_answered_and_counted(client: Client) -> None:
    request = request_for("identity_fp32", "7", INPUT0=("FP32", [1, 2]))
    answer = await client.call(messages.MODEL_INFER, request)
    assert answer.id == "7"
    assert list(answer.raw_output_contents) == list(request.raw_input_contents)
    asked = pb.ModelStatisticsRequest(name="identity_fp32")
    (counted,) = (await client.call(messages.MODEL_STATISTICS, asked)).model_stats
    assert counted.inference_stats.success.count == 1


async def test_refusals_have_tritons_code_and_text(client: Client) -> None:
    assert await refusal(client, messages.MODEL_INFER, pb.ModelInferRequest(model_name="x")) == (
        grpc.StatusCode.NOT_FOUND,
        "Request for unknown model: 'x' is not found",
    )
    decoupled = pb.ModelInferRequest(model_name="repeat_int32")
    assert await refusal(client, messages.MODEL_INFER, decoupled) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )
    control = "explicit model load / unload is not allowed if polling is enabled"
    load = pb.RepositoryModelLoadRequest(model_name="simple")
    assert await refusal(client, messages.REPOSITORY_MODEL_LOAD, load) == (
        grpc.StatusCode.UNAVAILABLE,
        control,
    )
    unload = pb.RepositoryModelUnloadRequest(model_name="simple")
    assert await refusal(client, messages.REPOSITORY_MODEL_UNLOAD, unload) == (
        grpc.StatusCode.UNAVAILABLE,
        control,
    )


async def test_message_that_does_not_parse_is_refused(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.channel.unary_unary(messages.MODEL_INFER.path)(b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "Unable to parse request"


async def test_cancelled_stream_cancels_its_inferences(client: Client) -> None:
    call = client.stream()
    await call.write(repeat([1] * 10_000, "a", delay=1))
    await call.read()
    call.cancel()
    counters = client.triton.counters["repeat_int32"]
    async with asyncio.timeout(30):
        while not counters.canceled:  # each call is a round trip, after which it may have arrived
            await client.call(messages.SERVER_LIVE, pb.ServerLiveRequest())
    assert counters.canceled == 1


async def test_health_check_serves_whatever_service_is_named(client: Client) -> None:
    check = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "anything"):
        answer = await check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_watch_is_not_implemented_as_in_triton(client: Client) -> None:
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch(b"").read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
