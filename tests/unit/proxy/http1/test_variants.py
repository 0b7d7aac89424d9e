"""Requests over HTTP for a name that variants serve: requests and answers that come in pieces."""

from __future__ import annotations

import json

import pytest

from tests.fakes.http1_sides import Sides

NAME, MODEL = b"detector", b"detector_of_the_first_generation"
HEAD = b"POST /v2/models/detector/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"


class Bench:
    """A client, and a backend of which the model of the only variant gets all requests."""

    def __init__(self, **options: object) -> None:
        self.sides = Sides({"variant_names": frozenset({NAME}), **options})
        variant = {"name": "stable", "model": MODEL, "weight": 1}
        self.sides.use_variants(NAME, variant, rollback=(2.0, 1.5, 1))
        self.server, self.client = self.sides.client()
        self.connection, self.backend = self.sides.upstream()

    def asks(self, *pieces: bytes, action: bytes = b"infer") -> bytes:
        """Send a request, each piece of its body in a read of its own. Returns what the backend
        gets."""
        size = sum(map(len, pieces))
        head = b"POST /v2/models/%b/%b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        self.server.data_received(head % (NAME, action, size))
        for piece in pieces:
            self.server.data_received(piece)
        return self.backend.take()

    def answers(self, *reads: bytes) -> bytes:
        """The backend answers in these reads. Returns what the client gets."""
        for read in reads:
            self.connection.data_received(read)
        return self.client.take()


def reply(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


def chunked(*texts: bytes) -> list[bytes]:
    """The reads of an answer in chunks."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [head, *[b"%x\r\n%b\r\n" % (len(text), text) for text in texts], b"0\r\n\r\n"]


def payload(got: bytes) -> bytes:
    """The body of an answer in chunks."""
    rest = got.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        body, rest = body + rest[:size], rest[size + 2 :]
    return body


ANSWER = json.dumps({"model_name": MODEL.decode(), "outputs": [{"data": [1] * 20}]}).encode()
SHOWN = ANSWER.replace(MODEL, NAME)


async def test_an_answer_is_the_same_wherever_it_is_cut() -> None:
    whole = reply(ANSWER)
    for cut in range(1, len(whole)):
        bench = Bench()
        assert b"/v2/models/%b/infer" % MODEL in bench.asks(b"{}")
        got = bench.answers(whole[:cut], whole[cut:])
        assert got.endswith(b"\r\n\r\n" + SHOWN) or payload(got) == SHOWN, cut
        assert bench.sides.is_clean()
        assert bench.sides.variant_counts() == [(1, 0)]


async def test_a_request_goes_on_however_it_comes() -> None:
    text = json.dumps({"inputs": [], "id": "x" * 100}).encode()
    for cut in range(1, len(text), 7):
        bench = Bench()
        assert bench.asks(text[:cut], text[cut:]).endswith(b"\r\n\r\n" + text)


@pytest.mark.parametrize("is_long", [False, True])
async def test_events_have_the_name_wherever_they_are_cut(is_long: bool) -> None:
    event = b'data: {"model_name":"%b","text":"%b"}\n\n' % (MODEL, b"w" * (3000 if is_long else 5))
    events = event * 3
    for cut in range(1, len(event), 500 if is_long else 3):
        bench = Bench()
        bench.asks(b"{}", action=b"generate_stream")
        got = bench.answers(*chunked(events[:cut], events[cut:]))
        assert payload(got) == events.replace(MODEL, NAME), cut
        assert bench.sides.is_clean()


@pytest.mark.parametrize("text", [b"no JSON", b"[]", b'{"outputs":[]}', b'{"model_name":"other"}'])
async def test_an_answer_that_does_not_name_the_model_goes_on_as_it_came(text: bytes) -> None:
    bench = Bench()
    bench.asks(b"{}")
    assert bench.answers(reply(text)).endswith(text)


async def test_an_answer_that_ends_early_is_cut_off() -> None:
    bench = Bench()
    bench.asks(b"{}")
    whole = reply(ANSWER)
    bench.answers(whole[:-30])
    bench.backend.lose()
    assert bench.client.ended
    assert bench.sides.variant_counts() == [(1, 1)]


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
async def test_the_rest_of_an_answer_is_read_when_its_client_left_before_any_of_it_went_on(
    status: bytes,
) -> None:
    bench = Bench()
    bench.asks(b"{}")
    whole = reply(b'{"error":"%b"}' % (b"x" * 200)).replace(b"200 OK", status)
    bench.connection.data_received(whole[:-30])
    bench.client.lose()
    bench.connection.data_received(whole[-30:])
    assert bench.sides.is_clean()
    assert not bench.backend.ended, "the connection can be used again"


async def test_the_time_of_an_upload_does_not_count_for_a_variant() -> None:
    bench = Bench()
    bench.server.data_received(HEAD)
    for piece in (b"{", b"}"):
        bench.sides.now += 5.0
        bench.server.data_received(piece)
    bench.backend.take()
    bench.sides.now += 0.25
    bench.answers(reply(ANSWER))
    assert bench.sides.variant_durations() == [250]


async def test_a_request_that_the_backend_cancels_counts_for_no_variant() -> None:
    bench = Bench()
    bench.asks(b"{}")
    bench.answers(b"HTTP/1.1 499 Client Closed Request\r\nContent-Length: 0\r\n\r\n")
    assert bench.sides.variant_counts() == [(0, 0)]


@pytest.mark.parametrize("end", ["deadline", "told", "early", "left", "uploading", "answering"])
async def test_a_client_that_gives_up_counts_by_how_long_it_waited(end: str) -> None:
    bench = Bench(request_timeout_s=3.0)
    bench.server.data_received(HEAD)
    bench.sides.now += 1.0
    bench.server.data_received(b"{" if end == "uploading" else b"{}")
    if end == "answering":
        bench.connection.data_received(reply(ANSWER)[:-30])
    late = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n"
    if end == "early":  # it says so though the deadline has not passed
        bench.answers(late)
    bench.sides.now += 2.0
    if end == "told":  # the timer of the connection is late
        bench.answers(late)
    elif end == "left":
        bench.client.lose()
    else:
        bench.server._look_at_time()
    has_waited = end in ("deadline", "told", "left")
    assert sum(bench.sides.variant_waits()) == (2000 if has_waited else 0)
    is_counted = end not in ("left", "uploading")  # no variant is chosen for half of a request
    assert bench.sides.variant_counts() == [(1, 1) if is_counted else (0, 0)]
