"""Names of models in messages and in JSON are replaced, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from lb.kserve.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from lb.kserve.names import renamed_answer, renamed_inside, renamed_json, renamed_request

TENSOR = b"\x01\x02\x03\x04" * 50


def request(**fields: str) -> ModelInferRequest:
    message = ModelInferRequest(id="7", raw_input_contents=[TENSOR], **fields)
    message.parameters["sequence_id"].int64_param = 3
    return message


def to_client(name: bytes) -> bytes:
    return b"detector" if name == b"detector_v2" else name


@pytest.mark.parametrize("version", ["", "3"])
def test_a_request_gets_another_model_and_version(version: str) -> None:
    text = request(model_name="detector").SerializeToString()
    renamed = renamed_request(text, len(text), b"detector_v2", version.encode())
    expected = request(model_name="detector_v2", model_version=version)
    assert ModelInferRequest.FromString(renamed) == expected


def test_of_repeated_names_none_is_left() -> None:
    text = request(model_name="detector").SerializeToString() + b"\x0a\x01x" + b"\x12\x019"
    renamed = renamed_request(text, len(text), b"m", b"")
    assert ModelInferRequest.FromString(renamed) == request(model_name="m")


@pytest.mark.parametrize("cut", [12, 40, 100])
def test_the_first_part_of_a_request_is_enough(cut: int) -> None:
    text = request(model_name="detector").SerializeToString()
    renamed = renamed_request(text[:cut], len(text), b"detector_v2", b"3") + text[cut:]
    expected = request(model_name="detector_v2", model_version="3")
    assert ModelInferRequest.FromString(renamed) == expected


def test_an_answer_gets_the_name_that_was_asked_for() -> None:
    answer = ModelInferResponse(
        model_name="detector_v2", model_version="1", id="7", raw_output_contents=[TENSOR]
    )
    text = answer.SerializeToString()
    renamed = renamed_answer(text[:30], len(text), to_client) + text[30:]
    answer.model_name = "detector"
    assert ModelInferResponse.FromString(renamed) == answer
    other = ModelInferResponse(model_name="other").SerializeToString()
    assert renamed_answer(other, len(other), to_client) is other


@pytest.mark.parametrize("error", ["", "it failed"])
@pytest.mark.parametrize("name", ["detector_v2", "detector_v2" * 20])
def test_an_answer_of_a_stream_gets_it_within(error: str, name: str) -> None:
    inner = ModelInferResponse(model_name=name, raw_output_contents=[TENSOR])
    answer = ModelStreamInferResponse(error_message=error, infer_response=inner)
    text = answer.SerializeToString()
    renamed = renamed_inside(text, len(text), 2, lambda _: b"detector")
    answer.infer_response.model_name = "detector"
    assert ModelStreamInferResponse.FromString(renamed) == answer


def test_what_is_no_message_is_not_changed() -> None:
    for text in (b"\xff" * 40, b"\x0a\x7fabc", b""):
        assert renamed_answer(text, len(text), to_client) == text


def test_json_gets_another_name_and_stays_as_it_is_otherwise() -> None:
    text = b'{"id":"model_name","model_name" : "detector_v2","model_version":"1","outputs":[]}'
    renamed = renamed_json(text, b"model_name", 1, to_client)
    assert renamed == text.replace(b"detector_v2", b"detector")


def test_another_models_name_stays_as_it_was_written() -> None:
    text = b'{"id":"1","model_name" : "\\u006fther","outputs":[]}'
    assert renamed_json(text, b"model_name", 1, to_client) == text


def test_a_name_within_a_tensor_is_not_the_models() -> None:
    text = b'{"outputs":[{"model_name":"detector_v2","data":["model_name","detector_v2"]}]}'
    assert renamed_json(text, b"model_name", 1, to_client) is None


def test_more_is_awaited_while_the_name_is_not_there() -> None:
    text = b'{"model_name":"detector_v2","model_version":"1"}'
    for size in range(len(text)):
        renamed = renamed_json(text[:size], b"model_name", 1, to_client)
        assert (renamed is None) == (size < text.index(b",")), size


def test_every_name_of_statistics_is_replaced() -> None:
    stats = {"model_stats": [{"name": "detector_v2", "version": v} for v in "12"]}
    renamed = renamed_json(json.dumps(stats).encode(), b"name", 3, to_client, all_of_them=True)
    assert renamed is not None
    assert [each["name"] for each in json.loads(renamed)["model_stats"]] == ["detector"] * 2


@pytest.mark.parametrize("name", ["", "other"])
def test_a_message_without_the_name_within_stays_as_it_is(name: str) -> None:
    answer = ModelStreamInferResponse(error_message="no")
    if name:
        answer.infer_response.model_name = name
    text = answer.SerializeToString()
    assert renamed_inside(text, len(text), 2, to_client) is text
