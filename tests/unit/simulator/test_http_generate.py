from __future__ import annotations

import pytest

from lb.simulator import http_generate
from lb.simulator.errors import TritonError
from lb.simulator.models import MODELS, InferRequest
from lb.simulator.tensors import make_tensor


def test_keys_that_name_inputs_are_tensors_and_others_are_parameters() -> None:
    body = b'{"id":"7","IN":[4,5],"DELAY":0,"WAIT":0,"more":"x","object":{}}'
    request = http_generate.parse(MODELS["repeat_int32"], "1", body)
    assert request.inputs["IN"] == make_tensor("IN", "INT32", [4, 5])
    assert request.inputs["DELAY"] == make_tensor("DELAY", "UINT32", [0])
    assert (request.id, request.version) == ("7", "1")
    assert request.parameters == {"more": "x"}


def test_model_that_batches_gets_a_batch_of_one() -> None:
    body = b'{"INPUT0":[1,2]}'
    assert http_generate.parse(MODELS["simple"], "", body).inputs["INPUT0"].shape == (1, 2)


def test_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(TritonError):
        http_generate.parse(MODELS["simple"], "", b"{x")


def test_answer_has_scalars_for_single_elements_and_sorted_keys() -> None:
    tensors = [make_tensor("Z", "INT32", [4]), make_tensor("A", "INT32", [1, 2])]
    assert http_generate.render(InferRequest("m", {}, id="7"), tensors) == (
        b'{"A":[1,2],"Z":4,"id":"7","model_name":"m","model_version":"1"}'
    )
