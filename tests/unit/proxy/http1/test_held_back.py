"""Large bodies that are held back: looked at and sent on in many turns of the loop."""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import replace

import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.net.iteration import ROOM
from lb.proxy.http1.exchange import Http1Attempt
from lb.proxy.http1.inspection import INSPECTED_AT_ONCE
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.request_body import PORTION
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.relay import snapshot_of

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_READ = 256_000
_SIZE = 5 * PORTION
_PARAMETERS = b'"parameters":{"sequence_id":7,"sequence_start":true}}'


def _body(size: int = _SIZE) -> bytes:
    head, tail = b'{"inputs":[{"data":[', b"1]}]," + _PARAMETERS
    return head + b"1," * ((size - len(head) - len(tail)) // 2) + tail


class Bench:
    """A relay before one backend, a client, and a body that arrives as fast as it is read."""

    def __init__(self, kept: int = 1 << 20, *, backends: int = 1) -> None:
        self.sides = Sides(Http1Options(retained_size=kept), ceiling=64 << 20, backends=backends)
        snapshot = snapshot_of(self.sides.backends)
        route = ModelRoute(facts=ModelFacts(is_stateful=True))
        self.sides.pool.publish(replace(snapshot, routes={b"s": route}))
        self.upstream, self.backend = self.sides.upstream()
        self.server, self.client = self.sides.client()

    def begin(self, size: int, *fields: bytes) -> None:
        lines = b"".join(field + b"\r\n" for field in (b"Content-Length: %d" % size, *fields))
        self.server.data_received(b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\n%b\r\n" % lines)

    async def receive(self, body: bytes) -> int:
        """Hand the body over whenever it is read; how many turns of the loop that took."""
        turns = 0
        for at in range(0, len(body), _READ):
            while not self.client.reading:
                await asyncio.sleep(0)
                turns += 1
            self.server.data_received(body[at : at + _READ])
        return turns

    async def begins(self) -> int:
        """Wait until the backend is sent something; how many turns of the loop that took."""
        turns = 0
        while not self.backend.written:
            turns += 1
            await asyncio.sleep(0)
        return turns

    async def sent(self, size: int) -> list[int]:
        """Wait until the backend was sent so much; the bytes of every write."""
        writes: list[int] = []
        while sum(writes) < size:
            if self.backend.written:
                writes.append(len(self.backend.take()))
            await asyncio.sleep(0)
        return writes

    @property
    def is_clean(self) -> bool:
        sides = self.sides
        return not (sides.in_flight or sides.dispatcher.open_exchanges or sides.memory_budget.held)


async def test_no_more_is_read_while_a_part_is_looked_at() -> None:
    bench = Bench()
    bench.begin(_SIZE)
    bench.server.data_received(_body()[:_READ])
    assert not bench.client.reading
    for _ in range(-(-_READ // INSPECTED_AT_ONCE)):
        assert not bench.client.reading
        await asyncio.sleep(0)
    assert bench.client.reading
    bench.client.lose()
    assert bench.is_clean


async def test_what_was_held_back_is_sent_in_portions() -> None:
    bench = Bench()
    body = _body()
    bench.begin(len(body))
    assert await bench.receive(body) >= len(body) // INSPECTED_AT_ONCE
    assert bench.sides.memory_budget.held > len(body) - _READ
    writes = await bench.sent(len(body))
    assert max(writes) < 2 * PORTION
    assert len(writes) >= _SIZE // PORTION
    assert bench.sides.memory_budget.held == 0
    bench.upstream.data_received(_OK)
    assert bench.client.take() == _OK
    assert bench.sides.finished.records[-1].sequence == 7
    assert bench.is_clean
    assert not bench.backend.ended


async def test_no_triton_is_left_with_a_part_of_a_request_whose_time_is_up() -> None:
    bench = Bench()
    body = _body().replace(b'"sequence_id":7', b'"sequence_id":0')  # no sequence
    bench.begin(len(body))
    await bench.receive(body)
    await bench.begins()
    bench.server.exchange.deadline_passed()
    assert bench.client.take().startswith(b"HTTP/1.1 504 ")
    assert bench.backend.ended == "abort"
    assert bench.is_clean


@pytest.mark.parametrize("turns", [0, 2, 20])
async def test_what_is_kept_is_sent_in_portions_again(turns: int) -> None:
    bench = Bench(kept=8 << 20, backends=2)
    body = _body().replace(b'"sequence_id":7', b'"sequence_id":0')  # no sequence
    bench.begin(len(body))
    await bench.receive(body)
    await bench.begins()
    for _ in range(turns):
        await asyncio.sleep(0)
    bench.backend.lose()
    bench.sides.waits.advance(0.1)
    exchange = bench.server.exchange
    assert exchange is not None
    assert exchange.body.is_retained
    assert exchange.attempts == 2
    await bench.sides.tasks.aclose()  # there is nobody to dial
    upstream, other = bench.sides.upstream(1)
    assert isinstance(exchange.attempt, Http1Attempt)
    exchange.attempt.send_over(upstream)
    writes: list[bytes] = []
    while sum(map(len, writes)) < len(body):
        writes.append(other.take())
        await asyncio.sleep(0)
    assert b"".join(writes).endswith(body)
    assert max(map(len, writes)) < 2 * PORTION
    assert bench.sides.memory_budget.held > len(body)
    upstream.data_received(_OK)
    assert bench.client.take() == _OK
    assert bench.is_clean


async def test_a_backend_that_is_full_gets_the_rest_when_it_has_caught_up() -> None:
    bench = Bench()
    body = _body()
    bench.begin(len(body))
    await bench.receive(body)
    await bench.begins()
    bench.upstream.pause_writing()
    got = len(bench.backend.take())
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.backend.take() == b""
    assert bench.sides.memory_budget.held > len(body) - got - _READ
    bench.upstream.resume_writing()
    await bench.sent(len(body) - got)
    bench.upstream.data_received(_OK)
    assert bench.client.take() == _OK
    assert bench.is_clean


async def test_the_rest_of_a_body_stays_behind_what_was_held_back() -> None:
    bench = Bench()
    body = _body()
    late = b" " * _SIZE
    bench.begin(len(body) + len(late))
    await bench.receive(body)
    await bench.begins()
    assert not bench.client.reading
    await bench.receive(late)
    await bench.sent(len(body) + len(late))
    bench.upstream.data_received(_OK)
    assert bench.client.take() == _OK
    assert bench.is_clean


@pytest.mark.parametrize("answer", [_OK, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"])
async def test_an_answer_before_all_was_sent_ends_the_connection_to_the_backend(
    answer: bytes,
) -> None:
    bench = Bench()
    body = _body()
    bench.begin(len(body))
    await bench.receive(body)
    await bench.begins()
    bench.upstream.data_received(answer)
    assert bench.client.take().startswith(answer[:20])
    assert bench.backend.ended == "abort"
    assert bench.is_clean


async def test_a_client_that_leaves_before_all_was_sent_leaves_nothing() -> None:
    bench = Bench()
    body = _body()
    bench.begin(len(body))
    await bench.receive(body)
    await bench.begins()
    bench.client.lose()
    assert bench.backend.ended == "abort"
    assert bench.is_clean


@pytest.mark.parametrize("whole", [True, False])
async def test_compressed_bodies_are_looked_at_in_several_turns(whole: bool) -> None:
    bench = Bench()
    numbers = random.Random(3)
    data = b",".join(b"%d" % numbers.randrange(10**6) for _ in range(60_000))
    body = zlib.compress(b'{"inputs":[{"data":[' + data + b"]}]," + _PARAMETERS)
    head = (
        b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: deflate\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    if whole:
        bench.server.data_received(head + body)
    else:
        bench.server.data_received(head + body[:1000])
        bench.server.data_received(body[1000:])
    assert bench.backend.written == b""
    assert await bench.begins() > 2
    assert bench.backend.take().endswith(body)
    bench.upstream.data_received(_OK)
    assert bench.sides.finished.records[-1].sequence == 7
    assert bench.is_clean


@pytest.mark.parametrize("number", [b"0.0,", b"1,2,0,"])
@pytest.mark.parametrize("framing", ["whole", "cut", "chunked"])
async def test_however_short_it_is_a_compressed_body_is_inflated_to_its_parameters(
    number: bytes, framing: str
) -> None:
    bench = Bench()
    body = b'{"inputs":[{"data":[' + number * 1_000_000 + b"1]}]," + _PARAMETERS
    packed = zlib.compress(body)
    if framing == "chunked":
        head = b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: deflate\r\n"
        crumbs = (packed[at : at + 50] for at in range(0, len(packed), 50))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(crumb), crumb) for crumb in crumbs)
        bench.server.data_received(
            head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        )
    elif framing == "cut":
        bench.begin(len(packed), b"Content-Encoding: deflate")
        bench.server.data_received(packed[:1000])
        bench.server.data_received(packed[1000:])
    else:
        bench.server.data_received(
            b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\n"
            b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n%b" % (len(packed), packed)
        )
    assert await bench.begins() >= len(body) // (2 * INSPECTED_AT_ONCE)
    bench.upstream.data_received(_OK)
    assert bench.sides.finished.records[-1].sequence == 7
    assert bench.sides.backends[0].open_sequences == 1
    assert bench.is_clean


async def test_a_client_that_leaves_while_much_is_inflated_leaves_nothing() -> None:
    bench = Bench()
    packed = zlib.compress(b'{"inputs":[{"data":[' + b"0," * 1_000_000)
    bench.begin(len(packed), b"Content-Encoding: deflate")
    bench.server.data_received(packed)
    bench.client.lose()
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.is_clean
    assert not bench.backend.written


# Many at once


def _request(body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in (b"Content-Length: %d" % len(body), *fields))
    return b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\n%b\r\n%b" % (lines, body)


def _crowd(bench: Bench, request: bytes, count: int) -> list[FakeTransport]:
    """Have so many clients send the same request in one iteration of the loop."""
    clients = [bench.sides.client() for _ in range(count)]
    for server, _ in clients:
        server.data_received(request)
    return [transport for _, transport in clients]


_PLAIN = _request(_body(50_000))
_COMPRESSED = _request(zlib.compress(_body(50_000)), b"Content-Encoding: deflate")


@pytest.mark.parametrize("request_", [_PLAIN, _COMPRESSED], ids=["plain", "compressed"])
async def test_bodies_that_come_together_are_looked_at_as_far_as_the_budget_allows(
    request_: bytes,
) -> None:
    bench = Bench()
    _crowd(bench, request_, 18)
    counts = [bench.sides.in_flight]
    while counts[-1] < 18:
        await asyncio.sleep(0)
        counts.append(bench.sides.in_flight)
    assert counts == [6, 12, 18]  # 50,000 bytes count 390 units, and an iteration has 2,000 of them


async def test_short_bodies_neither_count_nor_wait() -> None:
    bench = Bench()
    bench.server.relay.iteration.spend(ROOM)
    _crowd(bench, _request(_body(4000)), 18)
    assert bench.sides.in_flight == 18
    assert bench.server.relay.iteration.left == 0


async def test_clients_that_leave_before_their_turn_are_forgotten() -> None:
    bench = Bench()
    clients = _crowd(bench, _PLAIN, 18)
    for client in clients[6:]:
        client.lose()
    assert bench.sides.dispatcher.open_exchanges == 6
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.sides.in_flight == 6
    # Their turns cost nothing.
    assert bench.server.relay.iteration.left == ROOM
