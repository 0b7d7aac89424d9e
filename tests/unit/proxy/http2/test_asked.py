"""Calls that concern all backends reach the fan-out whole, and get its one answer."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from lb.access.gate import Credentials, FieldLine, Gate
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import REGISTER_BYTES, RESERVED
from lb.proxy.fan_out.question import FanOutReply
from lb.proxy.http2.options import Http2Options
from lb.wire.memory_budget import SharedBytes
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fakes.relay import RecordedFanOut
from tests.fakes.threadless import no_further_thread
from tests.wire.frames import (
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    RST_STREAM,
    SETTINGS_ACK,
    data,
    headers,
    message,
    request_fields,
    settings,
    window_update,
)

_SERVICE = b"/inference.GRPCInferenceService/"
_INDEX = _SERVICE + b"RepositoryIndex"
_REGISTER = _SERVICE + b"SystemSharedMemoryRegister"


class OpenGate(Gate):
    """Asks nothing: who may register is a matter of its own."""

    def credentials(
        self, operation: Operation, fields: Sequence[FieldLine], *, is_control: bool
    ) -> Credentials | None:
        return None


class Bench(PaperRelay):
    """A relay with a fan-out."""

    def __init__(self, reply: FanOutReply, options: Http2Options | None = None) -> None:
        super().__init__(gate=OpenGate(), options=options)
        self.fan_out = RecordedFanOut(reply, self.memory_budget)
        self.relay.parts = replace(self.relay.parts, fan_out=self.fan_out)

    async def settle(self) -> None:
        """Let the questions be answered."""
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("ask:")]
        await asyncio.gather(*tasks)
        self.relay.flush()


def _ask(client: Side, path: bytes, body: bytes, step: int = 1 << 20) -> None:
    client.sends(headers(1, request_fields(path=path)))
    for at in range(0, len(body), step):
        client.sends(data(1, body[at : at + step], end=at + step >= len(body)))


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("flag", [0, 1])
async def test_the_whole_message_is_asked_and_the_reply_is_answered(step: int, flag: int) -> None:
    relay = Bench(FanOutReply(status=0, body=b"merged", backends=("b0", "b1")))
    client = relay.client()
    content = pb.RepositoryIndexRequest(ready=True).SerializeToString()
    body = message(gzip.compress(content) if flag else content, flag)
    _ask(client, _INDEX, body, step)
    await relay.settle()
    (question,) = relay.fan_out.questions
    assert (question.body, question.target, question.operation.name) == (
        content,
        _INDEX,
        "RepositoryIndex",
    )
    assert question.client == IPv4Address("127.0.0.1")
    frames = [frame for frame in client.gets() if frame.stream == 1]
    kept = [frame for frame in frames if frame.kind in (HEADERS, DATA)]
    assert [frame.kind for frame in kept] == [HEADERS, DATA, HEADERS]
    assert kept[1].payload == message(b"merged")
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts, record.bytes_in) == (0, 2, len(body))
    assert relay.is_clean()


async def test_a_large_message_is_inflated_where_no_thread_is_to_be_had() -> None:
    relay = Bench(FanOutReply(status=0, body=b"merged"))
    content = bytes(3_000_000)
    name = b"RepositoryModelLoad"
    with no_further_thread():
        _ask(relay.client(), _SERVICE + name, message(gzip.compress(content), 1))
        await relay.settle()
    assert [question.body for question in relay.fan_out.questions] == [content]


async def test_metadata_goes_with_the_question() -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    more = [(b"triton-grpc-protocol-key", b"v"), (b"x-bytes-bin", b"AAE")]
    client.sends(
        headers(1, [*request_fields(path=_INDEX), *more]) + data(1, message(b""), end=True)
    )
    await relay.settle()
    fields = dict(relay.fan_out.questions[0].fields)
    assert {name: fields[name] for name, _ in more} == dict(more)
    assert not fields.keys() & {b"te", b"content-type", b":path"}


async def test_errors_of_the_reply_are_the_clients_and_name_no_reserved_region() -> None:
    detail = "failed: " + RESERVED.decode() + "secret"
    relay = Bench(FanOutReply(status=14, detail=detail + " \ud800", reason=Reason.NO_BACKEND))
    client = relay.client()
    _ask(client, _INDEX, message(b""))
    await relay.settle()
    block = b"".join(frame.payload for frame in client.gets() if frame.kind == HEADERS)
    assert b"failed: ***" in block
    assert b"secret" not in block
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (14, Reason.NO_BACKEND)
    assert relay.is_clean()


@pytest.mark.parametrize(
    "body",
    [b"", b"\0\0\0\0\x09abc", b"\1\0\0\0\3abc",
     message(zlib.compress(b"ok")[:-1], 1), message(zlib.compress(b"ok") + b"more", 1)],
)  # fmt: skip
async def test_a_call_needs_a_whole_message(body: bytes) -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    client.sends(headers(1, request_fields(path=_INDEX), end=not body))
    if body:
        client.sends(data(1, body, end=True))
    await relay.settle()
    assert not relay.fan_out.questions
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (13, Reason.BAD_REQUEST)
    assert relay.is_clean()


async def test_of_several_messages_the_first_one_counts() -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    body = message(b"first") + message(b"second")
    client.sends(headers(1, request_fields(path=_INDEX)) + data(1, body, end=True))
    await relay.settle()
    (question,) = relay.fan_out.questions
    assert question.body == b"first"
    assert relay.is_clean()


@pytest.mark.parametrize("compress", [None, gzip.compress, zlib.compress])
@pytest.mark.parametrize(
    "request_",
    [
        pb.SystemSharedMemoryRegisterRequest(name="r", key="/" + RESERVED.decode() + "1"),
        pb.SystemSharedMemoryRegisterRequest(name=RESERVED.decode() + "1", key="/mine"),
        pb.CudaSharedMemoryRegisterRequest(name=RESERVED.decode()),
        pb.SystemSharedMemoryRegisterRequest(name="r", key="k" * REGISTER_BYTES),
    ],
)
async def test_registrations_of_reserved_regions_are_not_asked(
    request_: pb.SystemSharedMemoryRegisterRequest, compress: object
) -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    content = request_.SerializeToString()
    body = message(compress(content), 1) if callable(compress) else message(content)
    _ask(client, _REGISTER, body)
    await relay.settle()
    assert not relay.fan_out.questions
    (record,) = relay.finished.records
    assert record.reason is Reason.BAD_REQUEST
    assert record.grpc_status in (3, 13)
    assert relay.is_clean()


async def test_clients_may_leave_while_the_backends_are_asked() -> None:
    relay = Bench(FanOutReply(status=0, body=b"late"))
    relay.fan_out.may_answer.clear()
    client = relay.client()
    _ask(client, _INDEX, message(b"x" * 9000))
    await asyncio.sleep(0)
    client.sends(b"\0\0\4\3\0\0\0\0\1\0\0\0\x08")  # RST_STREAM, CANCEL
    assert relay.memory_budget.held == 9000  # the backends may still be sent it
    assert relay.fan_out.questions[0].departure.has_happened
    relay.fan_out.may_answer.set()
    await relay.settle()
    assert not [frame for frame in client.gets() if frame.kind in (HEADERS, DATA, RST_STREAM)]
    (record,) = relay.finished.records
    assert record.reason is Reason.CLIENT_GONE
    assert relay.is_clean()


async def test_long_messages_are_credited_and_counted_until_they_are_answered() -> None:
    relay = Bench(FanOutReply(status=0), Http2Options(stream_window=65_536))
    relay.fan_out.may_answer.clear()
    client = relay.client()
    body = message(b"x" * 300_000)
    client.sends(headers(1, request_fields(path=_SERVICE + b"RepositoryModelLoad")))
    for at in range(0, len(body), 16_000):
        client.sends(data(1, body[at : at + 16_000], end=at + 16_000 >= len(body)))
    assert relay.memory_budget.held == len(body)
    await asyncio.sleep(0)
    assert relay.memory_budget.held == 300_000
    relay.fan_out.may_answer.set()
    await relay.settle()
    assert relay.fan_out.questions[0].body == body[5:]
    assert relay.is_clean()


async def test_messages_are_counted_as_they_are_once_inflated() -> None:
    relay = Bench(FanOutReply(status=0))
    relay.fan_out.may_answer.clear()
    client = relay.client()
    fields = request_fields(path=_SERVICE + b"RepositoryModelLoad")
    client.sends(headers(1, fields))
    client.sends(data(1, message(gzip.compress(bytes(1_000_000)), 1), end=True))
    before = 0
    async with asyncio.timeout(30):
        while not relay.fan_out.questions:
            assert (
                relay.memory_budget.held - before <= 2_000_000 / 2
            )  # in some iterations of the loop
            before = relay.memory_budget.held
            await asyncio.sleep(0)
    assert relay.memory_budget.held == 1_000_000
    relay.fan_out.may_answer.set()
    await relay.settle()
    assert relay.is_clean()


@pytest.mark.parametrize("name", [b"RepositoryModelUnload", b"TraceSetting", b"LogSettings"])
async def test_changes_without_files_inflate_to_little(name: bytes) -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    _ask(client, _SERVICE + name, message(gzip.compress(bytes(5_000_000)), 1), 16_000)
    most = await _peak(relay)
    assert not relay.fan_out.questions
    assert most <= 1 << 18
    (record,) = relay.finished.records
    assert (record.grpc_status, record.reason) == (13, Reason.BAD_REQUEST)
    assert relay.is_clean()


async def test_loads_that_inflate_to_more_than_there_is_are_refused_and_nobody_else() -> None:
    relay = Bench(FanOutReply(status=0))
    relay.fan_out.may_answer.clear()
    client = relay.client()
    body = message(gzip.compress(bytes(4_000_000)), 1)
    for stream in range(1, 41, 2):
        fields = request_fields(path=_SERVICE + b"RepositoryModelLoad")
        client.sends(headers(stream, fields) + data(stream, body, end=True))
    most = 0
    async with asyncio.timeout(30):
        while len(relay.fan_out.questions) + len(relay.finished.records) < 20:
            most = max(most, relay.memory_budget.held)
            await asyncio.sleep(0)
    assert most <= 15 << 20
    assert relay.memory_budget.evictions == 0
    relay.fan_out.may_answer.set()
    await relay.settle()
    reasons = [record.reason for record in relay.finished.records]
    assert set(reasons) == {None, Reason.MEMORY}
    assert relay.is_clean()


async def test_nothing_more_is_inflated_for_a_client_that_has_left() -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    body = message(gzip.compress(bytes(60_000_000)), 1)
    _ask(client, _SERVICE + b"RepositoryModelLoad", body, 16_000)
    for _ in range(5):  # a thousandth of it and more
        await asyncio.sleep(0)
    assert relay.memory_budget.held > 60_000
    client.sends(b"\0\0\4\3\0\0\0\0\1\0\0\0\x08")  # RST_STREAM, CANCEL
    assert await _peak(relay) < 8 << 20
    assert not relay.fan_out.questions
    (record,) = relay.finished.records
    assert record.reason is Reason.CLIENT_GONE
    assert relay.is_clean()


async def _peak(relay: Bench) -> int:
    """The most that is held until all questions are answered."""
    most = 0
    asked = asyncio.ensure_future(relay.settle())
    async with asyncio.timeout(30):
        while not asked.done():
            await asyncio.sleep(0)
            most = max(most, relay.memory_budget.held)
    return most


@pytest.mark.parametrize("compress", [None, gzip.compress])
async def test_questions_that_change_nothing_are_short(compress: object) -> None:
    relay = Bench(FanOutReply(status=0))
    client = relay.client()
    content = bytes(70_000)
    body = message(compress(content), 1) if callable(compress) else message(content)
    _ask(client, _INDEX, body, 16_000)
    await relay.settle()
    assert not relay.fan_out.questions
    (record,) = relay.finished.records
    assert record.reason in (Reason.BODY_TOO_LARGE, Reason.BAD_REQUEST)
    assert relay.is_clean()


async def test_inflated_questions_of_many_connections_share_one_iteration() -> None:
    bench = Bench(FanOutReply(status=0))
    clients = [bench.client() for _ in range(10)]
    body = gzip.compress(
        pb.RepositoryIndexRequest(repository_name="a" * 60_000).SerializeToString()
    )
    fields = [*request_fields(path=_INDEX), (b"grpc-encoding", b"gzip")]
    burst = b"".join(
        headers(number, fields) + data(number, message(body, 1), end=True)
        for number in range(1, 33, 2)
    )
    for client in clients:
        client.connection.data_received(burst)
    begun = [sum(client.facts.last_peer_stream + 1 for client in clients) // 2]
    assert not clients[-1].transport.reading
    while begun[-1] < 160:
        await asyncio.sleep(0)
        begun.append(sum(client.facts.last_peer_stream + 1 for client in clients) // 2)
    # Putting them counts here; they are inflated in slices of their own.
    assert max(after - before for before, after in itertools.pairwise([0, *begun])) <= 40
    await bench.settle()


async def test_an_answer_that_many_unread_streams_share_is_on_the_memory_budget_once() -> None:
    body = bytes(500_000)
    relay = Bench(FanOutReply(status=0))
    shared = SharedBytes(relay.memory_budget, len(body))
    relay.fan_out.reply = FanOutReply(status=0, body=body, shared=shared)
    client = relay.client(settings({INITIAL_WINDOW_SIZE: 0}) + SETTINGS_ACK)
    for stream in range(1, 41, 2):
        client.sends(
            headers(stream, request_fields(path=_INDEX)) + data(stream, message(b""), end=True)
        )
    await relay.settle()
    assert relay.memory_budget.held == len(body)
    for stream in range(1, 39, 2):
        client.sends(b"\0\0\4\3\0" + stream.to_bytes(4, "big") + b"\0\0\0\x08")  # RST_STREAM
    assert relay.memory_budget.held == len(body)
    client.sends(window_update(39, 1 << 20) + window_update(0, 1 << 20))
    relay.relay.flush()
    sent = [frame for frame in client.gets() if frame.stream == 39 and frame.kind == DATA]
    assert b"".join(frame.payload for frame in sent) == message(body)
    assert relay.is_clean()
