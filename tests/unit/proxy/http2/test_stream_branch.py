"""One of several upstream streams: what its backend may do, and what that costs."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.http2.relay import Http2Options
from tests.fakes.frames import (
    CANCEL,
    INITIAL_WINDOW_SIZE,
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    WINDOW_UPDATE,
    data,
    goaway,
    headers,
    rst,
    settings,
    window_update,
)
from tests.fakes.paper_streams import PaperStreams, request, result


def open_two(**more: object) -> PaperStreams:
    """Requests of two sequences are with two backends, which have said nothing."""
    paper = PaperStreams(**more)  # type: ignore[arg-type]
    paper.send(request("seq", 1, "1", start=True), request("seq", 2, "2", start=True))
    assert [paper.requests(0), paper.requests(1)] == [["1"], ["2"]]
    return paper


@pytest.mark.parametrize("end", [rst(1, REFUSED_STREAM), goaway(0)], ids=["reset", "goaway"])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_refused_stream_is_opened_again_at_the_same_backend(
    end: bytes, number: int
) -> None:
    paper = open_two()
    paper.backends[number].sends(end)
    if end != rst(1, REFUSED_STREAM):
        paper.backends[number] = paper.bench.backend(number)
        paper.bench.relay.pool(paper.bench.backends[number]).serve_waiting()
        paper.bench.relay.flush()
        stream = 1
    else:
        stream = 3
    assert paper.requests(number) == [str(number + 1)]
    ids = [1, 1]
    ids[number] = stream
    for backend, stream in zip(paper.backends, ids, strict=True):
        name = "1" if backend is paper.backends[0] else "2"
        backend.sends(headers(stream, RESPONSE_FIELDS), data(stream, result("seq", name)))
    assert paper.ids() == ["1", "2"]
    assert [backend.in_flight for backend in paper.bench.backends] == [1, 1]
    paper.client.sends(rst(1, CANCEL))
    await paper.bench.tasks.aclose()  # it dialled the backend that went away
    assert paper.bench.is_clean()


@pytest.mark.parametrize(
    "broken",
    [
        data(1, b"early"),
        headers(1, [(b":status", b"101")]),
        headers(1, [(b":status", b"103")], end=True),
        headers(1, [(b":status", b"502")]),
        headers(1, [(b":status", b"103")]) * 11,
        headers(1, RESPONSE_FIELDS) * 2,
    ],
    ids=["data first", "101", "103 at the end", "502", "many 103", "second head"],
)
async def test_a_backend_that_breaks_the_protocol_loses_only_its_stream(broken: bytes) -> None:
    paper = open_two()
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "1")))
    paper.backends[1].sends(broken)
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["1", "2"]
    assert "sequence 2 of model seq: backend b1" in answers[1].error_message
    assert ("b1", Outcome.PROTOCOL_ERROR) in paper.bench.outcomes.seen
    paper.send(end=True)
    paper.end(0)
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_informational_heads_are_passed_over() -> None:
    paper = open_two()
    paper.backends[1].sends(headers(1, [(b":status", b"103")]), headers(1, RESPONSE_FIELDS))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "1")))
    paper.backends[1].sends(data(1, result("seq", "2")))
    assert paper.ids() == ["1", "2"]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (headers(1, [(b":status", b"503")], end=True), 14),
        (headers(1, RESPONSE_FIELDS) + data(1, end=True), 2),
        (headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"7")], end=True), 7),
        (headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"99")], end=True), 2),
    ],
    ids=["http", "no status", "trailers only", "unknown"],
)
async def test_a_bad_end_of_one_backend_is_the_status_of_the_stream(
    answer: bytes, status: int
) -> None:
    paper = open_two()
    paper.send(end=True)
    paper.backends[1].sends(answer)
    paper.backends[0].sends(
        headers(1, RESPONSE_FIELDS), data(1, result("seq", "1")), headers(1, OK_TRAILERS, end=True)
    )
    answers = paper.answers()
    assert [each.infer_response.id for each in answers] == ["1", "2"]
    assert "b1" in answers[1].error_message
    assert paper.status() == status
    assert paper.bench.is_clean()


async def test_the_window_of_the_client_is_shared_by_all_backends() -> None:
    options = Http2Options(stream_window=100_000, stream_window_max=100_000, stream_stalled_s=20.0)
    paper = PaperStreams(options=options)
    paper.begin_two()
    paper.looks()
    paper.backends[1].sends(settings({INITIAL_WINDOW_SIZE: 0}))
    tensor = bytes(30_000)
    paper.client.sends(*(data(1, request("seq", 2, "b", tensor=tensor)) for _ in range(1)))
    waiting = paper.bench.ledger.held
    assert waiting >= len(tensor)
    for _ in range(4):  # what goes to the other one is credited meanwhile
        paper.client.sends(data(1, request("seq", 1, "a", tensor=tensor[:15_000])))
    increments = [f.increment for f in paper.looks() if f.kind == WINDOW_UPDATE and f.stream]
    assert 50_000 <= sum(increments) <= 62_000
    assert paper.bench.ledger.held == waiting
    paper.backends[1].sends(window_update(1, 10**6))
    assert paper.bench.ledger.held == 0


async def test_a_backend_that_takes_nothing_is_given_up() -> None:
    paper = PaperStreams(options=Http2Options(stream_stalled_s=20.0))
    paper.begin_two()
    paper.backends[1].sends(settings({INITIAL_WINDOW_SIZE: 0}))
    # Its window may be below zero now.
    paper.send(request("seq", 2, "stuck", tensor=bytes(5000)), request("seq", 1, "a"))
    paper.backends[0].sends(data(1, result("seq", "a")))
    assert paper.ids() == []
    for _ in range(30):
        paper.bench.loop.advance(1.0)
        paper.bench.relay.flush()
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["stuck", "a"]
    assert "b1" in answers[0].error_message
    assert ("b1", Outcome.STALLED) in paper.bench.outcomes.seen
    assert paper.bench.ledger.held == 0
    # The rest of what is on its way to it is not held either.
    paper.send(request("seq", 1, "b"))
    assert paper.requests(0)[-1] == "b"


async def test_the_rest_of_a_message_for_a_lost_backend_is_dropped() -> None:
    paper = PaperStreams()
    paper.begin_two()
    message = request("seq", 2, "large", tensor=bytes(9000))
    paper.client.sends(data(1, message[:4000]))
    paper.backends[1].sends(rst(1, 2))
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["large"]
    paper.client.sends(data(1, message[4000:]))
    paper.send(request("seq", 1, "next"))
    paper.backends[0].sends(data(1, result("seq", "next")))
    assert paper.ids() == ["next"]
    assert paper.bench.ledger.held == 0
