"""Tritons in memory: models, regions, settings. Lists come over both protocols, loads over gRPC,
all else over HTTP.

Stands where `BackendClient` does, so that what is built on it can be tested without sockets.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from lb.domain.backend import BackendSpec
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.kserve import inference_pb2 as pb
from lb.net.ask.backend_client import BackendClient
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
SEQUENCES = {"sequence_batching": {"max_sequence_idle_microseconds": 5_000_000}}


@dataclass
class FakeTriton:
    """What one has, to be changed by tests."""

    models: dict[str, str] = field(default_factory=dict)
    """State by name; all have version 1."""
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of models that are loaded, or how the repository has those that are not."""
    is_explicit: bool = True
    lists: int = 200
    """Status of its answer to the index."""
    is_silent: bool = False
    is_gone: bool = False
    """It refuses all connections."""
    frozen: asyncio.Event | None = None
    """Set, it goes on; until then it answers nothing over HTTP."""
    unloadable: frozenset[str] = frozenset()
    deadly: frozenset[str] = frozenset()
    """Models that end it when they are loaded: from then on it answers nothing."""
    dropped: set[str] = field(default_factory=set)
    """Models whose load loses its connection, once each."""
    unconfigurable: frozenset[str] = frozenset()
    """Models that are loaded as the repository has them only."""
    lingering: set[str] = field(default_factory=set)
    """Models that stay in the state UNLOADING when they are unloaded."""
    slow: dict[str, asyncio.Event] = field(default_factory=dict)
    """Models that are loaded once that is set."""
    deaf: set[str] = field(default_factory=set)
    """Paths of calls over HTTP that get no answer, once each."""
    regions: dict[str, dict[str, Any]] = field(default_factory=dict)
    cuda: list[str] = field(default_factory=list)
    trace: dict[str, Any] = field(default_factory=lambda: {"trace_level": ["OFF"]})
    log: dict[str, Any] = field(default_factory=lambda: {"log_verbose_level": 0})
    statistics: dict[str, Any] | None = None
    """Its answer when it is asked for them; None: it has none."""
    infers: tuple[int, dict[str, Any]] | UpstreamError = (200, {})
    """Its answer to inferences, or why there is none."""
    cold: dict[str, asyncio.Event] = field(default_factory=dict)
    """Models whose inferences are answered once that is set."""
    inferred: list[tuple[str, int]] = field(default_factory=list)
    """Models of inferences, and the sizes of their bodies."""
    asked: list[str] = field(default_factory=list)
    """Methods and paths."""


Content = tuple[int, Any]


class FakeTritons(BackendClient):
    """Answers for all of them, by the name of the backend."""

    def __init__(self, **tritons: FakeTriton) -> None:
        super().__init__()
        self.tritons = tritons

    async def http(  # type: ignore[override]  # the rest is of no use here
        self,
        spec: BackendSpec,
        method: bytes,
        target: bytes,
        fields: object = (),
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> HttpAnswer:
        triton = self.tritons[spec.name]
        path = target.decode()
        triton.asked.append(f"{method.decode()} {path}")
        if triton.is_gone:
            raise UpstreamError(Outcome.CONNECT_REFUSED, "refused the connection")
        if triton.is_silent:
            raise UpstreamError(Outcome.DEADLINE, "no answer")
        if triton.frozen is not None:
            await triton.frozen.wait()
        if path in triton.deaf and method == b"POST":
            triton.deaf.remove(path)
            raise UpstreamError(Outcome.DEADLINE, "no answer")
        if path.endswith("/infer"):
            model = path.split("/")[3]
            triton.inferred.append((model, len(body)))
            if model in triton.cold:
                await triton.cold[model].wait()
            if isinstance(triton.infers, UpstreamError):
                raise triton.infers
            return HttpAnswer(triton.infers[0], (), json.dumps(triton.infers[1]).encode())
        status, content = _answer(triton, path, json.loads(body or b"{}"))
        return HttpAnswer(status, (), b"" if content is None else json.dumps(content).encode())

    async def grpc(  # type: ignore[override]
        self, spec: BackendSpec, path: bytes, message: bytes = b"", *, timeout_s: float
    ) -> GrpcAnswer:
        triton = self.tritons[spec.name]
        triton.asked.append(path.decode())
        if triton.is_gone:
            raise UpstreamError(Outcome.CONNECT_REFUSED, "refused the connection")
        if path.endswith(b"/RepositoryIndex") and triton.lists == 200 and not triton.is_silent:
            index = pb.RepositoryIndexResponse(models=_index(triton)[1])
            return GrpcAnswer(0, "", index.SerializeToString())
        if triton.is_silent or not path.endswith(b"/RepositoryModelLoad"):
            raise UpstreamError(Outcome.DEADLINE, "no answer")
        request = pb.RepositoryModelLoadRequest.FromString(message)
        model = request.model_name
        if model in triton.deadly or model in triton.dropped:
            triton.is_silent = model in triton.deadly
            triton.dropped.discard(model)
            raise UpstreamError(Outcome.LOST, "connection lost")
        if model in triton.slow:
            await triton.slow[model].wait()
        status, content = _load(triton, model, request.parameters["config"].string_param)
        return GrpcAnswer({200: 0, 503: 14}.get(status, 13), (content or {}).get("error", ""), b"")


def _answer(triton: FakeTriton, path: str, content: dict[str, Any]) -> Content:
    if path == "/v2/repository/index":
        return _index(triton)
    if match := re.fullmatch(r"/v2/models/(.*)/versions/1/config", path):
        config = triton.configs.get(match[1], {})
        return 200, {"name": match[1], **config}
    if match := re.fullmatch(r"/v2/repository/models/(.*)/unload", path):
        return _unload(triton, match[1])
    if match := re.fullmatch(r"/v2/systemsharedmemory/region/(.*)/register", path):
        if match[1] in triton.regions:
            text = f"shared memory region '{match[1]}' already in manager"
            return 400, {"error": text}
        triton.regions[match[1]] = content
        return 200, None
    if path == "/v2/systemsharedmemory/status":
        return 200, [{"name": name, **region} for name, region in triton.regions.items()]
    if path == "/v2/cudasharedmemory/status":
        return 200, [{"name": name, "device_id": 0, "byte_size": 8} for name in triton.cuda]
    if path == "/v2/models/stats":
        if triton.statistics is None:
            return 404, {"error": "no statistics"}
        return 200, triton.statistics
    settings = {"/v2/trace/setting": triton.trace, "/v2/logging": triton.log}[path]
    settings.update(content)
    return 200, settings


def _index(triton: FakeTriton) -> Content:
    if triton.lists != 200:
        return triton.lists, {"error": "no index for you"}
    return 200, [
        {"name": name, "version": "1", "state": state} for name, state in triton.models.items()
    ]


def _unload(triton: FakeTriton, model: str) -> Content:
    if not triton.is_explicit:
        return 503, {"error": NOT_EXPLICIT}
    if model in triton.models:
        triton.models[model] = "UNLOADING" if model in triton.lingering else "UNAVAILABLE"
    return 200, None


def _load(triton: FakeTriton, model: str, config: str) -> Content:
    if not triton.is_explicit:
        return 503, {"error": NOT_EXPLICIT}
    if model in triton.unloadable or (config and model in triton.unconfigurable):
        return 500, {"error": f"failed to load '{model}'"}
    if config:
        triton.configs[model] = json.loads(config)
    triton.models[model] = "READY"
    return 200, None
