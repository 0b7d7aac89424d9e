"""HTTP calls of our own, with h11 as the other side."""

from __future__ import annotations

import h11
import pytest

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.client_call import PIECE_BYTES, Fields
from lb.net.ask.http import HttpAnswer, HttpClientCall


def make_client_call(
    method: bytes = b"POST", fields: Fields = (), body: bytes = b"", limit: int = 1000
) -> HttpClientCall:
    return HttpClientCall(method, b"/v2/x", fields, body, authority=b"a:1", limit=limit)


def sent(client_call: HttpClientCall) -> tuple[h11.Request, bytes]:
    """What an independent server reads."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(client_call.opening())
    while pieces := client_call.upload():
        for piece in pieces:
            server.receive_data(bytes(piece))
    request = server.next_event()
    assert isinstance(request, h11.Request)
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    return request, body


def heard(client_call: HttpClientCall, *pieces: bytes) -> HttpAnswer | None:
    for piece in pieces:
        if client_call.answer is None:
            assert client_call.receive(piece) == b""
    return client_call.answer


def test_the_request_is_whole() -> None:
    request, body = sent(make_client_call(fields=((b"x-a", b"1"),), body=b"hello"))
    assert request.method == b"POST"
    assert request.target == b"/v2/x"
    assert dict(request.headers) == {
        b"host": b"a:1",
        b"connection": b"close",
        b"content-length": b"5",
        b"x-a": b"1",
    }
    assert body == b"hello"


def test_a_request_without_a_body_says_so_where_one_is_expected() -> None:
    assert b"content-length: 0" in make_client_call().opening()
    assert b"content-length" not in make_client_call(b"GET").opening()


def test_a_large_body_goes_out_in_pieces_that_are_not_copies() -> None:
    body = bytes(3 * PIECE_BYTES + 1)
    client_call = make_client_call(body=body)
    pieces = []
    while more := client_call.upload():
        pieces += more
    assert [len(piece) for piece in pieces] == [PIECE_BYTES] * 3 + [1]
    assert all(isinstance(piece, memoryview) and piece.obj is body for piece in pieces)


ANSWERS = [
    (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        HttpAnswer(200, ((b"content-type", b"application/json"), (b"content-length", b"2")), b"{}"),
    ),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
        HttpAnswer(503, ((b"transfer-encoding", b"chunked"),), b"abc"),
    ),
    (b"HTTP/1.1 204 No Content\r\n\r\n", HttpAnswer(204, (), b"")),
]


@pytest.mark.parametrize(("data", "answer"), ANSWERS)
def test_answers_at_every_split_point(data: bytes, answer: HttpAnswer) -> None:
    for at in range(len(data) + 1):
        assert heard(make_client_call(), data[:at], data[at:]) == answer
    assert heard(make_client_call(), *(bytes((byte,)) for byte in data)) == answer


def test_the_content_type_is_found() -> None:
    answer = heard(make_client_call(), ANSWERS[0][0])
    assert answer is not None
    assert answer.content_type == b"application/json"
    assert HttpAnswer(200, (), b"").content_type == b""


def test_an_answer_may_end_with_its_connection() -> None:
    client_call = make_client_call()
    assert heard(client_call, b"HTTP/1.1 200 OK\r\n\r\nabc", b"def") is None
    client_call.closed()
    assert client_call.answer == HttpAnswer(200, (), b"abcdef")


def test_an_answer_that_is_cut_off_is_none() -> None:
    client_call = make_client_call()
    heard(client_call, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    client_call.closed()
    assert client_call.answer is None


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"HTTP/2 is spoken here\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "more than one"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + bytes(1001), "too long"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 11, "endless interim answers"),
    ],
)
def test_a_broken_answer_is_an_error(data: bytes, detail: str) -> None:
    with pytest.raises(UpstreamError, match=detail) as error:
        heard(make_client_call(), data)
    assert error.value.outcome is Outcome.PROTOCOL_ERROR


def test_an_answer_in_crumbs_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    crumbs, pieces = b"1\r\nx\r\n" * 4000, b"200\r\n%b\r\n" % bytes(512) * 10_000
    answer = heard(make_client_call(limit=1 << 30), head, crumbs, pieces, b"0\r\n\r\n")
    assert answer is not None
    assert len(answer.body) == 4000 + 512 * 10_000
    with pytest.raises(UpstreamError, match="too many chunks"):
        heard(make_client_call(limit=1 << 30), head, crumbs, crumbs)
