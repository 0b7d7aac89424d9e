"""A front's requests take the way of v2 requests, in the clothes that the client knows."""

from __future__ import annotations

import asyncio

import pytest

from lb.kserve.fronts import Forward, FrontFault, FrontRequest
from lb.proxy.http1.front import Front, FrontDecision
from lb.proxy.http1.server import Http1ServerConnection
from tests.fakes.http1_sides import FakeTransport, Sides

V2 = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
BINARY = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: 2\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class PlainFront(Front):
    """`/do` is an inference, `/load` a load, `/bad` a fault; the rest is unknown."""

    reads = 0

    def read(self, head: bytes, request: FrontRequest) -> FrontDecision:
        self.reads += 1
        if request.path == b"/bad":
            raise FrontFault('say "please"')
        targets = {b"/do": b"/v2/models/m/infer", b"/load": b"/v2/repository/models/m/load"}
        target = targets.get(request.path)
        if target is None:
            return self.answered(head, request, 400)
        return self.forwarded(head, request, Forward(request.method, target, 2))


def connect(sides: Sides) -> tuple[PlainFront, Http1ServerConnection, FakeTransport]:
    front = PlainFront(sides.relay)
    server = Http1ServerConnection(sides.relay, front)
    transport = FakeTransport(server)
    server.connection_made(transport)
    return front, server, transport


@pytest.mark.parametrize("step", [1, 9, 1000])
async def test_a_request_reaches_the_backend_as_a_v2_request(step: int) -> None:
    sides = Sides()
    front, server, client = connect(sides)
    backend, wire = sides.upstream()
    request = b"POST /do?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n{}12"

    for _ in range(2):
        for at in range(0, len(request), step):
            server.data_received(request[at : at + step])
        assert wire.take() == V2 + b"Content-Length: 4\r\n" + BINARY + b"{}12"
        backend.data_received(OK)
        assert client.take() == OK

    assert front.reads == 1, "the same head was read twice"
    assert [(each.path, each.model, each.operation.name) for each in sides.finished.records] == [
        (b"/do", b"m", "ModelInfer")
    ] * 2
    client.lose()
    assert not sides.dispatcher.open_exchanges


async def test_a_v2_route_is_none_of_a_fronts() -> None:
    sides = Sides()
    _, server, client = connect(sides)

    server.data_received(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")

    assert client.take() == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"
    )
    client.lose()


async def test_a_fault_is_told_and_the_connection_lives_on() -> None:
    sides = Sides()
    _, server, client = connect(sides)

    for _ in range(2):
        server.data_received(b"POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxx")
        assert client.take().endswith(b'\r\n\r\n{"error":"say \\"please\\""}')
    client.lose()


async def test_what_is_no_http_is_refused() -> None:
    sides = Sides()
    front, server, client = connect(sides)

    server.data_received(b"POST /do HTTP/1.1\r\nHost: a\r\nbad line\r\n\r\n")

    assert client.take().startswith(b"HTTP/1.1 400 ")
    assert front.reads == 0
    client.lose()


async def test_access_rules_are_those_of_the_v2_request() -> None:
    sides = Sides()
    _, server, client = connect(sides)

    server.data_received(b"POST /load HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")

    assert client.take().startswith(b"HTTP/1.1 403 ")
    client.lose()


async def test_requests_may_follow_each_other_at_once() -> None:
    sides = Sides()
    _, server, client = connect(sides)
    backend, wire = sides.upstream()
    head = b"POST /do HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"

    server.data_received(head + b"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n")
    assert wire.take().startswith(b"POST /v2/models/m/infer ")
    backend.data_received(OK)
    await asyncio.sleep(0)

    assert client.take().startswith(OK + b"HTTP/1.1 400 ")
    client.lose()


@pytest.mark.parametrize("fields", [b"", b"Host: a\r\nContent-Length: x\r\n"])
async def test_the_refusal_of_a_head_request_has_no_body(fields: bytes) -> None:
    _, server, client = connect(Sides())

    server.data_received(b"HEAD /do HTTP/1.1\r\n" + fields + b"\r\n")

    answer = client.take()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\n")
