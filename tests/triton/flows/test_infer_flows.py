"""Ways of asking for one inference that NVIDIA's examples show, beyond the plain ones."""

from __future__ import annotations

import asyncio
import functools
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.triton.flows.kit import Kit
from tests.triton.target import Target
from tests.triton.tensors import check_sum_and_difference, milliseconds, numbers, pair, texts

AT_ONCE = 60


def test_tensors_of_int8_are_added(kit: Kit) -> None:
    left, right = (np.arange(16, dtype=np.int8).reshape(1, 16), np.full((1, 16), 3, np.int8))
    inputs = [kit.module.InferInput(name, [1, 16], "INT8") for name in ("INPUT0", "INPUT1")]
    for made, values in zip(inputs, (left, right), strict=True):
        made.set_data_from_numpy(values)
    check_sum_and_difference(kit.client.infer("simple_int8", inputs), (left, right))


def test_ensemble_answers_as_its_model_does(kit: Kit) -> None:
    values = numbers(seed=11, batch=4)
    check_sum_and_difference(kit.client.infer("simple_ensemble", pair(kit.module, values)), values)


def test_inputs_and_outputs_may_be_used_again(kit: Kit) -> None:
    values = numbers(seed=1)
    inputs = pair(kit.module, values)
    outputs = [kit.module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
    for _ in range(6):
        result = kit.client.infer("simple", inputs, outputs=outputs)
        check_sum_and_difference(result, values)
    inputs[0].set_data_from_numpy(values[1])
    check_sum_and_difference(
        kit.client.infer("simple", inputs, outputs=outputs), (values[1], values[1])
    )


def test_only_outputs_that_are_asked_for_are_answered(kit: Kit) -> None:
    values = numbers(seed=2)
    result = kit.client.infer(
        "simple",
        pair(kit.module, values),
        outputs=[kit.module.InferRequestedOutput("OUTPUT1")],
    )
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), values[0] - values[1])


def test_priority_version_timeout_headers_and_parameters_are_taken(kit: Kit) -> None:
    values = numbers(seed=3)
    result = kit.client.infer(
        "simple",
        pair(kit.module, values),
        model_version="1",
        request_id="with everything",
        priority=2,
        timeout=5_000_000,
        headers={"x-of-the-client": "1"},
        parameters={"of_the_model": "text", "count": 3, "is_so": True},
    )
    check_sum_and_difference(result, values)
    answer = result.get_response()
    assert (answer["id"] if kit.is_http else answer.id) == "with everything"


@pytest.mark.parametrize(
    "elements", [[b""], [b"one", b"two words"], [bytes(range(256)), "größer".encode()]]
)
def test_bytes_come_back_as_they_went(kit: Kit, elements: list[bytes]) -> None:
    sent = np.array([elements], dtype=np.object_)
    result = kit.client.infer("simple_identity", [kit.tensor("INPUT0", sent)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), sent)


def test_strings_are_numbers_for_the_model(kit: Kit) -> None:
    left, right = numbers(seed=30)
    result = kit.client.infer("simple_string", pair(kit.module, (texts(left), texts(right))))
    got = result.as_numpy("OUTPUT0").astype(np.bytes_).astype(np.int64)
    np.testing.assert_array_equal(got, left + right)


def test_outputs_may_be_classified(kit: Kit) -> None:
    values = numbers(seed=4)
    result = kit.client.infer(
        "simple",
        pair(kit.module, values),
        outputs=[kit.module.InferRequestedOutput("OUTPUT0", class_count=2)],
    )
    best = [element.decode().split(":") for element in result.as_numpy("OUTPUT0").flatten()]
    total = (values[0] + values[1]).flatten()
    assert [(float(value), int(index)) for value, index in best] == [
        (total[15], 15),
        (total[14], 14),
    ]


def test_bodies_are_built_and_read_apart_from_the_client(
    http_client: httpclient.InferenceServerClient,
) -> None:
    values = numbers(seed=6)
    body, head_length = http_client.generate_request_body(pair(httpclient, values))
    headers = {"Inference-Header-Content-Length": str(head_length)}
    answer = http_client._post("v2/models/simple/infer", body, headers, None)
    result = httpclient.InferenceServerClient.parse_response_body(
        answer.read(), header_length=int(answer.get("Inference-Header-Content-Length"))
    )
    check_sum_and_difference(result, values)


# Time


def test_client_gives_up_when_its_own_time_is_over(kit: Kit, target: Target) -> None:
    inputs = milliseconds(kit.module, 1500)
    if kit.is_http:
        with (
            httpclient.InferenceServerClient(target.http, network_timeout=0.3) as impatient,
            pytest.raises(TimeoutError),
        ):
            impatient.infer("sleeper", inputs)
        return
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        kit.client.infer("sleeper", inputs, client_timeout=0.3)


def test_calls_may_be_cancelled(grpc_client: grpcclient.InferenceServerClient) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    call = grpc_client.async_infer(
        "sleeper", milliseconds(grpcclient, 1500), lambda result, error: ended.put(error)
    )
    call.cancel()
    assert ended.get(timeout=60).status() == "StatusCode.CANCELLED"
    values = numbers(seed=8)
    check_sum_and_difference(grpc_client.infer("simple", pair(grpcclient, values)), values)


async def test_asyncio_calls_may_be_cancelled(target: Target) -> None:
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        asked = asyncio.ensure_future(client.infer("sleeper", milliseconds(grpcclient, 1500)))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        values = numbers(seed=9)
        check_sum_and_difference(await client.infer("simple", pair(grpcclient, values)), values)


# Many at once


async def test_asyncio_clients_ask_many_at_once(target: Target) -> None:
    async with (
        httpaio.InferenceServerClient(target.http, conn_timeout=60) as over_http,
        grpcaio.InferenceServerClient(target.grpc) as over_grpc,
    ):
        asked = [
            client.infer("simple", pair(module, numbers(seed)))
            for seed in range(AT_ONCE)
            for client, module in ((over_http, httpclient), (over_grpc, grpcclient))
        ]
        answers = await asyncio.gather(*asked)
    for number, result in enumerate(answers):
        check_sum_and_difference(result, numbers(number // 2))


# Messages by hand


@pytest.fixture
def stub(target: Target) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """What `protoc` makes of the service, without NVIDIA's client."""
    with grpc.insecure_channel(target.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(model: str, datatype: str) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model, id="by hand")
    for name in ("INPUT0", "INPUT1"):
        made.inputs.add(name=name, datatype=datatype, shape=[1, 16])
    return made


@pytest.mark.parametrize(
    ("model", "datatype", "width"),
    [("simple", "INT32", np.int32), ("simple_int8", "INT8", np.int8)],
)
def test_numbers_may_be_explicit_contents(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, datatype: str, width: type
) -> None:
    asked = request(model, datatype)
    asked.inputs[0].contents.int_contents.extend(range(16))
    asked.inputs[1].contents.int_contents.extend([2] * 16)
    answer = stub.ModelInfer(asked, timeout=60)
    total = np.frombuffer(answer.raw_output_contents[0], dtype=width)
    np.testing.assert_array_equal(total, np.arange(2, 18))
    assert answer.id == "by hand"


def test_strings_may_be_explicit_contents(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
) -> None:
    asked = request("simple_string", "BYTES")
    for made in asked.inputs:
        made.contents.bytes_contents.extend(str(number).encode() for number in range(16))
    answer = stub.ModelInfer(asked, timeout=60)
    got = grpcclient.InferResult(answer).as_numpy("OUTPUT0").astype(np.bytes_).astype(np.int64)
    np.testing.assert_array_equal(got, [[2 * number for number in range(16)]])


def test_raw_and_explicit_contents_are_not_mixed(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
) -> None:
    asked = request("simple", "INT32")
    asked.inputs[0].contents.int_contents.extend(range(16))
    asked.raw_input_contents.append(bytes(64))
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(asked, timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_every_plain_method_of_the_service_answers(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
) -> None:
    assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live
    assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=60).ready
    named = {"name": "simple", "version": "1"}
    assert stub.ModelReady(service_pb2.ModelReadyRequest(**named), timeout=60).ready
    assert stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=60).name == "triton"
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(**named), timeout=60)
    assert metadata.platform == "python"
    config = stub.ModelConfig(service_pb2.ModelConfigRequest(**named), timeout=60)
    assert config.config.max_batch_size == 8


# Channels


def test_keepalive_may_be_set_and_pings_are_answered(target: Target) -> None:
    often = grpcclient.KeepAliveOptions(
        keepalive_time_ms=100,
        keepalive_timeout_ms=20_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=2,
    )
    with grpcclient.InferenceServerClient(target.grpc, keepalive_options=often) as client:
        for seed in range(2):
            values = numbers(seed)
            check_sum_and_difference(client.infer("simple", pair(grpcclient, values)), values)
            client.infer("sleeper", milliseconds(grpcclient, 300))


def test_channel_arguments_may_be_set(target: Target) -> None:
    arguments = [
        ("grpc.dns_enable_srv_queries", 1),
        ("grpc.max_send_message_length", 1 << 20),
        ("grpc.primary_user_agent", "an-application"),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpcclient.InferenceServerClient(target.grpc, channel_args=arguments) as client:
        values = numbers(seed=12)
        check_sum_and_difference(client.infer("simple", pair(grpcclient, values)), values)


def test_new_clients_find_their_way_again_and_again(target: Target) -> None:
    for seed in range(10):
        values = numbers(seed)
        with grpcclient.InferenceServerClient(target.grpc) as over_grpc:
            check_sum_and_difference(over_grpc.infer("simple", pair(grpcclient, values)), values)
        with httpclient.InferenceServerClient(target.http) as over_http:
            check_sum_and_difference(over_http.infer("simple", pair(httpclient, values)), values)


def test_callbacks_learn_of_errors(grpc_client: grpcclient.InferenceServerClient) -> None:
    ended: queue.Queue[tuple[Any, Any]] = queue.Queue()
    inputs = pair(grpcclient, numbers())
    for model in ("simple", "nosuch"):
        note = functools.partial(lambda model, result, error: ended.put((model, error)), model)
        grpc_client.async_infer(model, inputs, note)
    errors = dict(ended.get(timeout=60) for _ in range(2))
    assert errors["simple"] is None
    assert "unknown model" in errors["nosuch"].message()
