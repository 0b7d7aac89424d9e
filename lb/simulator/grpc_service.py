"""The gRPC side of a simulated Triton: GRPCInferenceService and `grpc.health.v1.Health/Check`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from lb.kserve.health import Serving, health_message
from lb.kserve.messages import Method, Request, Response
from lb.simulator import grpc_infer
from lb.simulator.errors import ErrorKind, TritonError
from lb.simulator.grpc_stream import InferStream
from lb.simulator.models import config_of, metadata_of
from lb.simulator.server import (
    EXTENSIONS,
    LOG_SETTINGS,
    NAME,
    TRACE_SETTINGS,
    TRITON_VERSION,
    SimulatedTriton,
)
from lb.simulator.tensors import Tensor

_ANY_SIZE: Final = -1

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _ANY_SIZE),
    ("grpc.max_send_message_length", _ANY_SIZE),
    ("grpc.so_reuseport", 0),  # a busy port is an error, not shared
)


def make_grpc_server(triton: SimulatedTriton) -> grpc.aio.Server:
    """Return a server, not yet bound or started, that answers as Triton's gRPC port does."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service = _GrpcService(triton)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(messages.SERVICE, service.handlers()),
            # Only Check: a Triton has no Watch.
            grpc.method_handlers_generic_handler(
                "grpc.health.v1.Health",
                {"Check": grpc.unary_unary_rpc_method_handler(_check_health)},
            ),
        )
    )
    return server


async def _check_health(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Say that we serve; the service asked about is ignored, so the request is not even read."""
    return health_message(Serving.SERVING)


def _unary(
    method: Method[Request, Response], answer: Callable[[Request], Awaitable[Response]]
) -> grpc.RpcMethodHandler[bytes, Response]:
    """Return a handler that decodes by itself, to refuse a broken message as Triton does."""

    async def handle(data: bytes, context: grpc.aio.ServicerContext[bytes, Response]) -> Response:
        try:
            return await answer(method.request.FromString(data))
        except TritonError as error:
            await context.abort(error.fault.grpc_code, error.text)
        except DecodeError:
            await context.abort(ErrorKind.INTERNAL.grpc_code, "Unable to parse request")
        raise AssertionError("abort always raises")

    return grpc.unary_unary_rpc_method_handler(
        handle, response_serializer=method.response.SerializeToString
    )


class _GrpcService:
    def __init__(self, triton: SimulatedTriton) -> None:
        self._triton = triton

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[bytes, Any]]:
        """Return the handler of every method that the simulator has."""
        stream = messages.MODEL_STREAM_INFER
        return {
            "ServerLive": _unary(messages.SERVER_LIVE, self._live),
            "ServerReady": _unary(messages.SERVER_READY, self._ready),
            "ServerMetadata": _unary(messages.SERVER_METADATA, self._metadata),
            "ModelReady": _unary(messages.MODEL_READY, self._model_ready),
            "ModelMetadata": _unary(messages.MODEL_METADATA, self._model_metadata),
            "ModelConfig": _unary(messages.MODEL_CONFIG, self._model_config),
            "ModelStatistics": _unary(messages.MODEL_STATISTICS, self._statistics),
            "RepositoryIndex": _unary(messages.REPOSITORY_INDEX, self._index),
            "RepositoryModelLoad": _unary(messages.REPOSITORY_MODEL_LOAD, self._load),
            "RepositoryModelUnload": _unary(messages.REPOSITORY_MODEL_UNLOAD, self._unload),
            "SystemSharedMemoryStatus": _unary(
                messages.SYSTEM_SHARED_MEMORY_STATUS, self._system_regions
            ),
            "CudaSharedMemoryStatus": _unary(
                messages.CUDA_SHARED_MEMORY_STATUS, self._cuda_regions
            ),
            "TraceSetting": _unary(messages.TRACE_SETTING, self._trace_setting),
            "LogSettings": _unary(messages.LOG_SETTINGS, self._log_settings),
            "ModelInfer": _unary(messages.MODEL_INFER, self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                self._stream_infer,
                request_deserializer=stream.request.FromString,
                response_serializer=stream.response.SerializeToString,
            ),
        }

    async def _live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def _ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=True)

    async def _metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=NAME, version=TRITON_VERSION, extensions=EXTENSIONS)

    async def _model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(
            ready=self._triton.is_model_ready(request.name, request.version)
        )

    async def _model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return metadata_of(self._triton.find(request.name, request.version))

    async def _model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        model = self._triton.find(request.name, request.version)
        return pb.ModelConfigResponse(config=config_of(model))

    async def _statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return self._triton.statistics(request.name, request.version)

    async def _index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        return self._triton.index()

    async def _load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        self._triton.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def _unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        self._triton.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def _system_regions(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        return pb.SystemSharedMemoryStatusResponse()

    async def _cuda_regions(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def _trace_setting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        response = pb.TraceSettingResponse()
        for name, value in TRACE_SETTINGS.items():
            response.settings[name].value.append(value)
        return response

    async def _log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        response = pb.LogSettingsResponse()
        for name, value in LOG_SETTINGS.items():
            if isinstance(value, bool):
                response.settings[name].bool_param = value
            elif isinstance(value, int):
                response.settings[name].uint32_param = value
            else:
                response.settings[name].string_param = value
        return response

    async def _infer(self, message: pb.ModelInferRequest) -> pb.ModelInferResponse:
        if self._triton.find(message.model_name, message.model_version).decoupled:
            raise TritonError(
                ErrorKind.UNSUPPORTED,
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
            )
        request = grpc_infer.parse(message)
        answers: list[pb.ModelInferResponse] = []

        async def respond(tensors: tuple[Tensor, ...]) -> None:
            answers.append(grpc_infer.render(request, tensors))

        await self._triton.infer(request, respond)
        (answer,) = answers
        return answer

    async def _stream_infer(
        self,
        requests: AsyncIterator[pb.ModelInferRequest],
        context: grpc.aio.ServicerContext[pb.ModelInferRequest, pb.ModelStreamInferResponse],
    ) -> None:
        await InferStream(self._triton).run(requests, context.write)
