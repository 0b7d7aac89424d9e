"""A second attempt of a call beside the first: the client sees one answer, whoever gives it."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.http2.attempt import GrpcAttempt
from lb.proxy.http2.options import Http2Options
from lb.proxy.lost import UNSCHEDULED_S
from tests.fakes.http2_connections import PaperRelay, Side
from tests.wire.frames import (
    CANCEL,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    OK_TRAILERS,
    PING,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    answer,
    call,
    data,
    headers,
    named,
    ping,
    request_fields,
    rst,
    settings,
)


class Hedged:
    """A call that two backends have."""

    def __init__(self, *, size: int = 0, options: Http2Options | None = None) -> None:
        self.relay = PaperRelay(backends=2, options=options)
        self.sides = [self.relay.backend(0), self.relay.backend(1)]
        self.client = self.relay.client()
        body = named(b"m") if not size else b"\0" + size.to_bytes(4, "big") + bytes(size)
        if size:
            self.client.sends(headers(1, request_fields()))
            self.client.sends(data(1, body, end=True))
        else:
            self.client.sends(call(1))
        self.first_sent = self.sides[0].gets()
        (one,) = self.relay.relay.under_way()
        hedge = self.relay.relay.hedge(one)
        assert isinstance(hedge, GrpcAttempt)
        self.hedge = hedge
        self.call = one
        self.relay.relay.flush()

    @property
    def winner(self) -> Side:
        return self.sides[1]

    @property
    def has_won(self) -> bool:
        return self.relay.dispatcher.accounts.overtaken == 1

    @property
    def is_over(self) -> bool:
        return self.call.hedge is None and self.hedge.outcome is not None


@pytest.mark.parametrize("size", [0, 50_000])
async def test_the_second_backend_gets_the_same_request(size: int) -> None:
    hedged = Hedged(size=size)
    again = hedged.winner.gets()
    assert [frame.kind for frame in again] == [frame.kind for frame in hedged.first_sent]
    for kind in (HEADERS, DATA):
        bodies = [
            b"".join(frame.payload for frame in frames if frame.kind == kind)
            for frames in (again, hedged.first_sent)
        ]
        assert bodies[0] == bodies[1]
    assert [backend.in_flight for backend in hedged.relay.backends] == [1, 1]


@pytest.mark.parametrize("whole", [True, False])
async def test_the_answer_of_the_second_is_the_clients_when_it_is_first(whole: bool) -> None:
    hedged = Hedged()
    hedged.client.gets()
    if whole:
        hedged.winner.sends(answer(1))
    else:
        hedged.winner.sends(headers(1, RESPONSE_FIELDS))
        hedged.winner.sends(data(1, b"\0\0\0\0\2ab"))
        hedged.winner.sends(headers(1, OK_TRAILERS, end=True))
    assert [frame.kind for frame in hedged.client.gets()] == [HEADERS, DATA, HEADERS]
    assert [(frame.kind, frame.code) for frame in hedged.sides[0].gets()] == [(RST_STREAM, CANCEL)]
    assert hedged.is_over
    assert hedged.has_won
    (record,) = hedged.relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    assert record.backend is hedged.relay.backends[1]
    assert hedged.relay.outcomes.seen == [("b0", Outcome.OVERTAKEN)]
    assert hedged.relay.is_clean()


async def test_the_second_is_cancelled_when_the_first_has_answered() -> None:
    hedged = Hedged()
    hedged.winner.gets()
    hedged.sides[0].sends(answer(1))
    hedged.relay.relay.flush()
    assert hedged.is_over
    assert [(frame.kind, frame.code) for frame in hedged.winner.gets()] == [(RST_STREAM, CANCEL)]
    assert not hedged.has_won
    assert hedged.relay.is_clean()


@pytest.mark.parametrize("first", [0, 1], ids=["the first wins", "the second wins"])
async def test_the_slower_one_is_not_cancelled_where_tritons_are_not_told(first: int) -> None:
    hedged = Hedged(options=Http2Options(withholds_cancellation=True))
    slower = hedged.sides[1 - first]
    slower.gets()
    hedged.sides[first].sends(answer(1))
    hedged.relay.relay.flush()
    assert [frame.kind for frame in hedged.client.gets()][-3:] == [HEADERS, DATA, HEADERS]
    assert not slower.gets()
    assert [backend.in_flight for backend in hedged.relay.backends] == [first, 1 - first]
    slower.sends(answer(1))
    assert hedged.client.gets() == []
    assert hedged.is_over
    assert hedged.has_won == bool(first)
    assert hedged.relay.is_clean()


@pytest.mark.parametrize(
    "end",
    [
        headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"13")], end=True),
        headers(1, [(b":status", b"103")], end=True),
        rst(1, 2),
        data(1, b"early"),
        headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"0")], end=True),
        headers(1, [(b":status", b"502")], end=True),
    ],
    ids=["error", "103 at the end", "reset", "data first", "no message", "not of gRPC"],
)
@pytest.mark.parametrize("withholds", [False, True])
async def test_what_is_no_answer_of_the_second_does_not_matter(
    end: bytes, *, withholds: bool
) -> None:
    hedged = Hedged(options=Http2Options(withholds_cancellation=withholds))
    hedged.winner.sends(end)
    assert hedged.is_over
    assert not hedged.has_won
    assert [backend.in_flight for backend in hedged.relay.backends] == [1, 0]
    assert not hedged.winner.facts.streams
    assert hedged.client.gets() == []
    hedged.sides[0].sends(answer(1))
    (record,) = hedged.relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 1)
    assert hedged.relay.is_clean()
    hedged.relay.loop.advance(2 * UNSCHEDULED_S)
    assert hedged.relay.backends[1].lost_requests == 0


@pytest.mark.parametrize("number", [0, 1])
async def test_nothing_is_left_when_a_backend_goes(number: int) -> None:
    hedged = Hedged()
    hedged.sides[number].goes()
    assert hedged.is_over or not number
    hedged.client.goes()
    assert hedged.is_over
    hedged.relay.loop.advance(0.1)
    assert hedged.relay.is_clean()


@pytest.mark.parametrize("end", [None, rst(1, 2)], ids=["lost", "reset"])
@pytest.mark.parametrize("size", [0, 50_000])
async def test_the_second_takes_the_place_of_a_first_that_failed(
    end: bytes | None, size: int
) -> None:
    hedged = Hedged(size=size)
    hedged.winner.gets()
    if end is None:
        hedged.sides[0].goes()
    else:
        hedged.sides[0].sends(end)
    assert hedged.call.attempt is hedged.hedge
    hedged.relay.loop.advance(0.1)
    assert hedged.relay.backends[0].in_flight == 0, "there is no third one"
    hedged.client.gets()
    hedged.winner.sends(answer(1))
    assert [frame.kind for frame in hedged.client.gets()] == [HEADERS, DATA, HEADERS]
    (record,) = hedged.relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    assert record.backend is hedged.relay.backends[1]
    assert not hedged.has_won
    assert hedged.relay.is_clean()


@pytest.mark.parametrize("size", [0, 50_000])
async def test_a_second_that_took_the_place_of_a_first_goes_again_itself(size: int) -> None:
    hedged = Hedged(size=size)
    again = hedged.winner.gets()
    for side in hedged.sides:
        side.sends(rst(1, REFUSED_STREAM))
    (at,) = [number for number in range(2) if hedged.relay.backends[number].in_flight]
    replayed = [frame for frame in hedged.sides[at].gets() if frame.stream == 3]
    bodies = [
        b"".join(frame.payload for frame in frames if frame.kind == DATA)
        for frames in (again, replayed)
    ]
    assert bodies[0] == bodies[1]
    hedged.sides[at].sends(answer(3))
    (record,) = hedged.relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 3)
    assert hedged.relay.is_clean()


async def test_nothing_is_left_when_the_client_goes() -> None:
    hedged = Hedged()
    hedged.client.sends(rst(1, CANCEL))
    assert hedged.is_over
    assert hedged.relay.is_clean()


async def test_an_answer_before_the_request_was_sent_is_dropped() -> None:
    relay = PaperRelay(backends=2)
    first, second = relay.backend(0), relay.backend(1)
    client = relay.client()
    second.sends(settings({INITIAL_WINDOW_SIZE: 10}))
    client.sends(headers(1, request_fields()))
    client.sends(data(1, b"\0" + (5000).to_bytes(4, "big") + bytes(5000), end=True))
    hedge = relay.relay.hedge(relay.relay.under_way()[0])
    assert hedge is not None
    relay.relay.flush()
    second.sends(headers(1, RESPONSE_FIELDS))
    assert hedge.outcome is not None
    first.sends(answer(1))
    assert relay.is_clean()


async def test_a_call_that_waits_for_a_connection_gets_the_answer_of_another() -> None:
    relay = PaperRelay(backends=2)
    second, client = relay.backend(1), relay.client()
    client.sends(call(1))
    (one,) = relay.relay.under_way()
    hedge = relay.relay.hedge(one)
    assert hedge is not None
    relay.relay.flush()
    assert second.gets()
    second.sends(answer(1))
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts) == (0, 2)
    await relay.tasks.aclose()
    assert relay.is_clean()


async def test_what_was_not_kept_is_not_sent_twice() -> None:
    relay = PaperRelay(backends=2, options=Http2Options(retained_size=5))
    relay.backend(0), relay.backend(1)
    client = relay.client()
    client.sends(headers(1, request_fields()))
    client.sends(data(1, b"\0" + (5000).to_bytes(4, "big") + bytes(5000), end=True))
    assert relay.relay.hedge(relay.relay.under_way()[0]) is None


async def test_the_rest_of_a_frame_of_the_attempt_that_lost_goes_nowhere() -> None:
    hedged = Hedged()
    hedged.client.gets()
    late, first = hedged.sides
    late.gets()
    frame = data(1, b"\0\0\0\x10\0" + bytes(4096))
    late.sends(headers(1, RESPONSE_FIELDS) + frame[:100])
    first.sends(answer(1))
    hedged.relay.relay.flush()
    late.sends(frame[100:] + ping())
    assert PING in {frame.kind for frame in late.gets()}
    assert hedged.relay.is_clean()
