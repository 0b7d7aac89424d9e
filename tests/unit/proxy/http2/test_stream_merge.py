"""Answers of several backends on one stream, and how such a stream ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome, Reason
from lb.kserve.pending_responses import ENDED_S, UNFINISHED_REQUESTS
from lb.kserve.stream_answers import error_answer
from lb.proxy.http2 import stream_merge
from lb.proxy.http2.options import Http2Options
from tests.fakes.paper_streams import PaperStreams, request, result
from tests.fakes.relay import snapshot_of
from tests.wire.frames import (
    CANCEL,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS_ACK,
    data,
    headers,
    rst,
    settings,
    window_update,
)

STOPPED = ((b"grpc-status", b"14"), (b"grpc-message", b"Server exiting"))


async def test_the_head_of_the_first_backend_is_the_clients() -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True), request("seq", 2, "2", start=True))
    paper.backends[1].sends(headers(1, [*RESPONSE_FIELDS, (b"x-from", b"b1")]))
    paper.backends[0].sends(headers(1, [*RESPONSE_FIELDS, (b"x-from", b"b0")]))
    (head,) = [frame for frame in paper.looks() if frame.kind == HEADERS]
    assert b"b1" in head.payload


async def test_what_a_model_does_may_become_known_during_the_stream() -> None:
    paper = PaperStreams(backends=3)
    known = paper.bench.ref.current
    paper.bench.ref.publish(replace(known, routes={}))
    paper.begin_two()
    paper.bench.ref.publish(known)
    paper.send(*(request("seq", int(name), name, start=name == "3") for name in "123"))
    paper.backends[2].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "3")))
    assert paper.ids() == []
    for number, name in ((1, "2"), (0, "1")):
        paper.backends[number].sends(data(1, result("seq", name)))
    assert paper.ids() == ["1", "2", "3"]


async def test_what_a_model_does_may_become_unknown_during_the_stream() -> None:
    paper = PaperStreams(backends=3)
    paper.begin_two()
    known = paper.bench.ref.current
    paper.send(request("seq", 1, "a"))
    paper.bench.ref.publish(replace(known, routes={}))
    paper.send(request("seq", 1, "b"))
    paper.bench.ref.publish(known)
    paper.send(request("seq", 3, "c", start=True))
    paper.backends[2].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "c")))
    assert paper.ids() == []
    paper.backends[0].sends(data(1, result("seq", "a") + result("seq", "b")))
    assert sorted(paper.ids()) == ["a", "b", "c"]


async def test_the_error_of_a_model_that_nobody_has_comes_in_its_turn() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.bench.ref.publish(replace(paper.bench.ref.current, knows_all=True))
    paper.send(request("seq", 2, "a"), request("nobody's", 0, "b"), request("seq", 2, "c"))
    paper.backends[1].sends(data(1, result("seq", "a") + result("seq", "c")))
    assert paper.ids() == ["a"]
    paper.backends[0].sends(data(1, error_answer(b"b", "unknown model")))
    assert paper.ids() == ["b", "c"]


@pytest.mark.parametrize("is_error", [True, False])
async def test_a_model_that_was_loaded_since_it_was_asked_for_may_owe_more_than_one_answer(
    is_error: bool,
) -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.bench.ref.publish(replace(paper.bench.ref.current, knows_all=True))
    paper.send(request("loaded", 0, "b"))
    said = error_answer(b"b", "unknown model") if is_error else result("loaded", "b")
    paper.backends[0].sends(data(1, said))
    assert len(paper.answers()) == 1
    paper.backends[0].sends(rst(1, 2))
    if is_error:
        assert paper.status() is None
        paper.send(request("seq", 2, "c"))
        paper.backends[1].sends(data(1, result("seq", "c")))
        assert paper.ids() == ["c"]
    else:
        assert paper.status() == 13
        assert paper.bench.is_clean()


@pytest.mark.parametrize("comes", ["before", "after"])
async def test_a_backend_that_gives_more_answers_than_were_due_may_owe_others(comes: str) -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True))
    more = data(1, result("seq", "1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), more, *([more] * (comes == "before")))
    paper.send(request("seq", 2, "2", start=True))
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "2")))
    if comes == "after":
        paper.backends[0].sends(more)
    assert sorted(paper.ids()) == ["1", "1", "2"]
    paper.backends[0].sends(rst(1, 2))
    assert paper.status() == 13
    assert paper.bench.is_clean()


async def test_a_client_that_takes_nothing_holds_up_both_backends() -> None:
    paper = PaperStreams(options=Http2Options(answer_window=1000, stream_window_max=1000))
    paper.begin_two()
    sent = [result("free", str(number), bytes(900)) for number in range(4)]
    paper.send(request("free", 3, "f", start=True), request("free", 4, "g", start=True))
    paper.client.sends(settings({INITIAL_WINDOW_SIZE: 0}))
    paper.looks()
    for number, answer in enumerate(sent[:2]):
        paper.backends[number].sends(data(1, answer))
    assert paper.ids() == []
    paper.client.sends(window_update(1, 100_000))
    for _ in range(4):
        await paper.turn()
    assert sorted(paper.ids()) == ["0", "1"]
    assert paper.bench.memory_budget.held == 0


async def test_what_waits_when_the_second_stream_is_opened_keeps_its_place() -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
    paper.client.sends(settings({INITIAL_WINDOW_SIZE: 0}), SETTINGS_ACK)
    answer = result("seq", "1", bytes(500))
    paper.backends[0].sends(data(1, answer[:300]))
    assert paper.bench.memory_budget.held == 300
    paper.send(request("seq", 2, "2", start=True), request("seq", 1, "3"))
    assert paper.requests(1) == ["2"]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "2")))
    paper.backends[0].sends(data(1, answer[300:] + result("seq", "3")))
    paper.client.sends(window_update(1, 100_000))
    for _ in range(4):
        await paper.turn()
    assert paper.ids() == ["1", "2", "3"]
    paper.send(end=True)
    paper.end(1, 0)
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_trailers_wait_for_the_last_backend() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(end=True)
    assert [f.ends_stream for b in paper.backends for f in b.gets() if f.kind == DATA][-1]
    paper.end(0)
    assert paper.status() is None
    paper.end(1)
    assert paper.status() == 0
    assert paper.bench.is_clean()
    (record,) = paper.bench.finished.records
    assert (record.grpc_status, record.reason) == (0, None)


async def test_a_backend_lost_within_a_message_ends_the_stream() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("seq", 1, "a"), request("seq", 2, "b"))
    paper.backends[0].sends(data(1, result("seq", "a", bytes(100))[:50]))
    paper.backends[0].sends(rst(1, 2))
    assert len(paper.resets()) == 1
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.UPSTREAM_RESET


async def test_answers_that_came_are_given_before_the_errors_of_a_lost_backend() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("seq", 1, "a"), *(request("seq", 2, name) for name in "bcd"))
    paper.backends[1].sends(data(1, result("seq", "b") + result("seq", "c", bytes(99))[:40]))
    paper.backends[1].sends(rst(1, 2))
    assert paper.ids() == []
    paper.backends[0].sends(data(1, result("seq", "a")))
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c", "d"]
    errors = [answer.error_message for answer in answers]
    assert errors[:2] == ["", ""]
    assert all("sequence 2 of model seq" in error and "b1" in error for error in errors[2:])
    paper.send(end=True)
    paper.end(0)
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("status", [b"0", b"13", b"14"])
async def test_a_backend_that_ends_within_a_message_to_the_client_ends_the_stream(
    status: bytes,
) -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("seq", 1, "a"), request("seq", 1, "b"), request("seq", 2, "c"), end=True)
    paper.backends[0].sends(data(1, result("seq", "a", bytes(100))[:50]))
    paper.backends[0].sends(headers(1, [(b"grpc-status", status)], end=True))
    assert len(paper.resets()) == 1
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("status", [b"0", b"13", b"14"])
async def test_half_a_message_that_was_not_due_becomes_an_error(status: bytes) -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("seq", 1, "a"), request("seq", 2, "b"), request("seq", 1, "c"), end=True)
    paper.backends[1].sends(data(1, result("seq", "b", bytes(100))[:50]))
    paper.backends[1].sends(headers(1, [(b"grpc-status", status)], end=True))
    paper.backends[0].sends(data(1, result("seq", "a") + result("seq", "c")))
    paper.end(0)
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c"]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_what_others_said_before_they_ended_outlives_the_last_backend() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("seq", 1, "a"), request("seq", 2, "b"), end=True)
    paper.backends[1].sends(data(1, result("seq", "b")))
    paper.end(1)
    assert paper.ids() == []
    paper.backends[0].sends(rst(1, 2))
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["a", "b"]
    assert [bool(answer.error_message) for answer in answers] == [True, False]
    assert paper.status() == 13
    assert paper.bench.is_clean()


async def test_decoupled_sequences_that_ended_long_ago_are_owed_nothing() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(request("free", 3, "f", start=True), request("free", 4, "g", start=True))
    paper.send(request("free", 4, "h", end=True))
    paper.bench.loop.advance(2 * ENDED_S)
    paper.backends[1].sends(rst(1, 2))
    assert paper.ids() == []
    paper.backends[0].sends(rst(1, 2))
    assert paper.ids() == ["f"]
    assert paper.status() == 13
    assert paper.bench.is_clean()


async def test_a_backend_that_owes_nobody_knows_what_takes_the_stream_along() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.send(*[request("free", 0, "x")] * (UNFINISHED_REQUESTS + 1))
    paper.backends[0].sends(rst(1, 2))
    for _ in range(UNFINISHED_REQUESTS // 200):
        await paper.turn()
    assert paper.status() == 13
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.UPSTREAM_RESET


async def with_many_owed(count: int) -> PaperStreams:
    """The first of two backends owes so many answers, which the client has room for, and the second
    one has given the answer to the last request."""
    paper = PaperStreams()
    paper.begin_two()
    paper.client.sends(window_update(1, 2**28))
    paper.send(*(request("seq", 1, str(number)) for number in range(count)))
    paper.send(request("seq", 2, "last"))
    paper.backends[1].sends(data(1, result("seq", "last")))
    await paper.turn()
    assert paper.ids() == []
    return paper


async def test_very_many_errors_of_a_lost_backend_take_several_iterations() -> None:
    paper = await with_many_owed(3000)
    paper.backends[0].sends(rst(1, 2))
    answers = []
    for _ in range(3000 // 200):
        new = paper.answers()
        assert len(new) <= 200
        answers += new
        await asyncio.sleep(0)
        paper.bench.flush()
    answers += paper.answers()
    assert [each.infer_response.id for each in answers[:-1]] == [str(n) for n in range(3000)]
    assert all(each.error_message for each in answers[:-1])
    assert answers[-1].infer_response.id == "last"
    assert not answers[-1].error_message
    paper.send(end=True)
    paper.end(1)
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("end", ["reset", "client gone", "other lost"])
async def test_nothing_is_left_of_a_stream_that_ends_within_very_many_errors(end: str) -> None:
    paper = await with_many_owed(3000)
    paper.backends[0].sends(rst(1, 2))
    if end == "reset":
        paper.client.sends(rst(1, 8))
    elif end == "client gone":
        paper.client.goes()
    else:
        paper.backends[1].sends(rst(1, 2))
    for _ in range(3000 // 200):
        await paper.turn()
    if end == "other lost":
        assert paper.ids() == [*(str(number) for number in range(3000)), "last"]
        paper.client.goes()
    assert paper.bench.is_clean()


@pytest.mark.interpreted("a constant")
async def test_a_client_that_reads_no_answers_cannot_ask_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_merge, "MAX_UNANSWERED", 5)
    paper = PaperStreams()
    paper.begin_two()
    paper.send(*(request("seq", 1, str(number)) for number in range(6)))
    assert len(paper.resets()) == 1
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.MEMORY


@pytest.mark.interpreted("a constant")
async def test_a_client_that_reads_no_errors_cannot_ask_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_merge, "MAX_UNANSWERED", 5)
    paper = PaperStreams()
    paper.begin_two()
    full = paper.bench.backends[1]
    full.max_in_flight = 1
    paper.backends[1].sends(headers(1, OK_TRAILERS, end=True))
    full.in_flight += 1
    paper.send(request("seq", 1, "slow"))
    paper.send(*(request("seq", 2, str(number)) for number in range(4)))
    assert paper.resets() == []
    paper.send(request("seq", 2, "one more"))
    full.in_flight -= 1
    assert len(paper.resets()) == 1
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.MEMORY


async def test_the_clients_reset_and_deadline_and_a_full_memory_budget_end_all() -> None:
    for end in ("reset", "deadline", "memory_budget", "connection"):
        paper = PaperStreams((b"grpc-timeout", b"5S"), ceiling=2**20)
        paper.begin_two()
        paper.send(request("seq", 1, "a"), request("seq", 2, "b"))
        for backend in paper.backends:
            backend.gets()
        paper.backends[1].sends(data(1, result("seq", "b")))
        assert paper.bench.memory_budget.held
        if end == "reset":
            paper.client.sends(rst(1, CANCEL))
        elif end == "deadline":
            paper.bench.loop.advance(6.0)
            paper.bench.relay.flush()
        elif end == "memory_budget":
            paper.bench.memory_budget.resize(1)
            paper.bench.memory_budget.short_at = 1
            paper.bench.memory_budget.relieve()
            paper.bench.relay.flush()
        else:
            paper.client.goes()
        assert paper.bench.is_clean(), end
        for backend in paper.backends:
            codes = [frame.code for frame in backend.gets() if frame.kind == RST_STREAM]
            assert codes == [CANCEL], end
            assert not backend.connection.streams
        outcome = Outcome.DEADLINE if end == "deadline" else Outcome.CANCELLED
        assert paper.bench.outcomes.seen == [("b0", outcome), ("b1", outcome)], end


async def test_an_early_good_end_of_one_backend_leaves_the_other() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.end(1)
    paper.send(request("seq", 1, "a"))
    paper.backends[0].sends(data(1, result("seq", "a")))
    assert paper.ids() == ["a"]
    paper.send(request("seq", 2, "b"), end=True)
    paper.backends[1].sends(
        headers(3, RESPONSE_FIELDS), data(3, result("seq", "b")), headers(3, OK_TRAILERS, end=True)
    )
    paper.end(0)
    assert paper.ids() == ["b"]
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("model", ["seq", "free"])
async def test_requests_over_several_backends_are_on_the_memory_budget_until_they_are_answered(
    model: str,
) -> None:
    paper = PaperStreams()
    paper.begin_two()
    for number in range(300):
        paper.send(
            request(model, 10 + number if model == "free" else 1 + number % 2, f"{number:200}")
        )
    assert paper.bench.memory_budget.held > 600 * 290
    if model == "seq":
        for number in range(300):
            paper.backends[number % 2].sends(data(1, result("seq", str(number))))
        assert len(paper.ids()) == 300
        assert paper.bench.memory_budget.held == 0
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_errors_that_wait_for_their_turn_are_on_the_memory_budget() -> None:
    paper = PaperStreams(ceiling=2**17)
    paper.begin_two()
    paper.bench.backends[1].max_in_flight = 1
    paper.backends[1].sends(headers(1, OK_TRAILERS, end=True))
    paper.bench.backends[1].in_flight += 1
    paper.send(request("seq", 1, "slow"))
    sent = 0
    while paper.bench.dispatcher.open_exchanges:
        paper.send(request("seq", 2))
        sent += 1
    paper.bench.backends[1].in_flight -= 1
    assert 100 < sent < 2**17 // 400
    assert paper.bench.finished.records[0].reason is Reason.MEMORY
    assert paper.bench.is_clean()


# Backends that are to become empty


def drain(paper: PaperStreams, *numbers: int) -> None:
    """The operator has some backends drained."""
    parting = frozenset(paper.bench.backends[number] for number in numbers)
    rest = [each for each in paper.bench.backends if each not in parting]
    now = paper.bench.ref.current
    placements = snapshot_of(rest).placements
    paper.bench.ref.publish(replace(now, placements=placements, parting=parting))
    paper.bench.relay.flush()


async def test_an_idle_stream_leaves_a_backend_that_is_drained_and_goes_on_elsewhere() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
    paper.backends[0].gets()
    drain(paper, 0)
    (end,) = paper.backends[0].gets()
    assert end.ends_stream
    paper.end(0)
    assert [backend.in_flight for backend in paper.bench.backends] == [0, 0]
    assert (paper.status(), paper.resets()) == (None, [])
    paper.send(request("plain", name="2"))
    assert paper.requests(1) == ["2"]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "2")))
    assert paper.ids() == ["2"]
    paper.send(end=True)
    paper.end(1)
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("begun", [True, False])
async def test_what_is_under_way_on_a_drained_backend_is_answered_in_its_turn(begun: bool) -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    if begun:
        paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
        await paper.turn()
    drain(paper, 0)
    paper.send(request("plain", name="2"))
    assert paper.requests(1) == ["2"]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "2")))
    assert paper.ids() == []
    if not begun:
        paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
    paper.backends[0].sends(data(1, result("plain", "1")))
    assert paper.ids() == ["1", "2"]
    paper.send(end=True)
    paper.end(0, 1)
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_a_client_that_ends_without_another_request_ends_well() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    drain(paper, 0)
    paper.end(0)
    paper.send(end=True)
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("end", [headers(1, STOPPED, end=True), rst(1, 8), None])
async def test_how_a_backend_ends_that_owes_nothing_does_not_matter(end: bytes | None) -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    drain(paper, 0)
    if end is None:
        paper.backends[0].goes()
    else:
        paper.backends[0].sends(end)
    assert (paper.status(), paper.resets()) == (None, [])
    paper.send(request("plain", name="2"))
    assert paper.requests(1) == ["2"]


async def test_requests_of_a_drained_backend_that_is_lost_go_elsewhere() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
    await paper.turn()
    drain(paper, 0)
    paper.backends[0].goes()
    assert paper.answers() == []
    paper.bench.loop.advance(0.05)
    paper.bench.relay.flush()
    assert paper.requests(1) == ["1"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_sequences_go_on_where_they_are_until_they_end() -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True), request("plain", name="2"))
    paper.backends[0].sends(
        headers(1, RESPONSE_FIELDS), data(1, result("seq", "1")), data(1, result("plain", "2"))
    )
    assert paper.requests(0) == ["1", "2"]
    drain(paper, 0)
    paper.send(request("seq", 1, "3"), request("plain", name="4"))
    assert (paper.requests(0), paper.requests(1)) == (["3"], ["4"])
    paper.backends[0].sends(data(1, result("seq", "3")))
    paper.send(request("seq", 1, "5", end=True))
    assert paper.requests(0) == ["5"]
    paper.backends[0].sends(data(1, result("seq", "5")))
    paper.bench.loop.advance(1.1)
    paper.bench.relay.flush()
    assert [frame.ends_stream for frame in paper.backends[0].gets()] == [True]
    paper.end(0)
    assert paper.bench.backends[0].in_flight == 0
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "4")))
    assert paper.ids() == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("numbers", [(0,), (0, 1)])
async def test_a_stream_stays_where_nobody_else_can_serve_it(numbers: tuple[int, ...]) -> None:
    paper = PaperStreams(backends=len(numbers))
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    drain(paper, *numbers)
    paper.send(request("plain", name="2"))
    assert paper.requests(0) == ["1", "2"]
    paper.client.goes()
    paper.bench.loop.advance(2.0)
    assert paper.bench.is_clean()


async def test_a_message_under_way_goes_on_where_it_began() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    large = request("plain", name="2", tensor=bytes(5000))
    paper.client.sends(data(1, large[:3000]))
    paper.backends[0].gets()
    drain(paper, 0)
    paper.client.sends(data(1, large[3000:]))
    paper.send(request("plain", name="3"))
    assert sum(len(frame.payload) for frame in paper.backends[0].gets()) == 2000 + len(large) - 5000
    assert paper.requests(1) == ["3"]


async def test_a_stream_with_several_backends_stays_where_nobody_else_is_left() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"), request("seq", 1, "2", start=True, end=True))
    for number, answer in enumerate((result("plain", "1"), result("seq", "2"))):
        paper.backends[number].sends(headers(1, RESPONSE_FIELDS), data(1, answer))
        paper.backends[number].gets()
    assert paper.ids() == ["1", "2"]
    drain(paper, 0, 1)
    assert [backend.gets() for backend in paper.backends] == [[], []]
    paper.send(request("plain", name="3"))
    assert paper.requests(0) == ["3"]
