"""What beside its model decides where an HTTP request goes."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.model import ModelFacts
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute
from lb.domain.schedule import QueuePlan
from lb.proxy.http1.inspection import INSPECTED_AT_ONCE, SMALL_BODY, BodyInspection
from tests.fakes.http1_sides import Sides
from tests.fakes.relay import snapshot_of

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STATEFUL = ModelRoute(facts=ModelFacts(is_stateful=True))
UNKNOWN = ModelRoute(facts=ModelFacts())
STATELESS = ModelRoute(facts=ModelFacts(is_stateful=False))
SCHEDULED = replace(STATELESS, is_uniform=True, plan=QueuePlan(limits={}))


def text(sequence_id: int | str, *, start: bool = False, end: bool = False, size: int = 1) -> bytes:
    """The JSON of a request whose tensors are JSON, too."""
    parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    tensor = {"name": "X", "shape": [size], "datatype": "INT32", "data": [1] * size}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def post(body: bytes, *fields: bytes, path: bytes = b"/v2/models/s/infer") -> bytes:
    lines = b"".join(field + b"\r\n" for field in (b"Content-Length: %d" % len(body), *fields))
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\n%b" % (path, lines, body)


def chunked(*pieces: bytes) -> bytes:
    head = b"POST /v2/models/s/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


class Bench:
    """A relay before two backends, and one client."""

    def __init__(self, routes: Mapping[bytes, ModelRoute] | None = None) -> None:
        self.sides = Sides(backends=2)
        snapshot = snapshot_of(self.sides.backends, 2)
        self.sides.pool.publish(replace(snapshot, routes=dict(routes or {})))
        self.connections = [self.sides.upstream(0), self.sides.upstream(1)]
        self.server, self.client = self.sides.client()

    def sends(self, data: bytes) -> None:
        self.server.data_received(data)

    def where(self) -> int | None:
        """Which backend got something since the last time."""
        for number, (_, transport) in enumerate(self.connections):
            if transport.take():
                return number
        return None

    def asks(self, request: bytes) -> int | None:
        """A request that is answered; which backend got it."""
        self.sends(request)
        number = self.where()
        if number is not None:
            self.connections[number][0].data_received(_OK)
        self.client.take()
        return number

    @property
    def is_clean(self) -> bool:
        sides = self.sides
        return not (sides.in_flight or sides.dispatcher.open_exchanges or sides.memory_budget.held)


@pytest.mark.parametrize("routes", [{}, {b"s": STATEFUL}, {b"s": UNKNOWN}])
async def test_steps_follow_their_start(routes: dict[bytes, ModelRoute]) -> None:
    bench = Bench(routes)
    homes = {number: bench.asks(post(text(number, start=True))) for number in range(1, 5)}
    assert sorted(str(home) for home in homes.values()) == ["0", "0", "1", "1"]
    for number, home in homes.items():
        assert bench.asks(post(text(number))) == home
        assert bench.asks(post(text(number, end=True))) == home
    assert bench.is_clean
    assert [backend.open_sequences for backend in bench.sides.backends] == [0, 0]
    assert bench.sides.finished.records[-1].sequence == 4


async def test_a_number_and_a_text_are_two_sequences() -> None:
    bench = Bench({b"s": STATEFUL})
    number = bench.asks(post(text(77, start=True)))
    other = bench.asks(post(text("77", start=True)))
    assert number != other
    assert [bench.asks(post(text(77))), bench.asks(post(text("77")))] == [number, other]


async def test_the_head_before_binary_tensors_is_read() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    head = text(7)
    size = b"inference-header-content-length: %d" % len(head)
    hidden = b',"parameters":{"sequence_id":8}}'
    for _ in range(3):
        assert bench.asks(post(head + hidden + b"\0" * 100, size)) == home
    large = head + b"\0" * 300_000
    assert bench.asks(post(large, size)) == home


async def test_generate_has_no_sequences() -> None:
    bench = Bench({b"s": STATEFUL})
    bench.asks(post(text(7, start=True), path=b"/v2/models/s/generate"))
    assert [backend.open_sequences for backend in bench.sides.backends] == [0, 0]


async def test_a_stateless_model_has_no_sequences() -> None:
    bench = Bench({b"s": STATELESS})
    bench.asks(post(text(7, start=True)))
    bench.asks(post(text(7, start=True, size=50_000)))
    assert [backend.open_sequences for backend in bench.sides.backends] == [0, 0]


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, b"gzip"), (zlib.compress, b"deflate")]
)
@pytest.mark.parametrize("size", [1, 100_000])
async def test_compressed_bodies_are_looked_into_and_go_on_as_they_came(
    compress: Callable[[bytes], bytes], name: bytes, size: int
) -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    encoding = b"Content-Encoding: " + name
    assert home is not None
    for _ in range(2):
        body = compress(text(7, size=size))
        bench.sends(post(body, encoding))
        connection, transport = bench.connections[home]
        for _ in range(10):
            await asyncio.sleep(0)
        assert transport.take().endswith(body)
        connection.data_received(_OK)
    assert bench.is_clean


async def test_what_cannot_be_inflated_goes_to_any_backend() -> None:
    bench = Bench({b"s": STATEFUL})
    assert bench.asks(post(b"not compressed", b"Content-Encoding: gzip")) is not None
    assert bench.is_clean


async def test_a_request_waits_until_its_parameters_have_come() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    request = post(text(7, size=200_000))
    middle = len(request) - 20
    for at in range(0, middle, 50_000):
        bench.sends(request[at : min(at + 50_000, middle)])
        assert bench.where() is None
        assert bench.client.reading
        await asyncio.sleep(0)  # each read has an iteration of the loop
    assert bench.sides.memory_budget.held > 500_000
    assert bench.asks(request[middle:]) == home
    assert bench.is_clean


async def test_parameters_before_the_tensors_let_a_request_go_on() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    body = b'{"parameters":{"sequence_id":7},"inputs":[' + b" " * 200_000 + b"]}"
    request = post(body)
    bench.sends(request[:1000])
    assert bench.where() == home
    assert home is not None
    bench.sends(request[1000:])
    bench.connections[home][0].data_received(_OK)
    assert bench.is_clean


async def test_chunks_are_looked_into() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    body = text(7, size=3000)
    request = chunked(*(body[at : at + 100] for at in range(0, len(body), 100)))
    bench.sends(request)
    assert bench.where() == home
    assert bench.asks(b"0\r\n\r\n") == home
    assert bench.sides.finished.records[-1].sequence == 7
    assert bench.is_clean


async def test_large_json_of_a_model_of_which_nothing_is_known_goes_on_at_once() -> None:
    bench = Bench({b"s": UNKNOWN})
    request = post(text(7, start=True, size=200_000))
    bench.sends(request[:1000])
    number = bench.where()
    assert number is not None
    bench.sends(request[1000:])
    bench.connections[number][0].data_received(_OK)
    assert [backend.open_sequences for backend in bench.sides.backends] == [0, 0]
    assert bench.is_clean


async def test_chunks_of_a_model_of_which_nothing_is_known_wait_for_so_long_only() -> None:
    bench = Bench()
    body = text(7, start=True, size=SMALL_BODY)
    bench.sends(chunked(body[: SMALL_BODY - 10]))
    assert bench.where() is None
    bench.sends(b"14\r\n" + body[SMALL_BODY - 10 : SMALL_BODY + 10] + b"\r\n")
    assert bench.where() is not None
    bench.client.lose()
    assert bench.is_clean


async def test_a_client_that_expects_to_be_invited_is() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text(7, start=True)))
    body = text(7)
    request = post(body, b"Expect: 100-continue")
    bench.sends(request[: -len(body)])
    assert bench.client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert bench.where() is None
    assert bench.asks(body) == home


async def test_a_client_that_leaves_while_it_is_held_back_leaves_nothing() -> None:
    bench = Bench({b"s": STATEFUL})
    bench.sends(post(text(7, size=200_000))[:100_000])
    bench.client.lose()
    assert bench.is_clean
    assert bench.where() is None


async def test_rows_and_priority_are_those_of_each_request_however_it_begins() -> None:
    bench = Bench({b"s": SCHEDULED})
    for number, rows in enumerate((3, 3, 5, 3, 300, 5, *range(100, 180), 3)):
        one = {"name": "X", "shape": [rows], "datatype": "INT32", "data": [1]}
        both = {"inputs": [one], "parameters": {"priority": 1 + number % 3}}
        bench.sends(post(json.dumps(both).encode()))
        exchange = bench.server.exchange
        assert exchange is not None
        found = exchange.hints
        assert found is not None
        assert (found.rows, found.priority) == (rows, 1 + number % 3)
        where = bench.where()
        assert where is not None
        bench.connections[where][0].data_received(_OK)
        bench.client.take()
    assert bench.is_clean


async def test_a_version_goes_where_it_is() -> None:
    bench = Bench()
    snapshot = bench.sides.pool.current
    second = snapshot_of(bench.sides.backends[1:]).placements
    route = replace(STATELESS, versions={b"2": second})
    bench.sides.pool.publish(replace(snapshot, routes={b"s": route}))
    for action in (b"infer", b"generate"):
        path = b"/v2/models/s/versions/2/" + action
        assert bench.asks(post(b"{}", path=path)) == 1
        assert bench.asks(post(b"{}", path=path)) == 1
    ready = b"GET /v2/models/s/versions/2/config HTTP/1.1\r\nHost: a\r\n\r\n"
    assert [bench.asks(ready), bench.asks(ready)] == [1, 1]


@pytest.mark.parametrize("cut", [0, 10, 60])
async def test_a_region_goes_where_it_is_registered(cut: int) -> None:
    bench = Bench()
    snapshot = bench.sides.pool.current
    second = snapshot_of(bench.sides.backends[1:]).placements
    bench.sides.pool.publish(replace(snapshot, regions={b"r": second}, routes={b"s": STATELESS}))
    request = post(b'{"inputs":[{"name":"X","parameters":{"shared_memory_region":"r"}}]}')
    for _ in range(3):
        bench.sends(request[: len(request) - cut])
        if cut:
            assert bench.where() is None
            assert bench.asks(request[len(request) - cut :]) == 1
        else:
            assert bench.where() == 1
            bench.connections[1][0].data_received(_OK)


async def test_the_next_step_is_told_that_its_backend_has_gone() -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text("call", start=True)))
    assert home is not None
    bench.sides.backends[home].died()
    bench.sends(post(text("call")))
    assert bench.where() is None
    answer = bench.client.take()
    assert answer.startswith(b"HTTP/1.1 503 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error.startswith('sequence "call" of model s is lost')
    assert bench.sides.finished.records[-1].reason is Reason.SEQUENCE_LOST
    assert bench.asks(post(text("call", start=True))) is not None


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_step_at_a_silent_backend_fails_once_that_is_down(is_dead: bool) -> None:
    bench = Bench({b"s": STATEFUL})
    home = bench.asks(post(text("call", start=True)))
    assert home is not None
    bench.sends(post(text("call")))
    assert bench.where() == home
    backend = bench.sides.backends[home]
    port = backend.port(AppProtocol.HTTP)
    port.is_hung = True
    bench.sides.pool.announce()
    assert bench.client.take() == b"", "it may be back in a moment"
    port.is_given_up = True
    if is_dead:  # its other port is silent as well
        backend.died()
    bench.sides.pool.announce()
    assert bench.client.take().startswith(b"HTTP/1.1 50%c " % b"23"[is_dead])
    reason = Reason.SEQUENCE_LOST if is_dead else Reason.UPSTREAM_SILENT
    assert bench.sides.finished.records[-1].reason is reason


def test_a_bomb_is_inflated_a_little_at_a_time_and_given_up_at_the_limit() -> None:
    piece = zlib.compress(b'{"x":"' + b" " * 20_000_000)
    look = BodyInspection(-1, 1_000_000, is_compressed=True, keeps_text=False)
    before = 0
    while not look.feed(piece):
        assert before < look.size <= before + INSPECTED_AT_ONCE
        before, piece = look.size, look.rest
    assert look.size == 1_000_000
    assert look.step(b"s") is None


@pytest.mark.parametrize("json_size", [-1, 0, 100])
def test_no_more_is_inflated_than_is_looked_at(json_size: int) -> None:
    bomb = zlib.compress(bytes(4 * 2**20), 9)
    look = BodyInspection(json_size, SMALL_BODY, is_compressed=True, keeps_text=False)
    tracemalloc.start()
    try:
        assert look.feed(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 * SMALL_BODY
    finally:
        tracemalloc.stop()
