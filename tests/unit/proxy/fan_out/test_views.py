"""Views that are put together from what each backend says."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.kserve.merge import memory
from lb.kserve.merge.steps import STEP_BYTES
from lb.net.ask.http import HttpAnswer
from lb.proxy.fan_out.question import FanOutReply
from lb.proxy.fan_out.result import Result, answered_http, unanswered
from lb.proxy.fan_out.views import Views
from tests.fakes.backends import make_backend
from tests.unit.proxy.fan_out.stage import grpc_question, http_question

INDEX = http_question(b"POST", b"/v2/repository/index")
LOGGING = http_question(b"GET", b"/v2/logging")
STATS = http_question(b"GET", b"/v2/models/m/stats")
UNKNOWN = b'{"error":"requested model \'m\' is not available"}'


def said(name: str, body: bytes, status: int = 200, at: float = 1.0) -> Result:
    return answered_http(make_backend(name), HttpAnswer(status, (), body), at, at + 0.5)


def lost(name: str, outcome: Outcome) -> Result:
    error = UpstreamError(outcome, "cut off")
    return unanswered(make_backend(name), AppProtocol.HTTP, error)


async def test_those_who_answer_are_merged() -> None:
    reply = await Views().combine(
        INDEX, [said("a", b'[{"name":"x"}]'), said("b", b'[{"name":"y"}]')]
    )
    assert (reply.status, reply.body) == (200, b'[{"name":"x"},{"name":"y"}]')
    assert reply.content_type == b"application/json"
    assert reply.backends == ("a", "b")


async def test_who_is_missing_is_logged_unless_it_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = [
        said("a", b"[]"),
        said("b", b"no list"),
        lost("c", Outcome.DEADLINE),
        lost("d", Outcome.CONNECT_REFUSED),
        said("e", b'{"error":"restricted"}', 403),
    ]
    with caplog.at_level(logging.WARNING):
        reply = await Views().combine(INDEX, results)
    assert reply.body == b"[]"
    assert [record.__dict__["backend"] for record in caplog.records] == ["b", "c", "e"]


async def test_who_does_not_have_a_model_is_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    entry = b'{"model_stats":[{"name":"m","version":"1","inference_count":3}]}'
    reply = await Views().combine(STATS, [said("a", UNKNOWN, 400), said("b", entry)])
    assert (reply.status, reply.body) == (200, entry)
    assert not caplog.records


async def test_when_nobody_has_it_one_servers_words_are_the_answer() -> None:
    reply = await Views().combine(STATS, [said("a", UNKNOWN, 400), said("b", UNKNOWN, 400)])
    assert (reply.status, reply.body) == (400, UNKNOWN)
    reply = await Views().combine(STATS, [lost("a", Outcome.DEADLINE), said("b", UNKNOWN, 400)])
    assert (reply.status, reply.body) == (400, UNKNOWN)


async def test_when_nobody_answers_that_is_the_answer() -> None:
    reply = await Views().combine(STATS, [lost("a", Outcome.DEADLINE)])
    assert (reply.status, reply.reason) == (504, Reason.DEADLINE)
    assert "a: cut off" in json.loads(reply.body)["error"]


async def test_a_contradiction_is_an_error_of_ours() -> None:
    reply = await Views().combine(LOGGING, [said("a", b'{"x":1}'), said("b", b'{"x":2}')])
    assert (reply.status, reply.reason) == (409, Reason.BACKENDS_DIFFER)
    assert json.loads(reply.body)["error"].endswith("x is 1 on a and 2 on b")


async def test_statistics_are_remembered() -> None:
    def body(count: int) -> bytes:
        return b'{"model_stats":[{"name":"m","version":"1","inference_count":%d}]}' % count

    views = Views()
    await views.combine(STATS, [said("a", body(3)), said("b", body(4))])
    reply = await views.combine(STATS, [said("a", body(1), at=5.0)])
    assert reply.body == body(8)


async def test_sums_are_whole_where_not_all_can_be_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "MAX_COUNTERS", 70)
    entries = [
        {"name": f"m{at}", "version": "1", "inference_count": 5, "execution_count": 1}
        for at in range(9)
    ]
    body = json.dumps({"model_stats": entries}).encode()
    views = Views()
    reply = await views.combine(STATS, [said(name, body) for name in "abc"])
    assert {each["inference_count"] for each in json.loads(reply.body)["model_stats"]} == {15}
    assert 0 < len(views.memory) <= 70


async def test_sums_that_cannot_be_written_are_an_error() -> None:
    usage = b'{"type":"GPU","id":0,"byte_size":%b}' % (b"9" * 4300)
    body = b'{"model_stats":[{"name":"m","version":"1","memory_usage":[%b]}]}' % usage
    reply = await Views().combine(STATS, [said("a", body), said("b", body)])
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_PROTOCOL)


async def test_bottomless_answers_are_the_fault_of_who_gives_them() -> None:
    deep = b'[{"name":"x","y":' + b"[" * 900 + b"]" * 900 + b"}]"
    stats = b'{"model_stats":[{"name":"m","y":' + b"[" * 900 + b"]" * 900 + b"}]}"
    assert (await Views().combine(INDEX, [said("a", deep), said("b", deep)])).status in (200, 502)
    assert (await Views().combine(STATS, [said("a", stats)])).status in (200, 502)
    bottomless = stats.replace(b"[" * 900, b"[" * 9000).replace(b"]" * 900, b"]" * 9000)
    reply = await Views().combine(STATS, [said("a", bottomless)])
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_PROTOCOL)


async def turns_beside(work: Awaitable[FanOutReply]) -> tuple[FanOutReply, int]:
    """The result, and how many loop iterations it took."""
    merging = asyncio.ensure_future(work)
    turns = 0
    while not merging.done():
        await asyncio.sleep(0)
        turns += 1
    return merging.result(), turns


async def test_large_views_are_merged_in_many_steps() -> None:
    entries = ",".join(
        f'{{"name":"model-{at}","version":"1","state":"READY"}}' for at in range(5000)
    )
    body = f"[{entries}]".encode()
    reply, turns = await turns_beside(Views().combine(INDEX, [said(name, body) for name in "abc"]))
    assert reply.body == body
    assert turns > 3 * len(body) / STEP_BYTES


async def test_many_short_answers_are_read_and_freed_in_steps() -> None:
    entry = b'[{"name":"x","version":"1","state":"READY","reason":"%b"}]' % (b"r" * 150)
    answers = [said(str(number), entry) for number in range(200)]
    reply, turns = await turns_beside(Views().combine(INDEX, answers))
    assert reply.body == entry
    assert turns >= len(answers)


async def test_small_views_do_not_wait_for_a_large_one() -> None:
    entries = [
        {"name": f"m{at:05}", "version": "1", "inference_count": at, "text": "x" * 500}
        for at in range(1000)
    ]
    body = json.dumps({"model_stats": entries}, separators=(",", ":")).encode()
    one = b'{"model_stats":[{"name":"m","version":"1","inference_count":3}]}'
    views = Views()
    large = asyncio.create_task(views.combine(STATS, [said("a", body)]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not large.done()
    _, turns = await turns_beside(views.combine(STATS, [said("a", one)]))
    assert not large.done()
    assert turns <= 2
    assert (await large).body == body


async def test_a_large_view_that_is_stopped_leaves_the_way_to_the_next() -> None:
    body = b"[" + b",".join(b'{"name":"m%d"}' % at for at in range(5000)) + b"]"
    views = Views()
    first = asyncio.create_task(views.combine(INDEX, [said("a", body)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await views.combine(INDEX, [said("a", body)])).body == body


async def test_an_answer_with_a_faulty_entry_is_left_out_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = b'{"model_stats":[{"name":"m","version":"1","inference_count":3}]}'
    bad = good.replace(b"3}", b"%d}" % 2**64)
    with caplog.at_level(logging.WARNING):
        reply = await Views().combine(STATS, [said("a", bad), said("b", good)])
    assert (reply.status, reply.body) == (200, good)
    assert [record.__dict__["backend"] for record in caplog.records] == ["a"]


async def test_there_is_a_view_for_every_call_that_is_merged() -> None:
    views = Views()
    for name in (
        "ServerMetadata", "RepositoryIndex", "ModelStatistics", "SystemSharedMemoryStatus",
        "CudaSharedMemoryStatus", "TraceSetting", "LogSettings",
    ):  # fmt: skip
        question = grpc_question(name)
        reply = await views.combine(question, [lost("a", Outcome.DEADLINE)])
        assert reply.reason is Reason.DEADLINE
    with pytest.raises(LookupError, match="no view"):
        await views.combine(grpc_question("ModelInfer"), [said("a", b"")])
