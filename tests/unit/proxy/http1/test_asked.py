"""Requests that concern all backends reach the fan-out whole, and get its one answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.kserve.gate import RESERVED
from lb.proxy.fan_out.question import FanOutReply
from lb.proxy.http1 import asked
from lb.proxy.http1.options import Http1Options
from tests.fakes.http1_sides import Sides
from tests.fakes.relay import RecordedFanOut
from tests.fakes.threadless import no_further_thread

_INDEX = b"POST /v2/repository/index?a=b HTTP/1.1\r\nHost: a\r\nX-Key: v\r\n"
_LENGTH = b"Content-Length: 14\r\n\r\n"
_BODY = b'{"ready":true}'
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


class Bench(Sides):
    """A relay with a fan-out."""

    def __init__(self, reply: FanOutReply, options: Http1Options | None = None) -> None:
        super().__init__(options)
        self.fan_out = RecordedFanOut(reply, self.memory_budget)
        self.relay.parts = replace(self.relay.parts, fan_out=self.fan_out)
        self.server, self.sent = self.client()

    async def settle(self) -> None:
        """Let the questions be answered."""
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("ask:")]
        await asyncio.gather(*tasks)

    @property
    def is_clean(self) -> bool:
        """Nothing was left behind."""
        return not (self.dispatcher.open_exchanges or self.memory_budget.held or len(self.tasks))


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "wire", [_INDEX + _LENGTH + _BODY, _INDEX + _CHUNKED + b"e\r\n" + _BODY + b"\r\n0\r\n\r\n"]
)
async def test_the_whole_body_is_asked_and_the_reply_is_answered(wire: bytes, step: int) -> None:
    bench = Bench(FanOutReply(status=200, body=b"[]", backends=("b0", "b1")))
    for at in range(0, len(wire), step):
        bench.server.data_received(wire[at : at + step])
    await bench.settle()
    (question,) = bench.fan_out.questions
    assert (question.body, question.method, question.target) == (
        _BODY,
        b"POST",
        b"/v2/repository/index",
    )
    assert question.operation.name == "RepositoryIndex"
    assert question.fields == ((b"x-key", b"v"),)
    assert question.client == IPv4Address("10.1.2.3")
    answer = bench.sent.take()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: application/json\r\n" in answer
    assert answer.endswith(b"\r\n\r\n[]")
    (record,) = bench.finished.records
    assert (record.status, record.attempts, record.bytes_in) == (200, 2, len(_BODY))
    assert bench.finished.meter.traffic[AppProtocol.HTTP].retries == 0
    assert bench.is_clean
    bench.server.data_received(_INDEX + _LENGTH + _BODY)
    await bench.settle()
    assert bench.sent.take() == answer, "the connection lives on"
    bench.sent.lose()


async def test_a_large_body_is_asked_where_no_thread_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asked, "_LARGE_JOIN", 1000)
    bench = Bench(FanOutReply(status=200, body=b"{}"))
    bench.server, bench.sent = bench.client("127.0.0.1")
    body = bytes(100_000)
    head = b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    with no_further_thread():
        bench.server.data_received(head % len(body) + body)
        await bench.settle()
    assert [question.body for question in bench.fan_out.questions] == [body]
    assert bench.sent.take().startswith(b"HTTP/1.1 200 OK\r\n")
    bench.sent.lose()


async def test_errors_of_the_reply_name_no_reserved_region() -> None:
    body = b'{"error":"' + RESERVED + b'secret"}'
    bench = Bench(FanOutReply(status=400, body=body, content_type=b"text/plain"))
    bench.server.data_received(_INDEX + _LENGTH + _BODY)
    await bench.settle()
    answer = bench.sent.take()
    assert b"Content-Type: text/plain\r\n" in answer
    assert b"secret" not in answer
    assert len(answer.partition(b"\r\n\r\n")[2]) == len(body)
    bench.sent.lose()


@pytest.mark.parametrize("step", [1, 1000])
async def test_registrations_of_reserved_regions_are_not_asked(step: int) -> None:
    bench = Bench(FanOutReply(status=200))
    body = b'{"key":"/' + RESERVED + b'1"}'
    wire = (
        b"POST /v2/systemsharedmemory/region/r/register HTTP/1.1\r\nHost: a\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body
    # The gate of these tests lets nobody change servers but from loopback.
    bench.server.client = bench.server.client.__class__(
        "127.0.0.1:1", None, None, True, False, False
    )
    for at in range(0, len(wire), step):
        bench.server.data_received(wire[at : at + step])
    await bench.settle()
    assert not bench.fan_out.questions
    assert bench.sent.take().startswith(b"HTTP/1.1 400 ")
    assert bench.finished.records[0].reason is Reason.BAD_REQUEST
    bench.sent.lose()


async def test_clients_may_leave_while_the_backends_are_asked() -> None:
    bench = Bench(FanOutReply(status=200, body=b"late"))
    bench.fan_out.may_answer.clear()
    head = _INDEX + b"Content-Length: 50000\r\n\r\n"
    bench.server.data_received(head + b"x" * 50_000)
    await asyncio.sleep(0)
    assert bench.memory_budget.held == 50_000
    bench.sent.lose()
    assert bench.memory_budget.held == 50_000  # the backends may still be sent it
    assert bench.fan_out.questions[0].departure.has_happened
    bench.fan_out.may_answer.set()
    await bench.settle()
    assert bench.finished.records[0].reason is Reason.CLIENT_GONE
    assert bench.is_clean


async def test_bodies_over_the_limit_are_refused() -> None:
    bench = Bench(FanOutReply(status=200), Http1Options(body_size=1000))
    bench.server.data_received(_INDEX + _CHUNKED + b"400\r\n" + b"x" * 1024 + b"\r\n")
    await bench.settle()
    assert not bench.fan_out.questions
    assert bench.sent.take().startswith(b"HTTP/1.1 413 ")
    bench.sent.lose()


async def test_a_client_that_waits_for_it_is_asked_for_its_body() -> None:
    bench = Bench(FanOutReply(status=200))
    bench.server.data_received(_INDEX + b"Expect: 100-continue\r\n" + _LENGTH)
    assert bench.sent.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    bench.server.data_received(_BODY)
    await bench.settle()
    assert bench.fan_out.questions[0].body == _BODY
    assert bench.sent.take().startswith(b"HTTP/1.1 200 OK\r\n")
    bench.sent.lose()


async def test_without_a_fan_out_they_are_balanced_like_others() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_INDEX + _LENGTH + _BODY)
    assert backend.take().endswith(_BODY)
    client.lose()


async def test_questions_that_change_nothing_are_short() -> None:
    bench = Bench(FanOutReply(status=200))
    bench.server.data_received(_INDEX + b"Content-Length: 70000\r\n\r\n" + bytes(70_000))
    await bench.settle()
    assert not bench.fan_out.questions
    assert bench.sent.take().startswith(b"HTTP/1.1 413 ")
    bench.sent.lose()


async def test_a_client_that_sends_fast_does_not_keep_others_from_their_turn() -> None:
    bench = Bench(FanOutReply(status=200, body=b"", backends=("b0",)))
    bench.server, bench.sent = bench.client("127.0.0.1")
    size = 600_000
    bench.server.data_received(
        b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        % size
    )
    for _ in range(2):
        bench.server.data_received(bytes(200_000))
        assert not bench.sent.reading
        await asyncio.sleep(0)
        assert bench.sent.reading
    bench.server.data_received(bytes(200_000))
    while not bench.fan_out.questions:
        await bench.settle()
    assert bench.fan_out.questions[0].body == bytes(size)
    assert bench.is_clean


async def test_a_client_that_leaves_while_others_have_their_turn_leaves_nothing() -> None:
    bench = Bench(FanOutReply(status=200, body=b"", backends=("b0",)))
    bench.server, bench.sent = bench.client("127.0.0.1")
    bench.server.data_received(
        b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n"
    )
    bench.server.data_received(bytes(200_000))
    bench.sent.lose()
    await asyncio.sleep(0)
    assert bench.is_clean
