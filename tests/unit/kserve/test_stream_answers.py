"""What answers on a stream say of their requests, and errors of our own."""

from __future__ import annotations

import gzip

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.stream_answers import (
    ANSWER_HEAD_BYTES,
    AnswerNames,
    answer_names,
    error_answer,
    error_text,
)
from lb.wire.grpc.message import frame_message


def result(model: str = "m", request_id: str = "i", **more: object) -> bytes:
    response = pb.ModelInferResponse(model_name=model, model_version="1", id=request_id)
    answer = pb.ModelStreamInferResponse(infer_response=response, **more)
    return frame_message(answer.SerializeToString())


def test_a_result_names_its_model_and_request() -> None:
    assert answer_names(result()) == AnswerNames(b"m", b"i")
    assert answer_names(result("", "")) == AnswerNames()
    assert answer_names(result(error_message="late")) == AnswerNames(b"m", b"i")


def test_names_are_found_as_soon_as_they_are_there() -> None:
    stream = result("model", "identity")
    found = [answer_names(stream[:size]) for size in range(len(stream) + 1)]
    assert found[0] is None
    known = [names for names in found if names is not None]
    assert set(known) == {AnswerNames(b"model", b"identity")}


@pytest.mark.parametrize(
    "message",
    [b"", b"\x0a\x05hello", b"\xff\xff", b"\x12\x7f"],
    ids=["nothing", "only an error", "no message", "cut off"],
)
def test_an_answer_without_names_has_none(message: bytes) -> None:
    assert answer_names(frame_message(message)) == AnswerNames()


def test_names_behind_too_long_an_error_are_not_waited_for() -> None:
    stream = result(error_message="x" * ANSWER_HEAD_BYTES)
    assert answer_names(stream[:100]) is None
    assert answer_names(stream[:ANSWER_HEAD_BYTES]) == AnswerNames()


def test_compressed_answers_are_inflated_when_they_are_complete() -> None:
    packed = gzip.compress(result()[5:])
    stream = b"\1" + len(packed).to_bytes(4, "big") + packed
    assert answer_names(stream[:-1]) is None
    assert answer_names(stream) == AnswerNames(b"m", b"i")


def test_our_errors_look_like_those_of_requests_that_triton_does_not_run() -> None:
    stream = error_answer(b"77", "no more")
    answer = pb.ModelStreamInferResponse.FromString(stream[5:])
    assert stream[:5] == b"\0" + (len(stream) - 5).to_bytes(4, "big")
    assert answer.error_message == "no more"
    assert answer.infer_response == pb.ModelInferResponse(id="77")
    assert b"\xff" not in error_answer(b"\xff", "x")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (result("", "", error_message="it failed"), "it failed"),
        (result(error_message="über"), "über"),
        (result(), ""),
        (frame_message(b""), ""),
        (frame_message(b"\x0a\x05ab"), ""),
        (b"", ""),
    ],
)
def test_texts_of_errors(message: bytes, text: str) -> None:
    assert error_text(message) == text
