"""Requests of a stream that go again because their upstream stream was lost between two answers."""

from __future__ import annotations

import pytest

from tests.fakes.paper_streams import PaperStreams, request, result
from tests.wire.frames import (
    CANCEL,
    INTERNAL_ERROR,
    RESPONSE_FIELDS,
    data,
    goaway,
    headers,
    rst,
    window_update,
)

UNAVAILABLE = [(b"grpc-status", b"14")]


def begun(*names: str, backends: int = 2) -> PaperStreams:
    """The first of some requests is answered by b0, which has all of them."""
    paper = PaperStreams(backends=backends)
    paper.send(*(request("plain", name=name) for name in names))
    assert paper.requests(0) == list(names)
    answers(paper, 0, names[0])
    return paper


def answers(paper: PaperStreams, number: int, *names: str, stream: int = 1) -> None:
    """A backend begins to answer requests."""
    messages = (data(stream, result("plain", name)) for name in names)
    paper.backends[number].sends(headers(stream, RESPONSE_FIELDS), *messages)
    assert paper.ids() == list(names)


def pause(paper: PaperStreams) -> None:
    """So long that what may go again has gone."""
    paper.bench.loop.advance(0.05)
    paper.bench.relay.flush()


def leave(paper: PaperStreams) -> None:
    paper.client.sends(rst(1, CANCEL))
    paper.client.goes()
    assert paper.bench.is_clean()


@pytest.mark.parametrize(
    "end",
    [rst(1, INTERNAL_ERROR), headers(1, UNAVAILABLE, end=True), None],
    ids=["reset", "exit", "lost"],
)
async def test_however_a_backend_ends_the_rest_goes_again(end: bytes | None) -> None:
    paper = begun("1", "2", "3")
    if end is None:
        paper.backends[0].goes()
    else:
        paper.backends[0].sends(end)
    assert paper.requests(1) == [], "not at once"
    paper.send(request("plain", name="4"))
    pause(paper)
    assert paper.requests(1) == ["2", "3", "4"]
    answers(paper, 1, "2", "3", "4")
    paper.send(end=True)
    paper.end(1)
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_what_surely_did_not_run_goes_again_at_once() -> None:
    paper = begun("1", "2", backends=3)
    paper.backends[0].goes()
    pause(paper)
    assert paper.requests(1) == ["2"]
    paper.backends[1].sends(goaway(0))
    assert paper.requests(2) == ["2"]
    answers(paper, 2, "2")
    leave(paper)


async def test_a_message_that_is_not_whole_goes_on_elsewhere() -> None:
    paper = begun("1")
    message = request("plain", name="2", tensor=bytes(500))
    paper.client.sends(data(1, message[:300]))
    paper.backends[0].goes()
    pause(paper)
    paper.client.sends(data(1, message[300:]))
    assert paper.requests(1) == ["2"]
    answers(paper, 1, "2")
    leave(paper)


async def test_the_client_gets_room_for_each_byte_once() -> None:
    paper = PaperStreams(options={"stream_window": 4000, "stream_window_max": 4000})
    first, second = (request("plain", name=name, tensor=bytes(1500)) for name in ("1", "2"))
    paper.send(first, second)
    answers(paper, 0, "1")
    paper.backends[0].goes()
    pause(paper)
    assert paper.requests(1) == ["2"]
    answers(paper, 1, "2")
    paper.send(first)
    given = sum(f.increment for f in paper.got if f.kind == 8 and f.stream == 1)
    assert given <= 2 * len(first) + len(second)
    leave(paper)


async def test_kept_requests_are_in_the_memory_budget_until_they_are_answered() -> None:
    paper = begun("1")
    paper.backends[0].sends(window_update(0, 2**20), window_update(1, 2**20))
    names = [str(number) for number in range(2, 12)]
    before = paper.bench.memory_budget.held
    paper.send(*(request("plain", name=name, tensor=bytes(9000)) for name in names))
    assert paper.requests(0) == names
    assert paper.bench.memory_budget.held - before >= 90_000
    paper.backends[0].sends(*(data(1, result("plain", name)) for name in names))
    assert paper.ids() == names
    assert paper.bench.memory_budget.held - before <= 16_384
    leave(paper)


async def test_more_than_is_kept_ends_the_stream() -> None:
    paper = PaperStreams(options={"retained_size": 8000})
    paper.backends[0].sends(window_update(0, 2**20))
    paper.send(request("plain", name="1"))
    paper.backends[0].gets()
    answers(paper, 0, "1")
    paper.send(*(request("plain", name=name, tensor=bytes(3000)) for name in ("2", "3", "4")))
    paper.backends[0].goes()
    pause(paper)
    assert paper.status() == 14
    assert paper.bench.is_clean()


async def test_a_stream_that_waits_for_nothing_ends_well_without_a_backend() -> None:
    paper = begun("1")
    paper.backends[0].goes()
    assert paper.status() is None
    paper.send(end=True)
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_a_client_that_leaves_while_its_requests_wait_leaves_nothing_behind() -> None:
    paper = begun("1", "2")
    paper.backends[0].goes()
    leave(paper)
    pause(paper)
    assert paper.requests(1) == []
