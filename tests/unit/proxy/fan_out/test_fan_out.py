"""Questions to all backends: who is asked, and when the answer is an error."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace

import pytest

from lb.domain.backend import BackendKind
from lb.domain.control import Reach
from lb.domain.outcome import Reason
from lb.kserve import inference_pb2 as pb
from lb.proxy.fan_out.calls import Calls, gave_up
from lb.proxy.fan_out.fan_out import changes_something
from lb.proxy.fan_out.options import FanOutOptions
from lb.proxy.fan_out.question import Departure, FanOutReply, FanOutRequest
from lb.proxy.fan_out.result import Result
from tests.unit.proxy.fan_out.stage import (
    Stage,
    backend_at,
    grpc_question,
    http_question,
    serving,
    silent,
)
from tests.wire.http1 import Peer, Script, reply, scripted_backend
from tests.wire.waiting import eventually

LOAD = http_question(b"POST", b"/v2/repository/models/m/load", b"{}")
UNLOAD = http_question(b"POST", b"/v2/repository/models/m/unload")
INDEX = http_question(b"POST", b"/v2/repository/index")
LOGGING = http_question(b"GET", b"/v2/logging")
REGISTER = http_question(b"POST", b"/v2/cudasharedmemory/region/r/register", b"{}")


def error_of(answer: FanOutReply) -> str:
    text = json.loads(answer.body)["error"]
    assert isinstance(text, str)
    return text


async def test_all_are_asked_and_one_answers() -> None:
    stage = Stage()
    async with scripted_backend(serving(b"")) as a, scripted_backend(serving(b"")) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        answer = await stage.ask(LOAD)
        assert (answer.status, answer.body, answer.backends) == (200, b"", ("a", "b"))
        assert [each.requests[0].target for each in (a, b)] == [LOAD.target] * 2
    assert stage.news == [("RepositoryModelLoad", b"m", "ab")]
    assert stage.settled_on == "ab"
    assert stage.outcomes == {"a": "ok", "b": "ok"}


async def test_a_failure_is_told_with_its_backend_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    bad = serving((400, b'{"error":"bad model"}'))
    async with scripted_backend(serving(b"")) as a, scripted_backend(bad) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        with caplog.at_level(logging.INFO):
            answer = await stage.ask(LOAD)
    assert answer.status == 400
    assert error_of(answer) == "RepositoryModelLoad failed on 1 of 2 backends: b: bad model"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    said = record.__dict__
    assert (said["operation"], said["subject"]) == ("RepositoryModelLoad", "m")
    assert (said["backends"], said["failed"]) == ("a, b", "b: bad model")
    assert stage.news == [("RepositoryModelLoad", b"m", "ab")]


async def test_backends_that_are_down_do_not_count_and_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    async with scripted_backend() as gone:
        target = gone.target
    async with scripted_backend(serving(b"")) as a:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("down", "127.0.0.1:1"), is_open=False)
        stage.add(backend_at("refusing", target))
        stage.add(backend_at("other", a.target, kind=BackendKind.GENERIC))
        with caplog.at_level(logging.INFO):
            answer = await stage.ask(LOAD)
        assert len(a.requests) == 1
    assert (answer.status, answer.backends) == (200, ("a",))
    (record,) = caplog.records
    assert record.__dict__["not_asked"] == "down, refusing"
    assert stage.news == [("RepositoryModelLoad", b"m", "a")]


async def test_without_anybody_to_ask_there_is_an_error() -> None:
    stage = Stage()
    stage.add(backend_at("a", "127.0.0.1:1"), is_open=False)
    for question in (LOAD, INDEX):
        answer = await stage.ask(question)
        assert (answer.status, answer.reason) == (503, Reason.NO_BACKEND)


async def test_who_refuses_everywhere_is_an_error() -> None:
    stage = Stage()
    async with scripted_backend() as gone:
        stage.add(backend_at("a", gone.target))
    answer = await stage.ask(LOAD)
    assert (answer.status, answer.reason) == (503, Reason.CONNECT_REFUSED)


async def test_stragglers_are_waited_for_up_to_the_deadline() -> None:
    stage = Stage(FanOutOptions(deadline_s=1.0, read_timeout_s=1.0))
    async with scripted_backend(serving(b"[]")) as a, scripted_backend(silent) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        answer = await stage.ask(LOAD)
        assert (answer.status, answer.reason) == (504, Reason.DEADLINE)
        assert error_of(answer).endswith("b: no answer within 1s")
        answer = await stage.ask(INDEX)
        assert (answer.status, answer.body) == (200, b"[]")


async def test_a_backend_that_goes_down_is_not_waited_for() -> None:
    stage = Stage()
    async with scripted_backend(serving(b"")) as a, scripted_backend(silent) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(b.requests) == 1)
        stage.roster.pop()
        answer = await asking
    assert answer.status == 502
    assert error_of(answer).endswith("b: went down before it answered")
    assert len(stage.tasks) == 0


async def test_an_answer_counts_although_a_successor_takes_its_name_over_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "lb")
    stage, may_answer = Stage(), asyncio.Event()

    async def late(peer: Peer) -> None:
        await peer.request()
        await may_answer.wait()
        await peer.send(reply(b"", b"Content-Type: application/json\r\n", b"200 OK"))

    async with (
        scripted_backend(serving(b"")) as old,
        scripted_backend(late) as b,
        scripted_backend(serving(b"")) as new,
    ):
        before = stage.add(backend_at("a", old.target))
        stage.add(backend_at("b", b.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(old.requests) == len(b.requests) == 1)
        before.name = "a~1"
        stage.roster[0] = replace(stage.roster[0], backend=backend_at("a", new.target))
        may_answer.set()
        answer = await asking
    assert (answer.status, answer.backends) == (200, ("a~1", "b", "a"))
    assert len(new.requests) == 1  # it is told as well
    (record,) = [each for each in caplog.records if each.getMessage() == "control call"]
    assert record.__dict__["backends"] == "a, a~1, b"


async def test_a_backend_that_leaves_is_not_waited_for_because_of_its_successor() -> None:
    stage = Stage()
    async with scripted_backend(silent) as old, scripted_backend(serving(b"")) as new:
        stage.add(backend_at("a", old.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(old.requests) == 1)
        stage.roster[0] = replace(stage.roster[0], backend=backend_at("a", new.target))
        answer = await asking
    assert error_of(answer).endswith("went down before it answered")


async def test_rolling_asks_one_after_the_other_and_stops_at_a_failure() -> None:
    stage = Stage(FanOutOptions(rolling=True))
    bad = serving((500, b'{"error":"bad"}'))
    async with (
        scripted_backend(serving(b"")) as a,
        scripted_backend(bad) as b,
        scripted_backend(serving(b"")) as c,
    ):
        for name, each in (("a", a), ("b", b), ("c", c)):
            stage.add(backend_at(name, each.target))
        answer = await stage.ask(LOAD)
        assert error_of(answer).endswith("on 1 of 2 backends: b: bad; not asked any more: c")
        assert c.requests == []
        b.script = serving(b"")
        assert (await stage.ask(LOAD)).status == 200
        assert [len(each.requests) for each in (a, b, c)] == [2, 2, 1]


async def test_rolling_is_one_at_a_time() -> None:
    stage = Stage(FanOutOptions(rolling=True))
    under_way: list[int] = []

    async def load(peer: Peer) -> None:
        await peer.request()
        under_way.append(1)
        await asyncio.sleep(0.02)
        assert len(under_way) == 1
        under_way.pop()
        await peer.send(reply(b""))

    async with scripted_backend(load) as a, scripted_backend(load) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        assert (await stage.ask(LOAD)).status == 200


async def test_calls_that_change_the_same_model_reach_all_backends_in_one_order() -> None:
    stage = Stage()

    async def slow(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.send(reply(b""))

    async with scripted_backend(serving(b"")) as a, scripted_backend(slow) as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("b", b.target))
        await asyncio.gather(*(stage.fan_out.ask(each) for each in (LOAD, UNLOAD, LOAD)))
        orders = [[request.target for request in each.requests] for each in (a, b)]
    assert orders == [[LOAD.target, UNLOAD.target, LOAD.target]] * 2


def told_when(event: asyncio.Event) -> Script:
    """A backend that carries out what it is told once `event` is set."""

    async def load(peer: Peer) -> None:
        await peer.request()
        await event.wait()
        await peer.send(reply(b""))

    return load


async def test_who_comes_up_meanwhile_is_told_as_well() -> None:
    stage, may_end = Stage(), asyncio.Event()
    async with scripted_backend(told_when(may_end)) as a, scripted_backend(serving(b"")) as b:
        stage.add(backend_at("a", a.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(a.requests) == 1)
        stage.add(backend_at("b", b.target))
        may_end.set()
        assert (await asking).backends == ("a", "b")
        assert (len(a.requests), len(b.requests)) == (1, 1)
        assert stage.settled_on == "ab"


async def test_who_was_not_to_be_reached_is_told_when_it_is_back() -> None:
    stage, may_end = Stage(), asyncio.Event()
    async with scripted_backend(told_when(may_end)) as a:
        stage.add(backend_at("a", a.target))
        async with scripted_backend(serving(b"")) as b:
            pass
        stage.add(backend_at("b", b.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(a.requests) == 1)
        port = int(b.target.partition(":")[2])
        async with scripted_backend(serving(b""), port=port) as b:
            may_end.set()
            assert (await asking).backends == ("a", "b")
            assert len(b.requests) == 1


async def test_what_all_refuse_is_not_asked_of_who_comes_up() -> None:
    stage, may_end = Stage(), asyncio.Event()

    async def bad(peer: Peer) -> None:
        await peer.request()
        await may_end.wait()
        await peer.send(reply(b'{"error":"bad"}', status=b"400 Bad"))

    async with scripted_backend(bad) as a, scripted_backend(serving(b"")) as b:
        stage.add(backend_at("a", a.target))
        asking = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(a.requests) == 1)
        stage.add(backend_at("b", b.target))
        may_end.set()
        assert (await asking).status == 400
        assert b.requests == []


async def test_what_nobody_waits_for_any_more_does_not_begin() -> None:
    stage, may_end = Stage(), asyncio.Event()
    async with scripted_backend(told_when(may_end)) as a:
        stage.add(backend_at("a", a.target))
        left = replace(LOAD, departure=Departure())
        both = [asyncio.create_task(stage.fan_out.ask(left)) for _ in range(2)]
        await eventually(lambda: len(a.requests) == 1)
        left.departure.happen()
        may_end.set()
        first, second = await asyncio.gather(*both)
        assert (first.status, second.reason) == (200, Reason.CLIENT_GONE)
        assert len(a.requests) == 1


async def test_changes_and_looks_do_not_keep_each_other_away() -> None:
    stage, may_end = Stage(FanOutOptions(concurrent=1)), asyncio.Event()
    async with scripted_backend(told_when(may_end)) as a:
        stage.add(backend_at("a", a.target))
        loading = asyncio.create_task(stage.ask(LOAD))
        await eventually(lambda: len(a.requests) == 1)
        a.script = serving(b"[]")
        assert stage.fan_out.is_changing
        assert (await stage.fan_out.ask(INDEX)).status == 200
        may_end.set()
        assert (await loading).status == 200
        assert not stage.fan_out.is_changing


async def test_one_that_accepts_is_enough_for_cuda_memory() -> None:
    stage = Stage()
    bad = serving((400, b'{"error":"no such device"}'))
    async with scripted_backend(bad) as a, scripted_backend(serving(b"")) as b:
        stage.add(backend_at("a", a.target))
        assert (await stage.ask(REGISTER)).status == 400
        stage.add(backend_at("b", b.target))
        assert (await stage.ask(REGISTER)).status == 200


async def test_settings_of_a_model_are_changed_where_it_is() -> None:
    stage = Stage()
    question = http_question(b"POST", b"/v2/models/m/trace/setting", b"{}")
    lacks = serving((400, b'{"error":"Request for unknown model : m"}'))
    async with scripted_backend(lacks) as a, scripted_backend(serving(b"{}")) as b:
        stage.add(backend_at("a", a.target))
        assert (await stage.ask(question)).status == 400
        stage.add(backend_at("b", b.target))
        assert (await stage.ask(question)).body == b"{}"


async def test_a_defect_of_ours_is_an_answer_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.roster = None  # type: ignore[assignment]
    answer = await stage.ask(INDEX)
    assert (answer.status, answer.reason) == (500, Reason.INTERNAL)
    assert caplog.records[0].exc_info is not None


async def test_too_many_different_views_at_once_are_refused() -> None:
    stage = Stage(FanOutOptions(concurrent=1))
    async with scripted_backend(silent) as a:
        stage.add(backend_at("a", a.target))
        first = asyncio.create_task(stage.fan_out.ask(INDEX))
        await eventually(lambda: len(a.requests) == 1)
        answer = await stage.fan_out.ask(LOGGING)
        assert (answer.status, answer.reason) == (503, Reason.BACKENDS_FULL)
        a.script = serving(b"{}")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await stage.ask(LOGGING)).status == 200
    await eventually(lambda: len(stage.tasks) == 0)


async def test_who_ask_the_same_while_one_is_asked_share_the_next_answer() -> None:
    """Their answer rests on nothing that was said before they asked."""
    stage, may_end = Stage(), asyncio.Event()
    said = iter([b"[]", b'[{"name":"new"}]'])

    async def serve(peer: Peer) -> None:
        await peer.request()
        body = next(said)
        await may_end.wait()
        await peer.send(reply(body))

    async with scripted_backend(serve) as a:
        stage.add(backend_at("a", a.target))
        first = asyncio.create_task(stage.fan_out.ask(INDEX))
        await eventually(lambda: len(a.requests) == 1)
        later = [asyncio.create_task(stage.fan_out.ask(INDEX)) for _ in range(50)]
        await asyncio.sleep(0)
        may_end.set()
        assert (await first).body == b"[]"
        assert {(await each).body for each in later} == {b'[{"name":"new"}]'}
        assert len(a.requests) == 2
    assert stage.memory_budget.held == 0


async def test_a_view_ends_when_its_last_client_has_left() -> None:
    stage = Stage()
    async with scripted_backend(silent) as a:
        stage.add(backend_at("a", a.target))
        clients = [replace(INDEX, departure=Departure()) for _ in range(2)]
        asking = [asyncio.create_task(stage.fan_out.ask(each)) for each in clients]
        await eventually(lambda: len(a.requests) == 1)
        clients[0].departure.happen()
        assert (await asking[0]).reason is Reason.CLIENT_GONE
        assert len(stage.tasks) > 0
        clients[1].departure.happen()
        assert (await asking[1]).reason is Reason.CLIENT_GONE
        await eventually(lambda: len(stage.tasks) == 0)
    assert stage.memory_budget.held == 0


async def test_answers_that_do_not_fit_into_memory_are_an_error() -> None:
    stage = Stage(ceiling=1000)
    async with scripted_backend(serving(b"[" + b" " * 2000 + b"]")) as a:
        stage.add(backend_at("a", a.target))
        for question in (INDEX, LOAD):
            answer = await stage.ask(question)
            assert (answer.status, answer.reason) == (503, Reason.MEMORY)


async def test_a_request_that_does_not_fit_into_memory_is_not_asked() -> None:
    stage = Stage(ceiling=1000)
    async with scripted_backend(serving(b"")) as a:
        stage.add(backend_at("a", a.target))
        answer = await stage.ask(replace(LOAD, body=bytes(1001)))
        assert (answer.status, answer.reason) == (503, Reason.MEMORY)
        assert a.requests == []


def test_grpc_settings_are_read_when_none_are_given() -> None:
    assert not changes_something(grpc_question("LogSettings"))
    only_model = pb.TraceSettingRequest(model_name="m").SerializeToString()
    assert not changes_something(grpc_question("TraceSetting", only_model))
    settings = {"trace_rate": pb.TraceSettingRequest.SettingValue(value=["1"])}
    change = pb.TraceSettingRequest(settings=settings).SerializeToString()
    assert changes_something(grpc_question("TraceSetting", change))
    assert changes_something(grpc_question("LogSettings", b"\xff"))
    assert changes_something(grpc_question("RepositoryModelLoad"))
    assert not changes_something(http_question(b"GET", b"/v2/logging"))
    assert changes_something(http_question(b"POST", b"/v2/logging"))


async def test_answers_over_grpc_that_nobody_can_give_say_so() -> None:
    stage = Stage()
    stage.add(backend_at("a", "127.0.0.1:1"))
    answer = await stage.ask(grpc_question("RepositoryIndex"))
    assert (answer.status, answer.reason) == (14, Reason.NO_BACKEND)
    assert answer.detail == "no backend that can be asked over grpc is reachable"


async def test_hundreds_are_not_all_asked_in_one_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = [0]
    begun: Counter[int] = Counter()

    async def put(_self: Calls, question: FanOutRequest, reach: Reach, *_: object) -> Result:
        begun[turns[0]] += 1
        await asyncio.sleep(0)
        return gave_up(reach, question)

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Calls, "put", put)
    stage = Stage()
    for number in range(100):
        stage.add(backend_at(f"b{number}", "127.0.0.1:1"))
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count_turns())
        await stage.ask(http_question(b"POST", b"/v2/repository/index"))
        counting.cancel()
    assert sum(begun.values()) == 100
    assert max(begun.values()) <= 8


LOOP = (508, b'{"error": "loop detected: the request has passed this load balancer before: a"}')


@pytest.mark.parametrize("question", [LOAD, INDEX])
async def test_a_balancer_that_the_question_has_passed_does_not_count(
    question: FanOutRequest, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    good, back = scripted_backend(serving(b"[]")), scripted_backend(serving(LOOP))
    async with good as a, back as b:
        stage.add(backend_at("a", a.target))
        stage.add(backend_at("back", b.target))
        assert (await stage.ask(question)).status == 200
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("question", [LOAD, INDEX])
async def test_with_nobody_else_to_ask_a_loop_is_the_answer(question: FanOutRequest) -> None:
    stage = Stage()
    async with scripted_backend(serving(LOOP)) as b:
        stage.add(backend_at("back", b.target))
        answer = await stage.ask(question)
    assert answer.status == 508
    assert error_of(answer).startswith("loop detected: ")


async def test_the_hop_marker_of_a_question_goes_along_in_either_protocol() -> None:
    stage = Stage()
    marker = (b"cdn-loop", b"triton-lb-0123456789abcdef")
    unload = pb.RepositoryModelUnloadRequest(model_name="m").SerializeToString()
    async with scripted_backend(serving(b"[]")) as a:
        stage.add(backend_at("a", a.target))
        for question in (INDEX, grpc_question("RepositoryModelUnload", unload)):
            await stage.ask(replace(question, fields=(*question.fields, marker)))
        assert [each.field(marker[0]) for each in a.requests] == [marker[1]] * 2
