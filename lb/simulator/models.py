"""The models that a simulated Triton serves, and what it publishes about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from lb.kserve import inference_pb2 as pb
from lb.kserve.datatypes import BYTES
from lb.simulator.errors import invalid
from lb.simulator.tensors import Tensor, make_tensor

VERSION: Final = "1"
"""Every simulated model has this one version."""

SLEEP_PARAMETER: Final = "sleep_ms"

Parameter = bool | int | float | str
Respond = Callable[[tuple[Tensor, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference, whichever protocol it came by."""

    model: str
    inputs: Mapping[str, Tensor]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    """Names of the outputs asked for; empty for all."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output that a model declares; -1 is any length."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One simulated model."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    run: Callable[[InferRequest, Respond], Awaitable[None]]
    """Calls `respond` once per response: exactly once unless the model is decoupled."""
    max_batch_size: int = 0
    decoupled: bool = False
    any_rank: bool = False
    """Takes inputs of any shape. No Triton model can; echoing ones may here."""
    instances: int = 4
    """Inferences that run at once; more wait in the model's queue."""
    compute_s: float = 0.0
    """How long an inference takes at speed 1, beyond what `run` waits by itself."""

    def shape_of(self, spec: TensorSpec) -> list[int]:
        """Return the declared shape with its batch dimension, where there is one."""
        return [-1, *spec.dims] if self.max_batch_size else list(spec.dims)


async def _add_and_subtract(request: InferRequest, respond: Respond) -> None:
    first, second = request.inputs["INPUT0"], request.inputs["INPUT1"]
    pairs = list(zip(_integers(first), _integers(second), strict=True))
    sums = make_tensor("OUTPUT0", "INT32", [_wrapped(a + b) for a, b in pairs])
    differences = make_tensor("OUTPUT1", "INT32", [_wrapped(a - b) for a, b in pairs])
    await respond(
        (
            Tensor("OUTPUT0", "INT32", first.shape, sums.data),
            Tensor("OUTPUT1", "INT32", first.shape, differences.data),
        )
    )


async def _echo(request: InferRequest, respond: Respond) -> None:
    tensor = request.inputs["INPUT0"]
    await respond((Tensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data),))


async def _sleep_and_echo(request: InferRequest, respond: Respond) -> None:
    first = _integers(request.inputs["INPUT0"])[:1]
    milliseconds = request.parameters.get(SLEEP_PARAMETER, sum(first))
    if not isinstance(milliseconds, int):
        raise invalid(f"parameter '{SLEEP_PARAMETER}' must be an integer")
    await asyncio.sleep(milliseconds / 1000)
    await _echo(request, respond)


async def _repeat(request: InferRequest, respond: Respond) -> None:
    """Answer each element of IN after its DELAY, then hold the request for WAIT (milliseconds)."""
    delays = _integers(request.inputs["DELAY"])
    for index, value in enumerate(_integers(request.inputs["IN"])):
        if index < len(delays):
            await asyncio.sleep(delays[index] / 1000)
        await respond((make_tensor("OUT", "INT32", [value]), make_tensor("IDX", "UINT32", [index])))
    await asyncio.sleep(sum(_integers(request.inputs["WAIT"])) / 1000)


def _integers(tensor: Tensor) -> Sequence[int]:
    return cast("list[int]", tensor.values)


def _wrapped(value: int) -> int:
    """Return `value` as INT32 arithmetic leaves it."""
    return (value + 2**31) % 2**32 - 2**31


def _identity(name: str, datatype: str) -> Model:
    return Model(
        name=name,
        inputs=(TensorSpec("INPUT0", datatype, (-1,)),),
        outputs=(TensorSpec("OUTPUT0", datatype, (-1,)),),
        run=_echo,
        any_rank=True,
    )


_ALL: Final = (
    _identity("identity_bytes", BYTES),
    _identity("identity_fp32", "FP32"),
    Model(
        name="repeat_int32",
        inputs=(
            TensorSpec("IN", "INT32", (-1,)),
            TensorSpec("DELAY", "UINT32", (-1,)),
            TensorSpec("WAIT", "UINT32", (1,)),
        ),
        outputs=(TensorSpec("OUT", "INT32", (1,)), TensorSpec("IDX", "UINT32", (1,))),
        run=_repeat,
        decoupled=True,
        instances=64,
    ),
    Model(
        name="simple",
        inputs=(TensorSpec("INPUT0", "INT32", (16,)), TensorSpec("INPUT1", "INT32", (16,))),
        outputs=(TensorSpec("OUTPUT0", "INT32", (16,)), TensorSpec("OUTPUT1", "INT32", (16,))),
        run=_add_and_subtract,
        max_batch_size=8,
        compute_s=0.002,
    ),
    Model(
        name="sleeper",
        inputs=(TensorSpec("INPUT0", "INT32", (-1,)),),
        outputs=(TensorSpec("OUTPUT0", "INT32", (-1,)),),
        run=_sleep_and_echo,
        instances=1024,
    ),
)
MODELS: Final[Mapping[str, Model]] = {model.name: model for model in _ALL}
"""Every model by name, in alphabetical order."""


def metadata_of(model: Model) -> pb.ModelMetadataResponse:
    """Return what ModelMetadata says of a model."""

    def describe(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
        return [
            pb.ModelMetadataResponse.TensorMetadata(
                name=spec.name, datatype=spec.datatype, shape=model.shape_of(spec)
            )
            for spec in specs
        ]

    return pb.ModelMetadataResponse(
        name=model.name,
        versions=[VERSION],
        platform="python",
        inputs=describe(model.inputs),
        outputs=describe(model.outputs),
    )


def config_of(model: Model) -> pb.ModelConfig:
    """Return what ModelConfig says of a model."""

    def data_type(spec: TensorSpec) -> str:
        return "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}"

    config = pb.ModelConfig(
        name=model.name,
        backend="python",
        version_policy=pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1)),
        max_batch_size=model.max_batch_size,
        input=[
            pb.ModelInput(name=s.name, data_type=data_type(s), dims=s.dims) for s in model.inputs
        ],
        output=[
            pb.ModelOutput(name=s.name, data_type=data_type(s), dims=s.dims) for s in model.outputs
        ],
        instance_group=[
            pb.ModelInstanceGroup(
                name=f"{model.name}_0",
                kind=pb.ModelInstanceGroup.KIND_CPU,
                count=model.instances,
            )
        ],
        default_model_filename="model.py",
    )
    if model.decoupled:
        config.model_transaction_policy.decoupled = True
    return config
