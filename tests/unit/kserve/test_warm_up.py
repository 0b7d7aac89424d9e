from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve.warm_up import WarmUpRequest, warm_up_request


def config(*inputs: dict[str, Any], **more: Any) -> str:
    return json.dumps({"name": "m", "max_batch_size": 8, "input": list(inputs), **more})


def tensor(data_type: str, *dims: int | str, name: str = "X", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def parts(made: WarmUpRequest | None) -> tuple[dict[str, Any], bytes]:
    assert made is not None
    return json.loads(made.body[: made.json_size]), made.body[made.json_size :]


def test_inputs_are_zeros_of_their_shapes_and_types() -> None:
    made = warm_up_request(
        config(
            tensor("TYPE_FP32", 3, -1, "2", name="A"),
            tensor("TYPE_FP16", 4, name="B"),
            tensor("TYPE_STRING", -1, name="C"),
            tensor("TYPE_INT64", name="D"),
        )
    )
    head, data = parts(made)
    assert [(each["name"], each["shape"], each["datatype"]) for each in head["inputs"]] == [
        ("A", [1, 3, 1, 2], "FP32"),
        ("B", [1, 4], "FP16"),
        ("C", [1, 1], "BYTES"),
        ("D", [1], "INT64"),
    ]
    assert [each["parameters"]["binary_data_size"] for each in head["inputs"]] == [24, 8, 4, 8]
    assert data == bytes(44)
    assert head["parameters"] == {"binary_data_output": True}


def test_models_that_do_not_batch_have_no_batch() -> None:
    head, _ = parts(warm_up_request(config(tensor("TYPE_INT32", 16), max_batch_size=0)))
    assert head["inputs"][0]["shape"] == [16]


def test_optional_inputs_are_left_out_and_shape_tensors_not_batched() -> None:
    head, _ = parts(
        warm_up_request(
            config(
                tensor("TYPE_INT32", 16, name="A", optional=True),
                tensor("TYPE_INT32", 2, name="B", is_shape_tensor=True),
            )
        )
    )
    assert [(each["name"], each["shape"]) for each in head["inputs"]] == [("B", [2])]


@pytest.mark.parametrize(
    "text",
    [
        config(tensor("TYPE_INT32", 1), sequence_batching={}),
        config(tensor("TYPE_INT32", 1), model_transaction_policy={"decoupled": True}),
        config(),
        config(tensor("TYPE_FP64", 2**14, 2**14)),
    ],
)
def test_some_models_cannot_be_asked(text: str) -> None:
    assert warm_up_request(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "no JSON",
        config(tensor("TYPE_NEW", 1)),
        config({"name": "X"}),
        '{"input": [7]}',
        '{"max_batch_size": [1], "input": []}',
        config(tensor("TYPE_INT8", "many")),
        config(tensor("TYPE_INT8", 1)).replace("[1]", "[1e999]"),
        "[" * 100_000,
    ],
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a model configuration"):
        warm_up_request(text)
