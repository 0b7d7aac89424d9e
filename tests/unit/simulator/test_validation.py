from __future__ import annotations

import pytest

from lb.simulator.errors import ErrorKind, TritonError
from lb.simulator.models import MODELS, InferRequest
from lb.simulator.tensors import Tensor
from lb.simulator.validation import check

NUMBERS = bytes(64)
FIRST = Tensor("INPUT0", "INT32", (1, 16), NUMBERS)
SECOND = Tensor("INPUT1", "INT32", (1, 16), NUMBERS)


def refusal(*inputs: Tensor, model: str = "simple", outputs: tuple[str, ...] = ()) -> str:
    request = InferRequest(model, {tensor.name: tensor for tensor in inputs}, outputs=outputs)
    with pytest.raises(TritonError) as caught:
        check(MODELS[model], request)
    assert caught.value.fault is ErrorKind.INVALID_ARGUMENT
    return caught.value.text


def of_shape(name: str, *shape: int) -> Tensor:
    return Tensor(name, "INT32", shape, NUMBERS)


def test_fitting_request_passes() -> None:
    request = InferRequest("simple", {"INPUT0": FIRST, "INPUT1": SECOND}, outputs=("OUTPUT1",))
    check(MODELS["simple"], request)


def test_missing_input_is_named() -> None:
    assert refusal(FIRST) == (
        "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'simple'."
        " Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']."
        " Please provide all required input(s)."
    )


def test_unknown_input_is_named() -> None:
    other = Tensor("OTHER", "INT32", (1, 16), NUMBERS)
    assert refusal(FIRST, other) == "unexpected inference input 'OTHER' for model 'simple'"


def test_unknown_output_is_named() -> None:
    text = refusal(FIRST, SECOND, outputs=("NOPE",))
    assert text == "unexpected inference output 'NOPE' for model 'simple'"


def test_other_datatype_is_refused() -> None:
    floats = Tensor("INPUT0", "FP32", (1, 16), NUMBERS)
    assert "data-type is 'FP32', but model 'simple' expects 'INT32'" in refusal(floats, SECOND)


@pytest.mark.parametrize("shape", [(9, 16), (16,)], ids=["too many", "no batch dimension"])
def test_batch_over_the_limit_is_refused(shape: tuple[int, ...]) -> None:
    text = refusal(of_shape("INPUT0", *shape), of_shape("INPUT1", *shape))
    assert "inference request batch-size must be <= 8 for 'simple'" in text


def test_batches_that_differ_are_refused() -> None:
    two = Tensor("INPUT1", "INT32", (2, 16), NUMBERS * 2)
    assert "input 'INPUT1' batch size does not match other inputs" in refusal(FIRST, two)


@pytest.mark.parametrize("shape", [(1, 8), (1, 16, 1), (1, -16)])
def test_other_shape_is_refused(shape: tuple[int, ...]) -> None:
    text = refusal(of_shape("INPUT0", *shape), SECOND)
    got = ",".join(map(str, shape))
    assert (
        f"unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [{got}]"
        in text
    )
    assert "max_batch_size" in text


def test_data_of_another_size_than_the_shape_is_refused() -> None:
    short = Tensor("INPUT0", "INT32", (1, 16), b"\0" * 4)
    assert "input byte size mismatch for input 'INPUT0'" in refusal(short, SECOND)
    assert "Expected 64, got 4" in refusal(short, SECOND)


@pytest.mark.parametrize(
    ("data", "what"), [(b"\1\0\0\0a", "expected 2 string elements"), (b"\1", "incomplete string")]
)
def test_strings_that_do_not_fill_the_shape_are_refused(data: bytes, what: str) -> None:
    tensor = Tensor("INPUT0", "BYTES", (2,), data)
    assert what in refusal(tensor, model="identity_bytes")


def test_identity_takes_any_rank_but_no_negative_length() -> None:
    zeros = Tensor("INPUT0", "FP32", (2, 1, 2), bytes(16))
    check(MODELS["identity_fp32"], InferRequest("identity_fp32", {"INPUT0": zeros}))
    negative = Tensor("INPUT0", "FP32", (-2, -2), bytes(16))
    assert "unexpected shape" in refusal(negative, model="identity_fp32")
