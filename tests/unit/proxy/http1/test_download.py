"""The answer's way to the client: framing, masks, errors that send a request elsewhere."""

from __future__ import annotations

from lb.kserve.gate import RESERVED
from tests.fakes.http1_sides import Sides

_GET = b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _clean(sides: Sides) -> bool:
    return not (sides.in_flight or sides.dispatcher.open_exchanges or sides.ledger.held)


async def test_each_read_is_one_chunk_and_one_write() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(_GET)
    connection.data_received(_STREAM + b"1\r\na\r\n1\r\nb\r\n")
    assert client.take() == _STREAM + b"2\r\nab\r\n"
    connection.data_received(b"1\r\nc\r\n1;x\r\nd\r\n0\r\nX-T: 1\r\nHost: evil\r\n\r\n")
    assert client.take() == b"2\r\ncd\r\n0\r\nX-T: 1\r\n\r\n"
    assert client.writes == 2
    assert sides.finished.records[0].bytes_out == 4


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
    assert _clean(sides)


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
    assert _clean(sides)


async def test_chunks_for_a_client_without_them_lose_their_framing_however_they_come() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET /v2/models/m HTTP/1.0\r\n\r\n")
    connection.data_received(_STREAM)
    client.take()
    connection.data_received(b"2\r\nab\r\n")
    assert client.take() == b"ab"


async def test_early_answer_ends_both_connections() -> None:
    sides = Sides()
    connection, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(_POST[:-1])
    connection.data_received(_OK)
    assert client.take() == _OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert backend.ended == "abort"
    assert client.eof_sent
    assert sides.finished.records[0].reason is None
    assert _clean(sides)


async def test_http10_gets_no_interim_answer() -> None:
    sides = Sides()
    connection, _ = sides.upstream()
    server, client = sides.client()
    server.data_received(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\n\r\n" + _OK)
    assert client.take() == _OK.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
