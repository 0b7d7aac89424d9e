from __future__ import annotations

import asyncio

import pytest

from lb.kserve import inference_pb2 as pb
from lb.simulator.errors import TritonError
from lb.simulator.models import (
    MODELS,
    SLEEP_PARAMETER,
    InferRequest,
    Parameter,
    config_of,
    metadata_of,
)
from lb.simulator.tensors import Tensor, make_tensor


async def run(name: str, *inputs: Tensor, **parameters: Parameter) -> list[tuple[Tensor, ...]]:
    responses: list[tuple[Tensor, ...]] = []

    async def respond(tensors: tuple[Tensor, ...]) -> None:
        responses.append(tensors)

    request = InferRequest(name, {tensor.name: tensor for tensor in inputs}, parameters=parameters)
    await MODELS[name].run(request, respond)
    return responses


async def test_simple_adds_and_subtracts_in_the_shape_of_its_input() -> None:
    first = Tensor("INPUT0", "INT32", (1, 2), make_tensor("", "INT32", [5, 2**31 - 1]).data)
    second = Tensor("INPUT1", "INT32", (1, 2), make_tensor("", "INT32", [3, 1]).data)
    [(sums, differences)] = await run("simple", first, second)
    assert (sums.name, sums.shape, sums.values) == ("OUTPUT0", (1, 2), [8, -(2**31)])
    assert (differences.name, differences.values) == ("OUTPUT1", [2, 2**31 - 2])


async def test_sleeper_echoes_what_it_was_given() -> None:
    [(echo,)] = await run("sleeper", make_tensor("INPUT0", "INT32", [0, 9]))
    assert echo == make_tensor("OUTPUT0", "INT32", [0, 9])


async def test_sleeper_sleeps_for_its_first_element() -> None:
    work = run("sleeper", make_tensor("INPUT0", "INT32", [60_000]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, 0.001)


async def test_sleeper_lets_the_parameter_win_over_its_input() -> None:
    given = make_tensor("INPUT0", "INT32", [60_000])
    assert await run("sleeper", given, **{SLEEP_PARAMETER: 0})


async def test_sleeper_refuses_a_parameter_that_is_no_integer() -> None:
    with pytest.raises(TritonError):
        await run("sleeper", make_tensor("INPUT0", "INT32", [0]), **{SLEEP_PARAMETER: "x"})


async def test_repeat_answers_once_per_element() -> None:
    responses = await run(
        "repeat_int32",
        make_tensor("IN", "INT32", [7, 8]),
        make_tensor("DELAY", "UINT32", [0]),
        make_tensor("WAIT", "UINT32", [0]),
    )
    assert [[tensor.values for tensor in tensors] for tensors in responses] == [
        [[7], [0]],
        [[8], [1]],
    ]


def test_metadata_has_the_batch_dimension_only_where_there_is_one() -> None:
    simple, identity = metadata_of(MODELS["simple"]), metadata_of(MODELS["identity_bytes"])
    assert [list(tensor.shape) for tensor in simple.inputs] == [[-1, 16], [-1, 16]]
    assert [(t.name, t.datatype, list(t.shape)) for t in identity.outputs] == [
        ("OUTPUT0", "BYTES", [-1])
    ]


def test_config_tells_batching_types_and_transaction_policy() -> None:
    simple, repeat = config_of(MODELS["simple"]), config_of(MODELS["repeat_int32"])
    assert (simple.max_batch_size, list(simple.input[0].dims)) == (8, [16])
    assert simple.input[0].data_type == pb.TYPE_INT32
    assert config_of(MODELS["identity_bytes"]).input[0].data_type == pb.TYPE_STRING
    assert not simple.HasField("model_transaction_policy")
    assert repeat.model_transaction_policy.decoupled
