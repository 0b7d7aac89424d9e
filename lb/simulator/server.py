"""The simulated Triton itself: which models it serves, and running inferences on them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Final

from lb.kserve import inference_pb2 as pb
from lb.simulator.errors import ErrorKind, TritonError, invalid
from lb.simulator.gpu import MODEL_BYTES, SimulatedGpu
from lb.simulator.models import MODELS, VERSION, InferRequest, Model, Respond
from lb.simulator.statistics import ModelCounters, statistics_of
from lb.simulator.tensors import Tensor
from lb.simulator.validation import check

NAME: Final = "triton"
TRITON_VERSION: Final = "2.51.0"
"""The release whose answers the simulator follows."""

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)

TRACE_SETTINGS: Final[Mapping[str, str]] = {
    "trace_level": "OFF",
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG_SETTINGS: Final[Mapping[str, bool | int | str]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


class SimulatedTriton:
    """Serves some of the simulated models, `speed` times as fast as they are by themselves."""

    def __init__(
        self,
        models: Iterable[str] = tuple(MODELS),
        speed: float = 1.0,
        gpu: SimulatedGpu | None = None,
        *,
        is_explicit: bool = False,
    ) -> None:
        """
        Args:
            models: its repository.
            speed: see above.
            gpu: what executions run on, and what loaded models take memory of.
            is_explicit: models are loaded on request, and none at the start.
        """
        self._speed = speed
        self._is_explicit = is_explicit
        self.gpu = gpu
        """What executions run on, which others may use as well."""
        self._models = {name: MODELS[name] for name in sorted(models)}
        self._loaded = set() if is_explicit else set(self._models)
        self._streams: list[set[str]] = []
        """The loaded models that each open stream has asked for. As a Triton does, this one keeps
        these until the stream ends: until then their unload is under way."""
        self.counters = {name: ModelCounters(name) for name in self._models}
        self._free = {
            name: asyncio.Semaphore(model.instances) for name, model in self._models.items()
        }

    def find(self, name: str, version: str = "") -> Model:
        """Return the model of that name; an empty version is any.

        Raises:
            TritonError: there is none.
        """
        if version and not re.fullmatch(r"[0-9]+", version):
            raise invalid(
                f"failed to get model version from specified version string '{version}'"
                " (details: stol), version should be an integral value > 0"
            )
        model = self._models.get(name)
        if model is None or name not in self._loaded:
            raise TritonError(
                ErrorKind.NOT_FOUND, f"Request for unknown model: '{name}' is not found"
            )
        if version not in ("", VERSION):
            raise TritonError(
                ErrorKind.NOT_FOUND,
                f"Request for unknown model: '{name}' version {version} is not found",
            )
        return model

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether that version of that model can be inferred; False for an unknown one.

        Raises:
            TritonError: the version is not a number.
        """
        try:
            self.find(name, version)
        except TritonError as error:
            if error.fault is ErrorKind.NOT_FOUND:
                return False
            raise
        return True

    def index(self) -> pb.RepositoryIndexResponse:
        """Return the list of models, also where only ready ones are asked for."""
        models = [
            pb.RepositoryIndexResponse.ModelIndex(
                name=name,
                version=VERSION,
                state=self._state(name),
            )
            for name in self._models
        ]
        return pb.RepositoryIndexResponse(models=models)

    def _state(self, name: str) -> str:
        if name in self._loaded:
            return "READY"
        is_kept = any(name in models for models in self._streams)
        return "UNLOADING" if is_kept else "UNAVAILABLE"

    def stream_began(self, models: set[str]) -> None:
        """A stream is open, which adds the models that it asks for."""
        self._streams.append(models)

    def stream_ended(self, models: set[str]) -> None:
        """A stream that had asked for these models is open no more."""
        self._streams = [each for each in self._streams if each is not models]

    def load(self, name: str) -> None:
        """Load a model.

        Raises:
            TritonError: there is none, or models are not loaded on request.
        """
        self._check_explicit()
        if name not in self._models:
            text = f"failed to load '{name}', failed to poll from model repository"
            raise TritonError(ErrorKind.INTERNAL, text)
        if name not in self._loaded:
            self._loaded.add(name)
            if self.gpu is not None:
                self.gpu.memory_used += MODEL_BYTES

    def unload(self, name: str) -> None:
        """Unload a model. What it runs goes on; that there is none is no error.

        Raises:
            TritonError: models are not loaded on request.
        """
        self._check_explicit()
        if name in self._loaded:
            self._loaded.remove(name)
            if self.gpu is not None:
                self.gpu.memory_used -= MODEL_BYTES

    def _check_explicit(self) -> None:
        if not self._is_explicit:
            text = "explicit model load / unload is not allowed if polling is enabled"
            raise TritonError(ErrorKind.UNAVAILABLE, text)

    def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        """Return the statistics of one model, or of all for an empty name.

        Raises:
            TritonError: there is no such model or version.
        """
        if not name:
            counted = list(self.counters.values())
        elif name not in self._models:
            raise invalid(f"requested model '{name}' is not available")
        elif not self.is_model_ready(name, version):
            raise invalid(f"requested model version is not available for model '{name}'")
        else:
            counted = [self.counters[name]]
        return pb.ModelStatisticsResponse(model_stats=map(statistics_of, counted))

    async def infer(self, request: InferRequest, respond: Respond) -> None:
        """Check the request, wait for an instance, run the model, count.

        Raises:
            TritonError: the request is refused; `respond` was not called.
            ConnectionError: `respond` raised it.
        """
        model = self.find(request.model, request.version)
        check(model, request)
        counters = self.counters[model.name]
        counters.last_inference_ms = time.time_ns() // 1_000_000
        arrived = time.monotonic_ns()
        try:
            queue_ns = await self._run(model, request, respond)
        except (asyncio.CancelledError, ConnectionError):  # the client cancelled, or is gone
            counters.canceled += 1
            raise
        except TritonError:
            counters.failed(total_ns=time.monotonic_ns() - arrived)
            raise
        batch = next(iter(request.inputs.values())).shape[0] if model.max_batch_size else 1
        counters.succeeded(batch=batch, queue_ns=queue_ns, total_ns=time.monotonic_ns() - arrived)

    async def _run(self, model: Model, request: InferRequest, respond: Respond) -> int:
        """Run the model in its turn; return how many nanoseconds it waited for that."""
        counters = self.counters[model.name]
        free = self._free[model.name]
        arrived = time.monotonic_ns()
        counters.pending += 1
        try:
            await free.acquire()
        finally:
            counters.pending -= 1
        queue_ns = time.monotonic_ns() - arrived
        try:
            with self.gpu.used() if self.gpu is not None else nullcontext():
                if model.compute_s:
                    await asyncio.sleep(model.compute_s / self._speed)
                await model.run(request, _only(request.outputs, respond))
        finally:
            free.release()
        return queue_ns


def _only(wanted: tuple[str, ...], respond: Respond) -> Respond:
    """Return a `respond` that passes on the outputs asked for, in the model's order."""
    if not wanted:
        return respond

    async def respond_with_wanted(tensors: tuple[Tensor, ...]) -> None:
        await respond(tuple(tensor for tensor in tensors if tensor.name in wanted))

    return respond_with_wanted
