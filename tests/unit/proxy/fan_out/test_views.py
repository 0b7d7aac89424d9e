"""Views that are put together from what each backend says."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.kserve.merge import memory
from lb.net.ask.http import HttpAnswer
from lb.proxy.fan_out.result import Result, answered_http, unanswered
from lb.proxy.fan_out.views import Views
from tests.fakes.backends import make_backend
from tests.fakes.fan_out import grpc_question, http_question

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
    monkeypatch.setattr(memory, "MAX_COUNTERS", 3)
    entries = [
        {"name": f"m{at}", "version": "1", "inference_count": 5, "execution_count": 1}
        for at in range(9)
    ]
    body = json.dumps({"model_stats": entries}).encode()
    views = Views()
    reply = await views.combine(STATS, [said(name, body) for name in "abc"])
    assert {each["inference_count"] for each in json.loads(reply.body)["model_stats"]} == {15}
    assert len(views.memory) <= 6


async def test_sums_that_cannot_be_written_are_an_error() -> None:
    usage = b'{"type":"GPU","id":0,"byte_size":%b}' % (b"9" * 4300)
    body = b'{"model_stats":[{"name":"m","version":"1","memory_usage":[%b]}]}' % usage
    reply = await Views().combine(STATS, [said("a", body), said("b", body)])
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_PROTOCOL)


async def test_bottomless_answers_are_the_fault_of_who_gives_them() -> None:
    deep = b'[{"name":"x","y":' + b"[" * 900 + b"]" * 900 + b"}]"
    stats = b'{"model_stats":[{"name":"m","y":' + b"[" * 900 + b"]" * 900 + b"}]}"
    assert (await Views().combine(INDEX, [said("a", deep), said("b", deep)])).status in (200, 502)
    reply = await Views().combine(STATS, [said("a", stats)])
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_PROTOCOL)


async def test_large_views_do_not_hold_up_the_loop() -> None:
    """They are merged in a thread, of which the loop's own is woken up every few milliseconds."""
    entries = ",".join(
        f'{{"name":"model-{at}","version":"1","state":"READY"}}' for at in range(5000)
    )
    body = f"[{entries}]".encode()
    merging = asyncio.create_task(Views().combine(INDEX, [said(name, body) for name in "abc"]))
    turns = 0
    while not merging.done():
        await asyncio.sleep(0)
        turns += 1
    assert merging.result().body == body
    assert turns > 3


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
