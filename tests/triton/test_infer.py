"""Inference with NVIDIA's clients: what goes in comes out, whatever the encoding."""

from __future__ import annotations

import functools
import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio

from lb.kserve.faults import lacks_outputs
from tests.triton.raw_http import ask_once, message
from tests.triton.target import WAIT_S, Target
from tests.triton.tensors import (
    check_sum_and_difference,
    large,
    milliseconds,
    numbers,
    pair,
    tensor,
    texts,
)

MANY = 200


def outputs(client: Any, **how: Any) -> list[Any]:
    return [
        client.InferRequestedOutput("OUTPUT0", **how),
        client.InferRequestedOutput("OUTPUT1", **how),
    ]


# HTTP


@pytest.mark.parametrize("binary_answer", [True, False])
@pytest.mark.parametrize("binary_request", [True, False])
def test_http_tensors_travel_as_json_and_as_bytes(
    http_client: httpclient.InferenceServerClient, binary_request: bool, binary_answer: bool
) -> None:
    values = numbers(batch=8)
    result = http_client.infer(
        "simple",
        pair(httpclient, values, binary_data=binary_request),
        outputs=outputs(httpclient, binary_data=binary_answer),
        request_id="named",
    )
    check_sum_and_difference(result, values)
    assert result.get_response()["id"] == "named"


@pytest.mark.parametrize("binary", [True, False])
def test_http_strings_travel_as_json_and_as_bytes(
    http_client: httpclient.InferenceServerClient, binary: bool
) -> None:
    left, right = numbers(seed=90)
    result = http_client.infer(
        "simple_string",
        pair(httpclient, (texts(left), texts(right)), binary_data=binary),
        outputs=outputs(httpclient, binary_data=binary),
    )
    for name, expected in (("OUTPUT0", left + right), ("OUTPUT1", left - right)):
        got = result.as_numpy(name).astype(np.bytes_).astype(np.int64)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("answer", [None, "gzip", "deflate"])
@pytest.mark.parametrize("request_", [None, "gzip", "deflate"])
def test_http_bodies_may_be_compressed_both_ways(
    http_client: httpclient.InferenceServerClient, request_: str | None, answer: str | None
) -> None:
    values = numbers(batch=8)
    result = http_client.infer(
        "simple",
        pair(httpclient, values),
        request_compression_algorithm=request_,
        response_compression_algorithm=answer,
    )
    check_sum_and_difference(result, values)


def test_http_answers_of_asynchronous_requests_are_not_mixed_up(
    http_client: httpclient.InferenceServerClient,
) -> None:
    asked = [
        (
            numbers(seed),
            http_client.async_infer(
                "simple", pair(httpclient, numbers(seed)), request_id=str(seed)
            ),
        )
        for seed in range(MANY)
    ]
    for seed, (values, promise) in enumerate(asked):
        result = promise.get_result(timeout=WAIT_S)
        check_sum_and_difference(result, values)
        assert result.get_response()["id"] == str(seed)


async def test_http_asyncio_client_infers(target: Target) -> None:
    values = numbers(seed=5)
    async with httpaio.InferenceServerClient(target.http, conn_timeout=WAIT_S) as client:
        result = await client.infer(
            "simple",
            pair(httpclient, values),
            request_compression_algorithm="gzip",
            response_compression_algorithm="deflate",
        )
    check_sum_and_difference(result, values)


def test_http_carries_tensors_of_64_mib_both_ways(
    http_client: httpclient.InferenceServerClient,
) -> None:
    values = large(64)
    result = http_client.infer("identity_fp32", [tensor(httpclient, "INPUT0", values)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


# gRPC


def test_grpc_infer_adds_and_subtracts(grpc_client: grpcclient.InferenceServerClient) -> None:
    values = numbers(batch=8)
    result = grpc_client.infer("simple", pair(grpcclient, values), request_id="named")
    check_sum_and_difference(result, values)
    assert result.get_response().id == "named"


def test_grpc_strings_come_back(grpc_client: grpcclient.InferenceServerClient) -> None:
    sent = np.array([[b"", b"a", b"\x00\xff", b"x" * 100_000]], dtype=np.object_)
    result = grpc_client.infer("simple_identity", [tensor(grpcclient, "INPUT0", sent)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), sent)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_messages_may_be_compressed(
    grpc_client: grpcclient.InferenceServerClient, algorithm: str
) -> None:
    values = numbers(batch=8)
    result = grpc_client.infer("simple", pair(grpcclient, values), compression_algorithm=algorithm)
    check_sum_and_difference(result, values)


def test_grpc_answers_of_callback_requests_are_not_mixed_up(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    arrived: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    for seed in range(MANY):

        def callback(seed: int, result: Any, error: Any) -> None:
            arrived.put((seed, result, error))

        grpc_client.async_infer(
            "simple", pair(grpcclient, numbers(seed)), functools.partial(callback, seed)
        )
    seeds = set()
    for _ in range(MANY):
        seed, result, error = arrived.get(timeout=WAIT_S)
        assert error is None
        check_sum_and_difference(result, numbers(seed))
        seeds.add(seed)
    assert seeds == set(range(MANY))


async def test_grpc_asyncio_client_infers(target: Target) -> None:
    values = numbers(seed=5)
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        result = await client.infer("simple", pair(grpcclient, values))
    check_sum_and_difference(result, values)


def test_grpc_carries_tensors_of_64_mib_both_ways(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    values = large(64)
    result = grpc_client.infer("identity_fp32", [tensor(grpcclient, "INPUT0", values)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


# Both


def test_requests_that_come_together_are_batched_by_triton(
    http_client: httpclient.InferenceServerClient,
) -> None:
    inputs = [tensor(httpclient, "VALUE", np.array([[21]], dtype=np.int32))]
    asked = [http_client.async_infer("batched", inputs) for _ in range(48)]
    results = [promise.get_result(timeout=WAIT_S) for promise in asked]
    assert {result.as_numpy("DOUBLE").item() for result in results} == {42}
    assert max(result.as_numpy("BATCH").item() for result in results) > 1


def test_slow_requests_of_both_protocols_run_side_by_side(
    http_client: httpclient.InferenceServerClient, grpc_client: grpcclient.InferenceServerClient
) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc_client.async_infer(
        "sleeper",
        milliseconds(grpcclient, 800),
        lambda result, error: arrived.put((result, error)),
    )
    http_client.infer("sleeper", milliseconds(httpclient, 10))
    assert arrived.empty()
    result, error = arrived.get(timeout=WAIT_S)
    assert error is None
    assert result.as_numpy("SERVER")[0].startswith(b"triton-")


@pytest.mark.parametrize(
    "outputs_", ["[]", '[{"name":"OUTPUT0","parameters":{"classification":1}}]']
)
def test_http_responses_have_outputs_however_few_are_asked_for(
    reference: Target, outputs_: str
) -> None:
    """Short responses without that member count as failures of their Triton."""
    one = ",".join(["1"] * 16)
    inputs = ",".join(
        f'{{"name":"INPUT{number}","shape":[1,16],"datatype":"INT32","data":[{one}]}}'
        for number in range(2)
    )
    body = f'{{"inputs":[{inputs}],"outputs":{outputs_}}}'.encode()
    answer = ask_once(reference.http, message("POST", "/v2/models/simple/infer", body))
    assert answer.status == 200
    assert not lacks_outputs(answer.body)
