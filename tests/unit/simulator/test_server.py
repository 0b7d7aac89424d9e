from __future__ import annotations

import asyncio

import pytest

from lb.simulator.errors import ErrorKind, TritonError
from lb.simulator.gpu import MODEL_BYTES, SimulatedGpu
from lb.simulator.models import MODELS, InferRequest
from lb.simulator.server import SimulatedTriton
from lb.simulator.tensors import Tensor, make_tensor

ADD = {
    "INPUT0": Tensor("INPUT0", "INT32", (2, 16), bytes(128)),
    "INPUT1": Tensor("INPUT1", "INT32", (2, 16), bytes(128)),
}


def asleep(milliseconds: int) -> InferRequest:
    return InferRequest("sleeper", {"INPUT0": make_tensor("INPUT0", "INT32", [milliseconds])})


class Responses(list[tuple[Tensor, ...]]):
    async def __call__(self, tensors: tuple[Tensor, ...]) -> None:
        self.append(tensors)


@pytest.fixture
def triton() -> SimulatedTriton:
    return SimulatedTriton(speed=1e6)


@pytest.mark.parametrize(
    ("name", "version", "fault", "text"),
    [
        ("x", "", ErrorKind.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        (
            "simple",
            "2",
            ErrorKind.NOT_FOUND,
            "Request for unknown model: 'simple' version 2 is not found",
        ),
        (
            "simple",
            "x",
            ErrorKind.INVALID_ARGUMENT,
            "failed to get model version from specified version",
        ),
    ],
)
def test_unknown_models_are_refused_in_tritons_words(
    triton: SimulatedTriton, name: str, version: str, fault: ErrorKind, text: str
) -> None:
    with pytest.raises(TritonError) as caught:
        triton.find(name, version)
    assert caught.value.fault is fault
    assert caught.value.text.startswith(text)


def test_model_is_found_by_name_with_or_without_its_version(triton: SimulatedTriton) -> None:
    assert triton.find("simple") is triton.find("simple", "1") is MODELS["simple"]


def test_unknown_models_are_not_ready(triton: SimulatedTriton) -> None:
    assert triton.is_model_ready("simple", "1")
    assert not triton.is_model_ready("simple", "2")
    assert not triton.is_model_ready("x")
    with pytest.raises(TritonError):
        triton.is_model_ready("simple", "x")


def test_statistics_are_of_all_models_or_of_the_named_one(triton: SimulatedTriton) -> None:
    assert [m.name for m in triton.statistics().model_stats] == sorted(MODELS)
    assert [m.name for m in triton.statistics("simple", "1").model_stats] == ["simple"]


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("x", "", "requested model 'x' is not available"),
        ("simple", "7", "requested model version is not available for model 'simple'"),
    ],
)
def test_statistics_of_unknown_models_are_refused(
    triton: SimulatedTriton, name: str, version: str, text: str
) -> None:
    with pytest.raises(TritonError) as caught:
        triton.statistics(name, version)
    assert caught.value.text == text


async def test_inference_is_answered_and_counted_by_batch(triton: SimulatedTriton) -> None:
    responses = Responses()
    await triton.infer(InferRequest("simple", ADD), responses)
    assert [[tensor.name for tensor in tensors] for tensors in responses] == [
        ["OUTPUT0", "OUTPUT1"]
    ]
    counters = triton.counters["simple"]
    assert (counters.success, counters.batch, counters.failure) == (1, 2, 0)
    assert counters.last_inference_ms > 0
    assert counters.request_ns >= counters.compute_ns > 0


async def test_refused_request_is_not_counted(triton: SimulatedTriton) -> None:
    with pytest.raises(TritonError):
        await triton.infer(InferRequest("simple", {}), Responses())
    assert triton.counters["simple"].success == triton.counters["simple"].failure == 0


async def test_model_that_fails_is_counted(triton: SimulatedTriton) -> None:
    request = asleep(0)
    broken = InferRequest("sleeper", request.inputs, parameters={"sleep_ms": "x"})
    with pytest.raises(TritonError):
        await triton.infer(broken, Responses())
    assert triton.counters["sleeper"].failure == 1


async def test_cancelled_request_frees_its_instance_and_is_counted(triton: SimulatedTriton) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(triton.infer(asleep(60_000), Responses()), 0.001)
    assert triton.counters["sleeper"].canceled == 1
    await triton.infer(asleep(0), Responses())
    assert triton.counters["sleeper"].success == 1


async def test_request_without_a_free_instance_waits_in_the_queue() -> None:
    triton = SimulatedTriton(speed=1e-3)  # one inference takes two seconds
    instances = MODELS["simple"].instances
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(triton.infer(InferRequest("simple", ADD), Responses()))
            for _ in range(instances + 2)
        ]
        for _ in range(3):  # loop turns, for the tasks to get as far as they can
            await asyncio.sleep(0)
        assert triton.counters["simple"].pending == 2
        for task in tasks:
            task.cancel()
    assert triton.counters["simple"].pending == 0
    assert triton.counters["simple"].canceled == instances + 2


def test_model_control_is_refused_as_by_a_triton_in_its_default_mode(
    triton: SimulatedTriton,
) -> None:
    for control in (triton.load, triton.unload):
        with pytest.raises(TritonError, match="explicit model load / unload") as refused:
            control("simple")
        assert refused.value.fault is ErrorKind.UNAVAILABLE


def test_models_are_loaded_on_request_and_take_memory() -> None:
    gpu = SimulatedGpu("GPU-1")
    used = gpu.memory_used
    triton = SimulatedTriton(("simple", "sleeper"), gpu=gpu, is_explicit=True)
    assert not triton.is_model_ready("simple")
    for _ in range(2):
        triton.load("simple")
    states = {each.name: each.state for each in triton.index().models}
    assert states == {"simple": "READY", "sleeper": "UNAVAILABLE"}
    assert triton.is_model_ready("simple")
    assert gpu.memory_used == used + MODEL_BYTES
    with pytest.raises(TritonError, match="failed to load 'other'"):
        triton.load("other")
    for name in ("simple", "simple", "other"):
        triton.unload(name)
    assert not triton.is_model_ready("simple")
    assert gpu.memory_used == used
