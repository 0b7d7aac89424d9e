"""Clients find out which services there are and how to call them, and do so."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from lb.access.gate import Gate, GateRules
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from tests.fakes.grpc_server import grpc_channel, grpc_server
from tests.fakes.relay import RunningRelay, running_relay

SECRET = "0123456789abcdef"
V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
V1ALPHA = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVICES = ["inference.GRPCInferenceService", "grpc.health.v1.Health"]


async def ask(
    channel: grpc.aio.Channel, path: str, *requests: pb.ServerReflectionRequest, **options: object
) -> list[pb.ServerReflectionResponse]:
    """What a stream of questions gets, one after the other."""
    call = channel.stream_stream(
        path,
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )(**options)
    found = []
    for request in requests:
        await call.write(request)
        found.append(await call.read())
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    return found


def describe_and_call(target: str) -> tuple[list[str], str]:
    """As grpcurl does it: the services, and a call made of nothing but descriptors.

    Returns:
        Names of services, and the answer as text.
    """
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = list(database.get_services())
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        method = service.methods_by_name["ServerLive"]
        request, response = map(GetMessageClass, (method.input_type, method.output_type))
        call = channel.unary_unary(
            f"/{service.full_name}/{method.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer = str(call(request(), timeout=30))
        infer = pool.FindMessageTypeByName("inference.ModelInferRequest.InferInputTensor")
        assert "datatype" in infer.fields_by_name
        health = pool.FindServiceByName("grpc.health.v1.Health")
        assert set(health.methods_by_name) >= {"Check", "Watch"}
        return services, answer


async def run(relay: RunningRelay) -> tuple[list[str], str]:
    return await asyncio.to_thread(describe_and_call, relay.target)


async def test_a_client_calls_what_it_knows_by_reflection_alone() -> None:
    async with grpc_server() as (service, target), running_relay(target) as relay:
        services, answer = await run(relay)
        assert services == SERVICES
        assert answer == "live: true\n"
        assert service.calls == 0
        await relay.until_clean()


@pytest.mark.parametrize("path", [V1, V1ALPHA])
async def test_each_question_of_a_stream_is_answered(path: str) -> None:
    async with (
        running_relay("127.0.0.1:1") as relay,
        grpc_channel(relay.target) as channel,
    ):
        questions = [
            pb.ServerReflectionRequest(host="lb", list_services=""),
            pb.ServerReflectionRequest(file_containing_symbol=SERVICES[0]),
            pb.ServerReflectionRequest(file_containing_symbol=f"{SERVICES[0]}.ModelInfer"),
            pb.ServerReflectionRequest(file_by_filename="inference.proto"),
            pb.ServerReflectionRequest(file_containing_symbol="inference.Nothing"),
            pb.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelConfig"),
            pb.ServerReflectionRequest(),
        ]
        found = await ask(channel, path, *questions)
        assert [each.original_request for each in found] == questions
        assert found[0].valid_host == "lb"
        assert [each.name for each in found[0].list_services_response.service] == SERVICES
        files = [each.file_descriptor_response.file_descriptor_proto for each in found[1:4]]
        assert files[0] == files[1]
        assert len(files[0]) == 1
        codes = [each.error_response.error_code for each in found[4:]]
        assert codes == [5, 5, 3]
        await channel.close()
        await relay.until_clean()


async def failure(channel: grpc.aio.Channel, data: bytes, times: int = 1) -> grpc.StatusCode:
    call = channel.stream_stream(V1)()
    try:
        for _ in range(times):
            await call.write(data)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code()


async def test_what_no_client_asks_ends_the_stream() -> None:
    async with (
        running_relay("127.0.0.1:1") as relay,
        grpc_channel(relay.target) as channel,
    ):
        assert await failure(channel, b"\x0a\xff") is grpc.StatusCode.INTERNAL
        assert await failure(channel, b"\x22\x80\x40" + b"x" * 8192) is (
            grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        assert await failure(channel, b"\x22\x01a", 1000) is grpc.StatusCode.OK
        await channel.close()
        await relay.until_clean()


async def answers_of(questions: int) -> tuple[int, int, grpc.StatusCode]:
    """Ask for a long answer again and again, and read only then.

    Returns:
        Answers, the most bytes that the relay held meanwhile, and the status.
    """
    async with (
        running_relay("127.0.0.1:1") as relay,
        grpc_channel(relay.target) as channel,
    ):
        call = channel.stream_stream(V1)()
        question = pb.ServerReflectionRequest(file_containing_symbol=SERVICES[0])
        for _ in range(questions):
            await call.write(question.SerializeToString())
        await call.done_writing()
        answers = most = 0
        try:
            while await call.read() is not grpc.aio.EOF:
                answers += 1
                most = max(most, relay.memory_budget.held)
        except grpc.aio.AioRpcError:
            pass
        status = await call.code()
        await channel.close()
        await relay.until_clean()
        return answers, most, status


async def test_questions_wait_while_their_client_does_not_read() -> None:
    answers, most, status = await answers_of(1000)
    assert (answers, status) == (1000, grpc.StatusCode.OK)
    assert most < 256 * 1024


async def test_too_many_questions_end_the_stream_after_their_answers() -> None:
    answers, _, status = await answers_of(1001)
    assert (answers, status) == (1000, grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_it_needs_a_token_where_requests_do() -> None:
    book = TokenBook([Token("key", digest_of(SECRET.encode()), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=True), book)
    async with (
        running_relay("127.0.0.1:1", gate=gate) as relay,
        grpc_channel(relay.target) as channel,
    ):
        call = channel.stream_stream(V1)()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        bearer = (("authorization", f"Bearer {SECRET}"),)
        request = pb.ServerReflectionRequest(list_services="")
        (found,) = await ask(channel, V1, request, metadata=bearer)
        assert len(found.list_services_response.service) == 2
        await channel.close()
        await relay.until_clean()
