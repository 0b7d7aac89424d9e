"""The answer's way to the client: framing, masks, errors that send a request elsewhere."""

from __future__ import annotations

import pytest

from lb.domain.fault import Fault
from lb.domain.outcome import Outcome
from lb.kserve.gate import RESERVED
from tests.fakes.http1_sides import Sides
from tests.fakes.passive_health import Reports

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_chunk_that_is_one_read_goes_on_as_it_is_and_counts() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(_STREAM)
    sides.now += 1
    connection.data_received(b"0000002\r\nab\r\n")
    assert client.take() == _STREAM + b"2\r\nab\r\n"
    sides.now += 1
    connection.data_received(b"3\r\ncde\r\n")
    assert client.take() == b"3\r\ncde\r\n"
    assert connection.port.last_byte_at == 1002.0
    connection.data_received(b"0\r\n\r\n")
    assert connection.port.bytes_received == sides.finished.records[0].bytes_out == 5
    assert sides.is_clean()


async def test_reserved_names_are_masked_in_chunks_that_are_one_read() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST.replace(b"/infer", b"/generate_stream"))
    connection.data_received(_STREAM)
    client.take()
    text = b"data: " + RESERVED[:-3]
    connection.data_received(b"%x\r\n%b\r\n" % (len(text), text))
    connection.data_received(b"b\r\non_abc data\r\n")
    assert client.take().endswith(b"b\r\n****** data\r\n")


async def test_events_of_one_read_go_on_as_they_came_unless_one_tells_a_name() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST.replace(b"/infer", b"/generate_stream"))
    connection.data_received(_STREAM)
    client.take()
    events = b"9\r\ndata: 1\n\n\r\na\r\ndata: 12\n\n\r\n"
    connection.data_received(events)
    assert client.take() == events
    text = b"data: " + RESERVED + b"abc\n\n"
    connection.data_received(events + b"%x\r\n%b\r\n" % (len(text), text))
    shown = client.take()
    assert b"data: 12\n\n" in shown
    assert b"abc" not in shown
    connection.data_received(b"0\r\n\r\n")
    assert sides.finished.records[0].bytes_out == 4 * 9 + 2 + len(text)
    assert connection.port.bytes_received == sides.finished.records[0].bytes_out
    assert sides.is_clean()


async def test_chunks_for_a_client_without_them_lose_their_framing_however_they_come() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET /v2/models/m HTTP/1.0\r\n\r\n")
    connection.data_received(_STREAM)
    client.take()
    connection.data_received(b"2\r\nab\r\n")
    assert client.take() == b"ab"


async def test_http10_gets_no_interim_answer() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\n\r\n" + _OK)
    assert client.take() == _OK.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


_EVENT = b'data: {"error":"CUDA error: an illegal memory access"}\n\n'
_BROKEN = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
@pytest.mark.parametrize("in_chunks", [True, False])
async def test_an_error_that_comes_in_pieces_sends_a_request_elsewhere(
    size: int, in_chunks: bool
) -> None:
    sides = Sides(backends=2)
    connection, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST.replace(b"/infer", b"/generate_stream"))
    if in_chunks:
        body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(_EVENT), _EVENT)
    else:
        body = b"Content-Length: %d\r\n\r\n%b" % (len(_EVENT), _EVENT)
    for part in _cut(_BROKEN + body, size):
        connection.data_received(part)
    assert client.take() == b""
    assert sides.outcomes.seen == [("b0", Outcome.BROKEN)]
    assert not first.ended, "its connection lives on"
    sides.waits.advance(0.1)
    assert len(sides.tasks) == 1
    await sides.tasks.aclose()
    client.lose()
    assert sides.is_clean()


@pytest.mark.parametrize("size", [1, 100, 10_000])
@pytest.mark.parametrize("text", [b"unexpected shape", b"x" * 5000])
async def test_other_errors_in_pieces_are_passed_on_whole(size: int, text: bytes) -> None:
    sides = Sides(backends=2)
    connection, _ = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    body = b'{"error":"%b"}' % text
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for part in _cut(answer, size):
        connection.data_received(part)
    assert client.take() == answer
    assert sides.finished.records[0].bytes_out == len(body)
    assert sides.is_clean()


async def test_an_error_without_a_length_ends_with_its_connection() -> None:
    sides = Sides(backends=2)
    connection, backend = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    connection.data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    connection.data_received(b'{"error":"Server ex')
    connection.data_received(b'iting"}')
    backend.lose()
    assert client.take() == b""
    assert sides.outcomes.seen == [("b0", Outcome.NOT_HERE)]
    await sides.tasks.aclose()
    client.lose()


@pytest.mark.parametrize("lost", [True, False])
async def test_nothing_is_left_of_an_error_that_is_held(lost: bool) -> None:
    sides = Sides()
    connection, backend = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    connection.data_received(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\nabc")
    if lost:
        backend.lose()
        assert client.take().startswith(b"HTTP/1.1 502 ")
    else:
        client.lose()
        connection.data_received(b"defghi")
        assert not backend.ended, "its connection lives on"
    assert sides.is_clean()


async def test_an_error_that_ends_a_stream_of_events_is_told_of() -> None:
    sides = Sides()
    passive_health = sides.judge = Reports()
    connection, _ = sides.upstream()
    server, client = sides.client()
    sides.backends[0].reports_due = 9
    for event in (b"data: 1\n\n", _EVENT):
        server.data_received(_POST.replace(b"/infer", b"/generate_stream"))
        connection.data_received(_STREAM + b"9\r\ndata: 0\n\n\r\n")
        connection.data_received(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        assert client.take().endswith(event + b"\r\n0\r\n\r\n")
    kinds = [(kind, what) for kind, _, _, what in passive_health.told]
    assert kinds == [("answered", 0.0), ("failed", Fault.DEVICE)]
