"""Questions of our own to one backend, in the protocol of whichever of its ports answers.

HTTP first: Triton answers it with several threads, and gRPC's health probes share one thread with
all other questions there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from lb.control.record import BackendRecord
from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelEntry
from lb.domain.outcome import Outcome
from lb.health.models import Version
from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from lb.kserve.configuration import Configuration, configuration_from_json
from lb.kserve.errors import http_error_text
from lb.kserve.facts import Configured, configured_from_json, configured_from_message
from lb.kserve.messages import Method, Request, Response
from lb.kserve.repository import (
    Region,
    cuda_regions_from_message,
    entries_from_json,
    entries_from_message,
    regions_from_json,
    regions_from_message,
)
from lb.kserve.server_settings import (
    Settings,
    log_from_message,
    log_to_message,
    settings_from_json,
    settings_to_json,
    trace_from_message,
    trace_to_message,
)
from lb.kserve.statistics import (
    MeasuredVersions,
    measured_from_json,
    measured_from_message,
    memory_from_json,
    memory_from_message,
)
from lb.kserve.warm_up import WarmUpRequest
from lb.net.ask.backend_client import BackendClient

READ_BYTES: Final = 4 * 2**20
"""Longer answers are not read: that would hold up everything else for too long."""
_STATISTICS_BYTES: Final = 2**20
"""The same of statistics, of well over a thousand models: reading them takes ten milliseconds."""
_AT_ONCE: Final = 32
"""Questions under way: a pool of hundreds is not asked all at once."""
_PLAIN: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:@-]+")
"""Names that stand in a path as they are; Triton decodes no percent-encoding."""
_TEMPORARY_HTTP: Final = frozenset({408, 429, 500, 502, 503, 504, 508})
_FOR_GOOD_GRPC: Final = frozenset({3, 5, 7, 12, 16})
_NOT_EXPLICIT: Final = "explicit model load / unload is not allowed"
_RESTRICTED: Final = re.compile(r"This (?:protocol|API) is restricted")


_ReadT = TypeVar("_ReadT")


_JSON: Final = ((b"content-type", b"application/json"),)
_BINARY: Final = (b"content-type", b"application/octet-stream")


class NotOffered(Exception):
    """The server does not have such a call, or not for us; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a backend answered, whatever that is."""

    protocol: AppProtocol
    status: int
    """Of HTTP or of gRPC."""
    body: bytes
    """Of HTTP, or the message of gRPC."""
    detail: str
    """Its error, in its own words; empty when there is none."""

    @property
    def is_ok(self) -> bool:
        """Whether it did as it was told."""
        return self.status == (200 if self.protocol is AppProtocol.HTTP else 0)

    @property
    def refuses_control(self) -> bool:
        """Whether it says that it loads what it finds by itself, and nothing on request."""
        return self.detail.startswith(_NOT_EXPLICIT)

    def checked(self) -> Reply:
        """Itself, when it is good.

        Raises:
            NotOffered: asking again later will not help.
            UpstreamError: it may.
        """
        if self.is_ok:
            return self
        text = self.detail or f"status {self.status}"
        if self.protocol is AppProtocol.HTTP:
            is_temporary = self.status in _TEMPORARY_HTTP
        else:
            is_temporary = self.status not in _FOR_GOOD_GRPC
        if is_temporary and not _RESTRICTED.match(text):
            raise UpstreamError(Outcome.REFUSED, text)
        raise NotOffered(text)


def entries(index: Reply) -> Iterator[ModelEntry]:
    """Read the answer to `Questions.index`, one line after the other.

    Raises:
        ValueError: it is no list of models.
    """
    return _read(index, entries_from_json, entries_from_message)


def _read(
    reply: Reply, from_json: Callable[[bytes], _ReadT], from_message: Callable[[bytes], _ReadT]
) -> _ReadT:
    if len(reply.body) > READ_BYTES:
        raise ValueError("the answer is too long")
    return (from_json if reply.protocol is AppProtocol.HTTP else from_message)(reply.body)


class Questions:
    """Asks backends about themselves, and tells them what to have."""

    def __init__(self, backend_client: BackendClient, *, timeout_s: float = 2.0) -> None:
        self._backend_client = backend_client
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(_AT_ONCE)

    # What it has. All raise NotOffered, UpstreamError, and ValueError for what cannot be read.

    async def index(self, record: BackendRecord) -> Reply:
        """The list of its models, to be read by `entries`."""
        path = b"/v2/repository/index"
        reply = await self._ask(
            record, b"POST", path, b"", messages.REPOSITORY_INDEX, pb.RepositoryIndexRequest()
        )
        return reply.checked()

    async def config(self, record: BackendRecord, version: Version) -> Configured:
        """What the configuration of one version of a model says."""
        name, number = version
        path = b"/v2/models/%b/versions/%b/config" % version
        request = pb.ModelConfigRequest(
            name=name.decode("utf-8", "replace"), version=number.decode("utf-8", "replace")
        )
        if not number:
            path = b"/v2/models/%b/config" % name
        if not (_PLAIN.fullmatch(name) and (number.isdigit() or not number)):
            path = b""
        reply = await self._ask(record, b"GET", path, b"", messages.MODEL_CONFIG, request)
        return _read(reply.checked(), configured_from_json, configured_from_message)

    async def configuration(self, record: BackendRecord, version: Version) -> Configuration:
        """All of the configuration of one version of a model.

        Over HTTP only: the messages that are known here have a part of it.
        """
        if not record.is_open(AppProtocol.HTTP):
            raise NotOffered("it has no HTTP port that answers")
        name, number = version
        if not (_PLAIN.fullmatch(name) and number.isdigit()):
            raise NotOffered("no path can hold its name")
        path = b"/v2/models/%b/versions/%b/config" % version
        async with self._turn:
            reply = await self._over_http(record, b"GET", path, b"", self._timeout_s)
        body = reply.checked().body
        if len(body) > READ_BYTES:
            raise ValueError("the answer is too long")
        return configuration_from_json(body)

    async def regions(self, record: BackendRecord) -> tuple[Region, ...]:
        """Its regions of system shared memory."""
        reply = await self._ask(
            record,
            b"GET",
            b"/v2/systemsharedmemory/status",
            b"",
            messages.SYSTEM_SHARED_MEMORY_STATUS,
            pb.SystemSharedMemoryStatusRequest(),
        )
        return _read(reply.checked(), regions_from_json, regions_from_message)

    async def cuda_regions(self, record: BackendRecord) -> tuple[Region, ...]:
        """Its regions of CUDA memory; they have no keys."""
        reply = await self._ask(
            record,
            b"GET",
            b"/v2/cudasharedmemory/status",
            b"",
            messages.CUDA_SHARED_MEMORY_STATUS,
            pb.CudaSharedMemoryStatusRequest(),
        )
        return _read(reply.checked(), regions_from_json, cuda_regions_from_message)

    async def statistics(self, record: BackendRecord) -> MeasuredVersions:
        """What executions took there since it started, by version of a model."""
        path = b"/v2/models/stats"
        request = pb.ModelStatisticsRequest()
        reply = await self._ask(record, b"GET", path, b"", messages.MODEL_STATISTICS, request)
        if len(reply.body) > _STATISTICS_BYTES:
            raise ValueError("the answer is too long")
        return _read(reply.checked(), measured_from_json, measured_from_message)

    async def memory_usage(self, record: BackendRecord, model: bytes) -> int:
        """Bytes of GPUs that a model takes, as its statistics say; 0 where they do not, or where
        the backend does not answer."""
        path = b"/v2/models/%b/stats" % model
        request = pb.ModelStatisticsRequest(name=model.decode("utf-8", "replace"))
        path = path if _PLAIN.fullmatch(model) else b""
        try:
            reply = await self._ask(record, b"GET", path, b"", messages.MODEL_STATISTICS, request)
            return _read(reply.checked(), memory_from_json, memory_from_message)
        except (NotOffered, UpstreamError, ValueError):
            return 0

    async def trace_settings(self, record: BackendRecord) -> Settings:
        """Its trace settings."""
        request = pb.TraceSettingRequest()
        path = b"/v2/trace/setting"
        reply = await self._ask(record, b"GET", path, b"", messages.TRACE_SETTING, request)
        return _read(reply.checked(), settings_from_json, trace_from_message)

    async def log_settings(self, record: BackendRecord) -> Settings:
        """Its log settings."""
        request = pb.LogSettingsRequest()
        path = b"/v2/logging"
        reply = await self._ask(record, b"GET", path, b"", messages.LOG_SETTINGS, request)
        return _read(reply.checked(), settings_from_json, log_from_message)

    # What it is to have. All return its answer, and raise UpstreamError when there is none.

    async def load(
        self, record: BackendRecord, model: bytes, timeout_s: float, config: str = ""
    ) -> Reply:
        """Load a model from its repository, `config` instead of its configuration there.

        Over gRPC where that answers: a load over HTTP stops all other connections on the same
        thread of Triton's for as long as it takes (docs/decisions/0017-model-tables.md).
        """
        request = pb.RepositoryModelLoadRequest(model_name=model.decode("utf-8", "replace"))
        if config:
            request.parameters["config"].string_param = config
        method = messages.REPOSITORY_MODEL_LOAD
        # Out of turn: it may take minutes.
        if record.is_open(AppProtocol.GRPC):
            call, message = method.path.encode(), method.encode(request)
            return await self._over_grpc(record, call, message, timeout_s)
        path = b"/v2/repository/models/%b/load" % model
        if not _PLAIN.fullmatch(model):
            raise UpstreamError(Outcome.CONNECT_REFUSED, "no path can hold its name")
        body = json.dumps({"parameters": {"config": config}} if config else {}).encode()
        return await self._over_http(record, b"POST", path, body, timeout_s)

    async def unload(self, record: BackendRecord, model: bytes) -> Reply:
        """Unload a model. Its steps stay loaded, if it is an ensemble.

        A Triton that loads models on request agrees also where it has no such model, whatever its
        name; another one says what it does not allow.
        """
        request = pb.RepositoryModelUnloadRequest(model_name=model.decode("utf-8", "replace"))
        path = b"/v2/repository/models/%b/unload" % model
        return await self._ask(
            record,
            b"POST",
            path if _PLAIN.fullmatch(model) else b"",
            b"{}",
            messages.REPOSITORY_MODEL_UNLOAD,
            request,
        )

    async def register(self, record: BackendRecord, region: Region) -> Reply:
        """Register a region of system shared memory.

        Raises:
            UpstreamError: there was no answer.
            ValueError: no message can hold its key.
        """
        name = region.name.encode()
        path = b"/v2/systemsharedmemory/region/%b/register" % name
        content = {"key": region.key, "offset": region.offset, "byte_size": region.byte_size}
        request = pb.SystemSharedMemoryRegisterRequest(
            name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
        )
        return await self._ask(
            record,
            b"POST",
            path if _PLAIN.fullmatch(name) else b"",
            json.dumps(content).encode(),
            messages.SYSTEM_SHARED_MEMORY_REGISTER,
            request,
        )

    async def infer(
        self, record: BackendRecord, version: Version, request: WarmUpRequest, timeout_s: float
    ) -> Reply:
        """Have a version of a model compute something. Over HTTP only.

        Raises:
            UpstreamError: there was no answer.
        """
        size = (b"inference-header-content-length", b"%d" % request.json_size)
        answer = await self._backend_client.http(
            record.member.spec,
            b"POST",
            b"/v2/models/%b/versions/%b/infer" % version,
            (_BINARY, size),
            request.body,
            timeout_s=timeout_s,
        )
        text = "" if answer.status == 200 else http_error_text(answer.body)
        return Reply(AppProtocol.HTTP, answer.status, b"", text)

    async def set_trace(self, record: BackendRecord, settings: Settings) -> Reply:
        """Change trace settings."""
        body, request = settings_to_json(settings), trace_to_message(settings)
        path = b"/v2/trace/setting"
        return await self._ask(record, b"POST", path, body, messages.TRACE_SETTING, request)

    async def set_log(self, record: BackendRecord, settings: Settings) -> Reply:
        """Change log settings."""
        body, request = settings_to_json(settings), log_to_message(settings)
        path = b"/v2/logging"
        return await self._ask(record, b"POST", path, body, messages.LOG_SETTINGS, request)

    async def _ask(
        self,
        record: BackendRecord,
        http_method: bytes,
        path: bytes,
        body: bytes,
        method: Method[Request, Response],
        request: Request,
    ) -> Reply:
        """Ask in turn; see `_converse`."""
        message = method.encode(request)
        call = method.path.encode()
        async with self._turn:
            return await self._converse(
                record, http_method, path, body, call, message, self._timeout_s
            )

    async def _converse(
        self,
        record: BackendRecord,
        http_method: bytes,
        path: bytes,
        body: bytes,
        call: bytes,
        message: bytes,
        timeout_s: float,
    ) -> Reply:
        """Ask over HTTP, or over gRPC where HTTP does not answer or `path` is empty."""
        has_grpc = record.is_open(AppProtocol.GRPC)
        if path and record.is_open(AppProtocol.HTTP):
            try:
                return await self._over_http(record, http_method, path, body, timeout_s)
            except UpstreamError:
                # A thread of Triton's HTTP server stands still while it loads a model.
                if not has_grpc:
                    raise
        if has_grpc:
            return await self._over_grpc(record, call, message, timeout_s)
        raise UpstreamError(Outcome.CONNECT_REFUSED, "no port of it answers")

    async def _over_http(
        self, record: BackendRecord, method: bytes, path: bytes, body: bytes, timeout_s: float
    ) -> Reply:
        spec = record.member.spec
        answer = await self._backend_client.http(
            spec, method, path, _JSON, body, timeout_s=timeout_s
        )
        text = "" if answer.status == 200 else http_error_text(answer.body)
        return Reply(AppProtocol.HTTP, answer.status, answer.body, text)

    async def _over_grpc(
        self, record: BackendRecord, call: bytes, message: bytes, timeout_s: float
    ) -> Reply:
        answer = await self._backend_client.grpc(
            record.member.spec, call, message, timeout_s=timeout_s
        )
        return Reply(AppProtocol.GRPC, answer.status, answer.message, answer.detail)
