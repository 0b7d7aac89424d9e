"""The calls of the KServe v2 gRPC service, with the messages they take and give.

For the cold paths only (probes, merged answers, the simulated Triton, the demo): the relay passes
messages on unread. The messages themselves are in `lb.kserve.inference_pb2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from lb.kserve import inference_pb2 as pb

SERVICE: Final = "inference.GRPCInferenceService"

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One call: what a gRPC client or server needs to know of it."""

    name: str
    request: type[Request]
    response: type[Response]

    @property
    def path(self) -> str:
        """The `:path` of the call."""
        return f"/{SERVICE}/{self.name}"

    def encode(self, request: Request) -> bytes:
        """Return the request as it goes on the wire."""
        return request.SerializeToString()

    def decode(self, data: bytes) -> Response:
        """Return the response that stands in `data`.

        Raises:
            google.protobuf.message.DecodeError: `data` is no such message.
        """
        return self.response.FromString(data)


SERVER_LIVE: Final = Method("ServerLive", pb.ServerLiveRequest, pb.ServerLiveResponse)
SERVER_READY: Final = Method("ServerReady", pb.ServerReadyRequest, pb.ServerReadyResponse)
SERVER_METADATA: Final = Method(
    "ServerMetadata", pb.ServerMetadataRequest, pb.ServerMetadataResponse
)
MODEL_READY: Final = Method("ModelReady", pb.ModelReadyRequest, pb.ModelReadyResponse)
MODEL_METADATA: Final = Method("ModelMetadata", pb.ModelMetadataRequest, pb.ModelMetadataResponse)
MODEL_CONFIG: Final = Method("ModelConfig", pb.ModelConfigRequest, pb.ModelConfigResponse)
MODEL_INFER: Final = Method("ModelInfer", pb.ModelInferRequest, pb.ModelInferResponse)
MODEL_STREAM_INFER: Final = Method(
    "ModelStreamInfer", pb.ModelInferRequest, pb.ModelStreamInferResponse
)
MODEL_STATISTICS: Final = Method(
    "ModelStatistics", pb.ModelStatisticsRequest, pb.ModelStatisticsResponse
)
REPOSITORY_INDEX: Final = Method(
    "RepositoryIndex", pb.RepositoryIndexRequest, pb.RepositoryIndexResponse
)
REPOSITORY_MODEL_LOAD: Final = Method(
    "RepositoryModelLoad", pb.RepositoryModelLoadRequest, pb.RepositoryModelLoadResponse
)
REPOSITORY_MODEL_UNLOAD: Final = Method(
    "RepositoryModelUnload", pb.RepositoryModelUnloadRequest, pb.RepositoryModelUnloadResponse
)
SYSTEM_SHARED_MEMORY_STATUS: Final = Method(
    "SystemSharedMemoryStatus",
    pb.SystemSharedMemoryStatusRequest,
    pb.SystemSharedMemoryStatusResponse,
)
SYSTEM_SHARED_MEMORY_REGISTER: Final = Method(
    "SystemSharedMemoryRegister",
    pb.SystemSharedMemoryRegisterRequest,
    pb.SystemSharedMemoryRegisterResponse,
)
SYSTEM_SHARED_MEMORY_UNREGISTER: Final = Method(
    "SystemSharedMemoryUnregister",
    pb.SystemSharedMemoryUnregisterRequest,
    pb.SystemSharedMemoryUnregisterResponse,
)
CUDA_SHARED_MEMORY_STATUS: Final = Method(
    "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest, pb.CudaSharedMemoryStatusResponse
)
CUDA_SHARED_MEMORY_REGISTER: Final = Method(
    "CudaSharedMemoryRegister",
    pb.CudaSharedMemoryRegisterRequest,
    pb.CudaSharedMemoryRegisterResponse,
)
CUDA_SHARED_MEMORY_UNREGISTER: Final = Method(
    "CudaSharedMemoryUnregister",
    pb.CudaSharedMemoryUnregisterRequest,
    pb.CudaSharedMemoryUnregisterResponse,
)
TRACE_SETTING: Final = Method("TraceSetting", pb.TraceSettingRequest, pb.TraceSettingResponse)
LOG_SETTINGS: Final = Method("LogSettings", pb.LogSettingsRequest, pb.LogSettingsResponse)
