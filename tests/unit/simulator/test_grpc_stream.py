from __future__ import annotations

from collections.abc import AsyncIterator

from lb.kserve import inference_pb2 as pb
from lb.simulator.grpc_infer import EMPTY_FINAL_RESPONSE, FINAL_RESPONSE
from lb.simulator.grpc_stream import InferStream
from lb.simulator.server import SimulatedTriton
from tests.unit.simulator.samples import repeat, request_for, sleep


async def answers_to(*requests: pb.ModelInferRequest) -> list[pb.ModelStreamInferResponse]:
    async def each() -> AsyncIterator[pb.ModelInferRequest]:
        for request in requests:
            yield request

    sent: list[pb.ModelStreamInferResponse] = []

    async def send(answer: pb.ModelStreamInferResponse) -> None:
        sent.append(answer)

    await InferStream(SimulatedTriton(speed=1e6)).run(each(), send)
    return sent


def ids(answers: list[pb.ModelStreamInferResponse]) -> list[str]:
    return [answer.infer_response.id for answer in answers]


async def test_ordinary_models_are_answered_in_the_order_of_requests() -> None:
    unknown = pb.ModelInferRequest(model_name="x", id="c")
    answers = await answers_to(sleep(30, "a"), sleep(0, "b"), unknown, sleep(0, "d"))
    assert ids(answers) == ["a", "b", "c", "d"]
    assert [answer.error_message for answer in answers] == [
        "",
        "",
        "Request for unknown model: 'x' is not found",
        "",
    ]
    assert answers[0].infer_response.parameters[FINAL_RESPONSE].bool_param


async def test_decoupled_answers_overtake_and_are_not_marked_final() -> None:
    answers = await answers_to(sleep(30, "slow"), repeat([7, 8], "fast"))
    assert ids(answers) == ["fast", "fast", "slow"]
    assert not answers[0].infer_response.parameters[FINAL_RESPONSE].bool_param


async def test_empty_final_response_is_sent_where_asked_for() -> None:
    request = repeat([], "a")
    request.parameters[EMPTY_FINAL_RESPONSE].bool_param = True
    (final,) = await answers_to(request)
    assert (final.infer_response.model_name, final.infer_response.model_version) == (
        "repeat_int32",
        "",
    )
    assert final.infer_response.parameters[FINAL_RESPONSE].bool_param


async def test_refused_decoupled_request_is_answered_with_its_id() -> None:
    (answer,) = await answers_to(request_for("repeat_int32", "a"))
    assert answer.infer_response.id == "a"
    assert "expected 3 inputs but got 0 inputs" in answer.error_message


async def test_stream_without_requests_ends() -> None:
    assert await answers_to() == []
