"""One of several upstream streams: what its backend may do, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome
from lb.domain.pool import Placement
from lb.proxy.http2.options import Http2Options
from tests.fakes.paper_streams import PaperStreams, request, result
from tests.fakes.relay import FewestInFlight, snapshot_of
from tests.wire.frames import (
    CANCEL,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    WINDOW_UPDATE,
    data,
    goaway,
    headers,
    rst,
    settings,
    window_update,
)


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


@pytest.mark.parametrize("takes_streams", [True, False])
async def test_a_stream_that_one_backend_refuses_again_and_again_is_given_up(
    takes_streams: bool,
) -> None:
    paper = open_two()
    paper.bench.queue.configure(wait_for_backend_s=5.0)  # others could serve what may move
    backend = paper.backends[1]
    if not takes_streams:
        backend.sends(settings({MAX_CONCURRENT_STREAMS: 0}))
        backend.gets()
    opened, stream = 1, 1
    for _ in range(10):
        backend.sends(rst(stream, REFUSED_STREAM))
        new = [frame.stream for frame in backend.gets() if frame.kind == HEADERS]
        if not new:
            break
        (stream,) = new
        opened += 1
    assert opened == (paper.bench.max_attempts if takes_streams else 1)
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "1")))
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["1", "2"]
    assert "b1" in answers[1].error_message
    paper.client.goes()
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
    waiting = paper.bench.memory_budget.held
    assert waiting >= len(tensor)
    for _ in range(4):  # what goes to the other one is credited meanwhile
        paper.client.sends(data(1, request("seq", 1, "a", tensor=tensor[:15_000])))
    increments = [f.increment for f in paper.looks() if f.kind == WINDOW_UPDATE and f.stream]
    assert 50_000 <= sum(increments) <= 62_000
    assert paper.bench.memory_budget.held == waiting
    paper.backends[1].sends(window_update(1, 10**6))
    assert paper.bench.memory_budget.held == 0


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
    assert paper.bench.memory_budget.held == 0
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
    assert paper.bench.memory_budget.held == 0


# Other attempts


def open_plain(backends: int = 3) -> PaperStreams:
    """Two requests of no sequence are with b0, which has said nothing; a sequence runs on b1, whose
    answer waits for theirs."""
    paper = PaperStreams(backends=backends)
    paper.send(request("plain", name="1"), request("plain", name="2"))
    paper.send(request("seq", 1, "3", start=True))
    assert [paper.requests(0), paper.requests(1)] == [["1", "2"], ["3"]]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "3")))
    assert paper.ids() == []
    return paper


def wait(paper: PaperStreams) -> None:
    """Until requests that may have run go again."""
    paper.bench.loop.advance(0.1)
    paper.bench.relay.flush()


def hang(paper: PaperStreams, number: int, *, is_down: bool = False) -> None:
    """A backend is found to be silent: suspected, or down."""
    backend = paper.bench.backends[number]
    port = backend.ports[1]
    assert port is not None
    port.is_hung, port.is_given_up = True, is_down
    rest = [each for each in paper.bench.backends if each is not backend]
    paper.bench.ref.publish(
        replace(
            paper.bench.ref.current,
            placements=(Placement((), None, FewestInFlight()), snapshot_of(rest).placements[1]),
        )
    )


def refuse(paper: PaperStreams) -> None:
    """b0 says that it exits."""
    fields = [*RESPONSE_FIELDS, (b"grpc-status", b"14"), (b"grpc-message", b"Server exiting")]
    paper.backends[0].sends(headers(1, fields, end=True))


ENDS = {
    "lost": lambda paper: paper.backends[0].goes(),
    "reset": lambda paper: paper.backends[0].sends(rst(1, 2)),
    "refused": lambda paper: paper.backends[0].sends(rst(1, REFUSED_STREAM)),
    "exits": refuse,
    "hangs": lambda paper: hang(paper, 0),
    "breaks the protocol": lambda paper: paper.backends[0].sends(data(1, b"early")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("half_closed", [True, False])
async def test_requests_of_no_sequence_go_to_another_backend(
    end: Callable[[PaperStreams], None], half_closed: bool
) -> None:
    paper = open_plain()
    paper.send(end=half_closed)
    end(paper)
    wait(paper)
    assert paper.requests(2) == ["1", "2"]
    paper.backends[2].sends(
        headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")), data(1, result("plain", "2"))
    )
    assert paper.ids() == ["1", "2", "3"]
    paper.send(end=not half_closed)
    paper.end(1, 2)
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("begun", [True, False])
async def test_a_stream_ends_once_its_only_backend_is_down_unless_it_has_got_a_response(
    begun: bool,
) -> None:
    paper = PaperStreams()
    paper.bench.max_attempts = 1
    paper.send(request("plain", name="1"), request("plain", name="2"))
    if begun:
        paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    hang(paper, 0)
    assert paper.status() is None
    hang(paper, 0, is_down=True)
    paper.bench.relay.flush()
    assert paper.status() == (None if begun else 14)
    if begun:
        paper.backends[0].sends(data(1, result("plain", "2")))
        assert paper.ids() == ["2"]
        paper.send(end=True)
        paper.end(0)
    assert paper.bench.is_clean()


async def test_a_backend_of_several_that_is_down_owes_responses() -> None:
    paper = open_plain()
    paper.bench.max_attempts = 1
    hang(paper, 0)
    assert paper.answers() == []
    hang(paper, 0, is_down=True)
    paper.bench.relay.flush()
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3"]
    assert [bool(answer.error_message) for answer in answers] == [True, True, False]
    paper.send(end=True)
    paper.end(1)
    assert paper.bench.is_clean()


async def test_answers_keep_their_order_when_requests_go_where_others_are() -> None:
    paper = open_plain(backends=2)
    paper.backends[0].goes()
    paper.send(request("seq", 1, "4"))
    wait(paper)
    assert paper.requests(1) == ["4", "1", "2"], "the sequence goes on where it is"
    paper.backends[1].sends(data(1, result("seq", "4")))
    assert paper.ids() == []
    paper.send(request("seq", 1, "5"))
    assert paper.requests(1) == ["5"]
    paper.backends[1].sends(headers(3, RESPONSE_FIELDS))
    paper.backends[1].sends(data(3, result("plain", "1")), data(3, result("plain", "2")))
    assert paper.ids() == ["1", "2", "3", "4"]
    paper.backends[1].sends(data(1, result("seq", "5")), headers(1, OK_TRAILERS, end=True))
    assert paper.ids() == ["5"]
    paper.send(end=True)
    paper.backends[1].sends(headers(3, OK_TRAILERS, end=True))
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind() -> None:
    paper = open_plain()
    paper.backends[0].goes()
    paper.client.sends(rst(1, CANCEL))
    wait(paper)
    assert paper.requests(2) == []
    assert [frame.kind for frame in paper.backends[1].gets()] == [RST_STREAM]
    assert paper.bench.is_clean()


async def test_without_another_backend_requests_get_errors() -> None:
    paper = open_plain(backends=2)
    paper.backends[0].goes()
    nobody = Placement((), None, FewestInFlight())
    paper.bench.ref.publish(replace(paper.bench.ref.current, placements=(nobody, nobody)))
    wait(paper)
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3"]
    assert [bool(answer.error_message) for answer in answers] == [True, True, False]
    paper.send(end=True)
    paper.end(1)
    assert paper.bench.is_clean()


async def test_requests_behind_an_answer_go_elsewhere_alone() -> None:
    paper = open_plain()
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
    paper.backends[0].goes()
    wait(paper)
    assert paper.requests(2) == ["2"]
    paper.backends[2].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "2")))
    assert paper.ids() == ["2", "3"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_half_an_answer_whose_turn_had_not_come_is_given_again() -> None:
    paper = open_plain()
    paper.backends[0].sends(
        headers(1, RESPONSE_FIELDS), *(data(1, result("plain", name)) for name in ("1", "2"))
    )
    assert paper.ids() == ["1", "2", "3"]
    paper.send(request("seq", 1, "4"), request("plain", name="5"), request("plain", name="6"))
    answer = result("plain", "5")
    paper.backends[0].sends(data(1, answer + answer[:9]))
    paper.backends[0].goes()
    wait(paper)
    assert paper.requests(2) == ["6"]
    paper.backends[2].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "6")))
    paper.backends[1].sends(data(1, result("seq", "4")))
    assert paper.ids() == ["4", "5", "6"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_the_rest_of_a_request_follows_where_its_beginning_goes_again() -> None:
    """The stream there ends only behind it, as the backend has another one that goes on."""
    paper = open_plain(backends=2)
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
    message = request("plain", name="4", tensor=bytes(100))
    paper.send(message[:60])
    paper.backends[0].goes()
    wait(paper)
    paper.send(message[60:])
    frames = [frame for frame in paper.backends[1].gets() if frame.kind == DATA]
    assert b"".join(frame.payload for frame in frames) == request("plain", name="2") + message
    assert [frame.ends_stream for frame in frames] == [False] * (len(frames) - 1) + [True]
    paper.backends[1].sends(
        headers(3, RESPONSE_FIELDS), data(3, result("plain", "2") + result("plain", "4"))
    )
    assert paper.ids() == ["2", "3", "4"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_half_an_answer_that_the_client_has_ends_the_stream() -> None:
    paper = open_plain()
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")[:9]))
    paper.backends[0].goes()
    assert paper.resets()
    assert paper.bench.is_clean()


async def test_what_must_not_go_elsewhere_gets_errors() -> None:
    paper = PaperStreams(backends=3)
    paper.bench.run_once(b"plain")
    paper.send(*(request("plain", name=name) for name in "12"), request("seq", 1, "3", start=True))
    paper.backends[0].goes()
    wait(paper)
    assert [frame for frame in paper.backends[2].gets() if frame.kind == DATA] == []
    assert paper.ids() == ["1", "2"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_a_head_that_is_held_is_passed_on_before_the_stream_is_parted() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
    paper.send(request("seq", 1, "2", start=True))
    paper.backends[0].sends(data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
