"""Streams: `ModelStreamInfer` with NVIDIA's clients, generate and generate_stream."""

from __future__ import annotations

import json
import queue
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.triton.raw_http import RawConnection, ask_once, message
from tests.triton.target import WAIT_S, Target
from tests.triton.tensors import check_sum_and_difference, numbers, pair, repeat

MANY = 300


class Stream:
    """NVIDIA's callback API as a queue of answers."""

    def __init__(self, client: grpcclient.InferenceServerClient) -> None:
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(self, model: str, inputs: list[Any], request_id: str = "") -> None:
        self.client.async_stream_infer(
            model, inputs, request_id=request_id, enable_empty_final_response=True
        )

    def next(self) -> tuple[Any, Any]:
        """The next answer and error, one of them None."""
        return self._arrived.get(timeout=WAIT_S)

    def result(self) -> Any:
        """The next answer, which must not be an error."""
        result, error = self.next()
        assert error is None
        return result


def is_final(result: Any) -> bool:
    final: bool = result.get_response().parameters["triton_final_response"].bool_param
    return final


def test_decoupled_model_answers_many_times_and_then_says_so(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    stream.send("repeat_int32", repeat(grpcclient, [5, 6, 7], 0))
    assert [stream.result().as_numpy("OUT").item() for _ in range(3)] == [5, 6, 7]
    last = stream.result()
    assert is_final(last)
    assert last.as_numpy("OUT") is None


def test_stream_of_many_requests_is_answered_in_order(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    for seed in range(MANY):
        stream.send("simple", pair(grpcclient, numbers(seed)), str(seed))
    for seed in range(MANY):
        result = stream.result()
        assert result.get_response().id == str(seed)
        check_sum_and_difference(result, numbers(seed))


def test_decoupled_requests_share_a_stream_and_keep_their_own_order(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    for number in range(20):
        values = list(range(number, number + 5))
        stream.send("repeat_int32", repeat(grpcclient, values, 2), f"shared-{number}")
    received: dict[str, list[int]] = defaultdict(list)
    finished = 0
    while finished < 20:
        result = stream.result()
        if is_final(result):
            finished += 1
        else:
            received[result.get_response().id].append(result.as_numpy("OUT").item())
    assert received == {f"shared-{n}": list(range(n, n + 5)) for n in range(20)}


def test_error_of_one_request_leaves_the_stream_open(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    stream.send("nosuch", pair(grpcclient, numbers()))
    stream.send("simple", pair(grpcclient, numbers()))
    _, error = stream.next()
    assert "unknown model: 'nosuch'" in error.message()
    check_sum_and_difference(stream.result(), numbers())


def test_grpc_responses_arrive_as_they_are_made(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    stream.send("repeat_int32", repeat(grpcclient, [1, 2, 3, 4], 250))
    first = stream.result()
    seen_at = time.monotonic()
    last = [stream.result() for _ in range(3)][-1]
    assert first.as_numpy("SENT_AT").item() < seen_at < last.as_numpy("SENT_AT").item()


def test_request_on_an_open_stream_is_answered_while_the_stream_stays_open(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    stream = Stream(grpc_client)
    for seed in range(5):
        stream.send("simple", pair(grpcclient, numbers(seed)))
        check_sum_and_difference(stream.result(), numbers(seed))


async def test_grpc_asyncio_client_streams(target: Target) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for first in (10, 20):
            inputs = repeat(grpcclient, [first, first + 1], 0)
            yield {"model_name": "repeat_int32", "inputs": inputs, "request_id": f"aio-{first}"}

    received = set()
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            received.add((result.get_response().id, result.as_numpy("OUT").item()))
    assert received == {("aio-10", 10), ("aio-10", 11), ("aio-20", 20), ("aio-20", 21)}


def test_unary_infer_of_a_decoupled_model_is_refused(
    http_client: httpclient.InferenceServerClient, grpc_client: grpcclient.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException, match="decoupled"):
        http_client.infer("repeat_int32", repeat(httpclient, [1], 0))
    with pytest.raises(InferenceServerException, match="decoupled"):
        grpc_client.infer("repeat_int32", repeat(grpcclient, [1], 0))


# HTTP

GENERATE = "/v2/models/repeat_int32/generate"


def test_generate_answers_once(target: Target) -> None:
    answer = ask_once(target.http, message("POST", GENERATE, b'{"IN": [9], "DELAY": [0]}'))
    assert answer.status == 200
    assert json.loads(answer.body)["OUT"] == 9


def test_generate_stream_events_arrive_as_they_are_made(target: Target) -> None:
    asked = b'{"IN": [1, 2, 3, 4], "DELAY": [250, 250, 250, 250]}'
    with RawConnection(target.http) as connection:
        connection.send(message("POST", f"{GENERATE}_stream", asked))
        assert connection.read_head().status == 200
        first = connection.read_chunk()
        seen_at = time.monotonic()
        rest = b"".join(iter(connection.read_chunk, b""))
    events = [json.loads(line[len("data: ") :]) for line in (first + rest).split(b"\n\n")[:-1]]
    assert [event["OUT"] for event in events] == [1, 2, 3, 4]
    assert events[0]["SENT_AT"] < seen_at < events[-1]["SENT_AT"]


def test_connection_is_usable_after_generate_stream(target: Target) -> None:
    asked = message("POST", f"{GENERATE}_stream", b'{"IN": [1, 2], "DELAY": [0, 0]}')
    with RawConnection(target.http) as connection:
        for _ in range(3):
            assert connection.ask(asked).body.count(b"data: ") == 2
        assert connection.ask(message("GET", "/v2")).status == 200
