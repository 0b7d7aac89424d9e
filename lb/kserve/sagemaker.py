"""Triton's front for SageMaker: which v2 request a request is, and its answer in return.

Source: Triton `src/sagemaker_server.cc`, and SageMaker's contracts for containers with one model
and with many.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lb.kserve.fronts import UNKNOWN_ROUTE, Forward, FrontRequest, Own, json_length

MIME: Final = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
UNSPECIFIED: Final = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""The model that a Triton asks for where it was told none."""
MODELS: Final = 10_000
"""Most models that may be loaded through the front."""
_URL_BYTES: Final = 4096
"""Longest place of a model, as of a path; it is kept as long as the model is loaded."""

_MODELS: Final = re.compile(rb"/models(?:/)?([^/]+)?(/invoke)?")
_SEGMENT: Final = re.compile(rb"(?!\.\.?\Z)[!-~]+")
_NOT_IN_SEGMENT: Final = re.compile(rb"[/\\?#%]")
_JSON_LENGTH: Final = b"inference-header-content-length"
_OUT_OF_MEMORY: Final = re.compile(
    rb"[Oo]ut [Oo]f [Mm]emory|CUDA_OUT_OF_MEMORY|MemoryError|OutOfMemory|OOM"
    rb"|(?:Dst|Src) tensor is not initialized|CNMEM_STATUS_OUT_OF_MEMORY"
    rb"|CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
    rb"|[Ff]ailed to allocate memory|No space left on device"
)


class Action(Enum):
    """What is asked of the models of an endpoint that has many."""

    LIST = "list"
    DESCRIBE = "describe"
    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Manage:
    """It is about which models there are."""

    action: Action
    name: bytes = b""
    """What SageMaker calls the model: a hash."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """It is an inference of a model that was loaded under `name`."""

    name: bytes
    forward: Forward


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMakerRoutes:
    """What the front does."""

    model: bytes = UNSPECIFIED.encode()
    """Which one invocations are of."""
    inference: bytes = b"infer"
    """`infer`, `generate` or `generate_stream`."""
    ping: bytes = b"ready"
    """`ready` or `live`."""
    is_multi_model: bool = False


def translate(routes: SageMakerRoutes, request: FrontRequest) -> Forward | Own | Manage | Invoke:
    """What becomes of a request.

    Raises:
        FrontFault: its content type cannot be meant.
    """
    if request.path == b"/ping":
        return Forward(request.method, b"/v2/health/%b" % routes.ping)
    if request.path == b"/invocations":
        return _inference(routes, request, routes.model, routes.inference)
    match = _MODELS.fullmatch(request.path)
    if match is None or not routes.is_multi_model:
        return UNKNOWN_ROUTE
    return _managed(routes, request, match[1] or b"", is_invocation=match[2] is not None)


def _managed(
    routes: SageMakerRoutes, request: FrontRequest, name: bytes, *, is_invocation: bool
) -> Own | Manage | Invoke:
    if request.method == b"GET":
        return Manage(Action.DESCRIBE, name) if name else Manage(Action.LIST)
    if request.method == b"DELETE":
        return Manage(Action.UNLOAD, name) if name else Own(404)
    if request.method != b"POST":
        return UNKNOWN_ROUTE
    if not is_invocation:
        return Manage(Action.LOAD)
    model = request.model or name
    if not is_segment(model):
        return Own(404)
    return Invoke(name, _inference(routes, request, model, b"infer"))


def _inference(
    routes: SageMakerRoutes, request: FrontRequest, model: bytes, inference: bytes
) -> Forward:
    target = b"/v2/models/%b/%b" % (model, inference)
    if request.method != b"POST" or inference != b"infer":
        return Forward(request.method, target)
    return Forward(request.method, target, json_length(MIME, request))


def is_segment(name: bytes) -> bool:
    """Whether a name can stand in the path of a v2 request."""
    return _SEGMENT.fullmatch(name) is not None and _NOT_IN_SEGMENT.search(name) is None


# Answers


def front_answer_head(head: bytes) -> bytes:
    """The head of a v2 answer as the front gives it: the content type says where the JSON ends."""
    lines = head.split(b"\r\n")
    length = next(
        (
            value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
            if name.lower() == _JSON_LENGTH
        ),
        None,
    )
    if length is None:
        return head
    kept = []
    for line in lines:
        name = line.partition(b":")[0].lower()
        if name == b"content-type":
            kept.append(b"Content-Type: %b%b" % (MIME, length))
        elif name != _JSON_LENGTH:
            kept.append(line)
    return b"\r\n".join(kept)


def error_status(body: bytes) -> int:
    """The status of any error of one of many models: SageMaker makes room after a 507.

    Errors of `/invocations` keep the status that they have on the v2 port.
    """
    return 507 if is_out_of_memory(body) else 400


def is_out_of_memory(body: bytes) -> bool:
    """Whether an error's text says so."""
    return _OUT_OF_MEMORY.search(body) is not None


# Many models


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model that was loaded through the front."""

    model: bytes
    """Its name on the backends."""
    url: str
    """Where SageMaker has put it."""


class Shelf:
    """The models that SageMaker has had loaded, by its name for them."""

    def __init__(self) -> None:
        self._loaded: dict[bytes, LoadedModel] = {}

    def find(self, name: bytes) -> LoadedModel | None:
        """The model of that name, if it is loaded."""
        return self._loaded.get(name)

    def add(self, name: bytes, model: LoadedModel) -> None:
        """It is loaded."""
        self._loaded[name] = model

    def remove(self, name: bytes) -> None:
        """It is unloaded. Idempotent."""
        self._loaded.pop(name, None)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another one."""
        return len(self._loaded) >= MODELS

    def listing(self, ready: frozenset[bytes]) -> bytes:
        """The answer to `GET /models`; `ready` has the names of models on backends."""
        models = [
            _description(name, loaded)
            for name, loaded in self._loaded.items()
            if loaded.model in ready
        ]
        return _written({"models": models})

    def description(self, name: bytes) -> bytes | None:
        """The answer to `GET /models/NAME`; None where there is none of that name."""
        loaded = self._loaded.get(name)
        return None if loaded is None else _written(_description(name, loaded))


def _description(name: bytes, loaded: LoadedModel) -> dict[str, str]:
    return {"modelName": name.decode("latin-1"), "modelUrl": loaded.url}


def _written(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def read_load(body: bytes, target: bytes) -> tuple[bytes, LoadedModel]:
    """The name and the model that a load is about.

    Args:
        body: `{"model_name": ..., "url": ...}`.
        target: `X-Amzn-SageMaker-Target-Model`; empty where it is not given.

    Raises:
        ValueError: it cannot be read, with a text for the client.
    """
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("failed to parse the request JSON buffer") from None
    if not isinstance(content, dict):
        raise ValueError("failed to parse the request JSON buffer: it is no object")
    name, url = content.get("model_name", ""), content.get("url", "")
    if not isinstance(name, str) or not isinstance(url, str):
        raise ValueError("model_name and url must be strings")
    if not url.isprintable() or len(url.encode()) > _URL_BYTES:
        raise ValueError("url cannot be the place of a model")
    named = name.encode("utf-8", "surrogatepass")  # no such name is a segment
    model = target or named
    if not is_segment(named) or not is_segment(model):
        raise ValueError("model_name cannot be the name of a model")
    return named, LoadedModel(model, url)


def is_unloaded(index: bytes, model: bytes) -> bool:
    """Whether a repository index says that nothing of a model takes memory any more."""
    try:
        states = {each.get("state") for each in json.loads(index) if each["name"] == model.decode()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return True
    return not states & {"READY", "LOADING", "UNLOADING"}


def load_status(status: int, body: bytes) -> int:
    """What SageMaker is told of a load or unload that ended with `status`."""
    return 200 if status < 300 else error_status(body)
