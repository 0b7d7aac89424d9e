"""HTTP batches that run as several requests, read by read: requests that cannot be cut, and answers
to parts that come in pieces or cannot be joined."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.proxy.attempt_timeout import AttemptTimeout, AttemptTimes
from lb.proxy.lost import UNSCHEDULED_S
from tests.fakes.clock import FakeLoop
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.work import instructions
from tests.wire.waiting import eventually

ROWS = 6
LIMIT = 4
"""Rows of an execution: a batch of six has two parts of three."""


def batch(rows: int = ROWS, size: int = 2, **others: list[int]) -> dict[str, Any]:
    """A tensor of so many rows, each of `size` values, and others by shape."""
    return {
        "inputs": [
            {
                "name": name,
                "datatype": "INT32",
                "shape": shape,
                "data": [row for row in range(shape[0]) for _ in range(shape[1])],
            }
            for name, shape in {"IN": [rows, size], **others}.items()
        ]
    }


def reply(request: bytes, *, drop: int = 0) -> bytes:
    """The answer to a part: its rows, but for as many as are to be left out."""
    asked = json.loads(request)["inputs"][0]
    rows, size = asked["shape"]
    output = {**asked, "name": "OUT", "shape": [rows - drop, size]}
    output["data"] = asked["data"][drop * size :]
    return json.dumps({"model_name": "m", "outputs": [output]}).encode()


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Bench:
    """A client, and two backends with an idle connection each."""

    def __init__(
        self, *, max_bytes: int = 1 << 20, loop: FakeLoop | None = None, **options: object
    ) -> None:
        self.sides = Sides(options, backends=2, loop=loop)
        self.sides.split(b"m", LIMIT, max_bytes=max_bytes)
        self.sides.max_attempts = 1
        self.server, self.client = self.sides.client()
        self.upstreams = [self.sides.upstream(number) for number in range(2)]

    def asks(self, body: bytes, *cuts: int, fields: bytes = b"", chunked: bool = False) -> None:
        """Send a request: the head, and each piece of the body in a read of its own."""
        fields += b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        line = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
        self.server.data_received(line + fields + b"\r\n\r\n")
        for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
            piece = body[start:stop]
            self.server.data_received(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.server.data_received(b"0\r\n\r\n")

    async def part(self, number: int) -> bytes:
        """The body that a backend has got."""
        transport: FakeTransport = self.upstreams[number][1]
        await eventually(lambda: transport.written)
        _, _, body = transport.take().partition(b"\r\n\r\n")
        return body

    async def answers(self, number: int, *, step: int = 0, drop: int = 0) -> None:
        """A backend answers its part, in reads of so many bytes."""
        message = answer(reply(await self.part(number), drop=drop))
        step = step or len(message)
        for start in range(0, len(message), step):
            self.upstreams[number][0].data_received(message[start : start + step])

    async def outcome(self) -> tuple[int, Any]:
        """The status and the body of the answer; nothing is left behind."""
        await eventually(lambda: self.client.written)
        head, _, body = self.client.take().partition(b"\r\n\r\n")
        assert self.sides.is_clean()
        return int(head.split()[1]), json.loads(body)

    async def is_right(self, rows: int = ROWS, size: int = 2) -> bool:
        """Whether the client has got all rows in their order."""
        status, found = await self.outcome()
        output = found["outputs"][0]
        wanted = [row for row in range(rows) for _ in range(size)]
        return bool(status == 200 and output["data"] == wanted and output["shape"] == [rows, size])

    def bodies(self) -> list[bytes]:
        """What both backends have got, without heads."""
        return [each[1].take().partition(b"\r\n\r\n")[2] for each in self.upstreams]


WHOLE = json.dumps(batch()).encode()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_is_cut_the_same_however_it_comes(chunked: bool) -> None:
    for cut in range(1, len(WHOLE), 3):
        bench = Bench()
        bench.asks(WHOLE, cut, chunked=chunked)
        await bench.answers(0)
        await bench.answers(1)
        assert await bench.is_right(), cut


async def test_answers_to_parts_may_come_in_any_pieces() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    await bench.answers(1, step=7)
    await bench.answers(0, step=1)
    assert await bench.is_right()


async def test_a_part_whose_answer_has_begun_is_not_late() -> None:
    loop = FakeLoop()
    bench = Bench(loop=loop)
    bench.sides.max_attempts = 3
    bench.sides.check_attempts(AttemptTimeout(AttemptTimes(common=1.0)))
    bench.asks(WHOLE)
    answers = [answer(reply(await bench.part(number))) for number in range(2)]
    for (connection, _), message in zip(bench.upstreams, answers, strict=True):
        connection.data_received(message[:-10])
    loop.advance(5.0)
    for (connection, _), message in zip(bench.upstreams, answers, strict=True):
        connection.data_received(message[-10:])
    assert await bench.is_right()
    assert bench.sides.outcomes.seen == []


async def test_of_two_attempts_at_a_part_that_counts_whose_answer_begins_first() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    bodies = [await bench.part(number) for number in range(2)]
    bench.upstreams[1][0].data_received(answer(reply(bodies[1])))
    (part,) = bench.sides.relay.under_way()
    assert bench.sides.relay.hedge(part) is not None
    assert await bench.part(1) == bodies[0]
    message = answer(reply(bodies[0]))
    bench.upstreams[0][0].data_received(message[:-10])
    bench.upstreams[1][0].data_received(message[:-20])
    bench.upstreams[0][0].data_received(message[-10:])
    await eventually(lambda: bench.client.written)
    assert bench.client.take().startswith(b"HTTP/1.1 200 ")
    bench.upstreams[1][0].data_received(message[-20:])
    assert bench.sides.is_clean()


async def test_compressed_and_long_requests_are_cut() -> None:
    text = json.dumps(batch(ROWS, 5000)).encode()
    for body, fields in ((text, b""), (gzip.compress(text), b"Content-Encoding: gzip\r\n")):
        bench = Bench()
        bench.asks(body, 40, fields=fields)
        await bench.answers(0)
        await bench.answers(1)
        assert await bench.is_right(ROWS, 5000)


NOT_CUT = {
    "inputs of other rows": json.dumps(batch(ROWS, 2, OTHER=[3, 2])).encode(),
    "no JSON": WHOLE[:-3],
    "few rows": json.dumps(batch(LIMIT)).encode(),
    "nothing": b"{}",
}


@pytest.mark.parametrize("sent", NOT_CUT.values(), ids=NOT_CUT)
@pytest.mark.parametrize("cuts", [(), (1,)], ids=["at once", "in pieces"])
async def test_what_cannot_be_cut_goes_on_as_it_came(sent: bytes, cuts: tuple[int, ...]) -> None:
    bench = Bench()
    bench.asks(sent, *cuts)
    assert sorted(bench.bodies()) == [b"", sent]


async def test_what_cannot_be_inflated_goes_on_as_it_came() -> None:
    sent = gzip.compress(WHOLE)[:-4]
    bench = Bench()
    bench.asks(sent, fields=b"Content-Encoding: gzip\r\n")
    assert sorted(bench.bodies()) == [b"", sent]


@pytest.mark.parametrize(
    ("options", "chunked"),
    [({"max_bytes": 200}, False), ({"max_bytes": 200}, True), ({"body_size": 200}, True)],
)
async def test_a_batch_that_is_too_long_is_refused(options: dict[str, Any], chunked: bool) -> None:
    bench = Bench(**options)
    body = json.dumps(batch(ROWS, 60)).encode()
    bench.asks(body, 150, 220, 300, chunked=chunked)
    status, _ = await bench.outcome()
    assert status == 413
    assert bench.bodies() == [b"", b""]


async def test_priority_and_regions_of_a_batch_go_with_its_parts() -> None:
    bench = Bench()
    pool = bench.sides.pool
    placements = pool.current.placements
    pool.publish(replace(pool.current, regions={b"r": placements}))
    sent = {**batch(), "parameters": {"priority": 2}}
    bench.asks(json.dumps(sent).encode())
    for number in range(2):
        assert json.loads(await bench.part(number))["parameters"] == {"priority": 2}


async def test_the_first_error_of_a_part_is_that_of_the_request() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    for connection, transport in bench.upstreams:
        assert transport.take()
        connection.data_received(answer(b'{"error":"bad rows"}', b"400 Bad Request"))
    status, found = await bench.outcome()
    assert status == 400
    assert "rows 0 to 3 of 6: bad rows" in found["error"]


async def test_answers_that_cannot_be_joined_are_an_error() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    await bench.answers(0)
    await bench.answers(1, drop=1)
    status, found = await bench.outcome()
    assert status == 502
    assert "cannot be joined" in found["error"]


async def test_a_client_that_leaves_ends_a_batch_of_which_no_part_has_begun() -> None:
    bench = Bench()
    body = json.dumps(batch(ROWS, 20_000)).encode()
    bench.asks(body, 100)
    bench.client.lose()
    assert bench.bodies() == [b"", b""]
    assert bench.sides.is_clean()
    assert bench.sides.backends[0].port(AppProtocol.HTTP).attempts == 0


def long_reply(request: bytes, size: int) -> bytes:
    """The answer to a part whose rows have so many bytes each."""
    rows = json.loads(request)["inputs"][0]["shape"][0]
    output = {"name": "OUT", "datatype": "BYTES", "shape": [rows, 1], "data": ["x" * size] * rows}
    return json.dumps({"model_name": "m", "outputs": [output]}).encode()


async def test_a_batch_whose_answers_need_all_memory_gives_way_before_others_are_refused() -> None:
    bench = Bench()
    sides = bench.sides
    sides.memory_budget.relayed_at_most = sides.memory_budget.ceiling // 16
    each = sides.memory_budget.ceiling // 2
    bench.asks(WHOLE)
    for number in range(2):
        message = answer(long_reply(await bench.part(number), each // (ROWS // 2)))
        for start in range(0, len(message), each // 8):
            bench.upstreams[number][0].data_received(message[start : start + each // 8])
    assert bench.client.take().startswith(b"HTTP/1.1 503 ")
    assert sides.memory_budget.held == 0
    assert sides.memory_budget.shortages == 0, "nobody else was refused"


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
@pytest.mark.parametrize("reads", [1, 2])
async def test_an_answer_whose_end_makes_its_batch_give_way_is_over(
    reads: int, status: bytes
) -> None:
    loop = FakeLoop()
    bench = Bench(loop=loop)
    sides = bench.sides
    bench.asks(WHOLE)
    asked = [await bench.part(number) for number in range(2)]
    sides.memory_budget.relayed_at_most = sides.memory_budget.ceiling // 16
    message = answer(long_reply(asked[0], sides.memory_budget.ceiling // 2), status)
    cut = 200 if reads == 2 else 0
    for read in filter(None, (message[:cut], message[cut:])):
        bench.upstreams[0][0].data_received(read)
    assert bench.client.take().startswith(b"HTTP/1.1 503 ")
    assert sides.in_flight == 1, "the other part"
    assert sides.idle_upstreams == 1
    assert sides.backends[0].port(AppProtocol.HTTP).codes == {int(status[:3]): 1}
    loop.advance(2 * UNSCHEDULED_S)
    assert [each.lost_requests for each in sides.backends] == [0, 1]
    assert sides.is_clean()


async def test_a_second_batch_waits_for_room_for_its_answers() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    other, client = bench.sides.client()
    line = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    other.data_received(line % len(WHOLE) + WHOLE)
    assert bench.sides.split_counts.batches == 1
    await bench.answers(0)
    await bench.answers(1)
    await eventually(lambda: bench.sides.split_counts.batches == 2)
    assert bench.client.take().startswith(b"HTTP/1.1 200 ")
    await bench.answers(0)
    await bench.answers(1)
    assert client.take().startswith(b"HTTP/1.1 200 ")
    assert bench.sides.is_clean()


async def test_an_answer_that_its_client_does_not_read_gives_way_to_an_overdue_batch() -> None:
    loop = FakeLoop()
    bench = Bench(loop=loop)
    bench.asks(WHOLE)
    await bench.answers(0)
    await bench.answers(1)
    memory_budget = bench.sides.memory_budget
    bench.client.waiting = memory_budget.ceiling * 4 // 5
    bench.server.pause_writing()
    await eventually(lambda: memory_budget.held > 0)
    other, _ = bench.sides.client()
    line = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    other.data_received(line % len(WHOLE) + WHOLE)
    assert bench.sides.split_counts.batches == 1

    def has_begun() -> bool:
        loop.advance(0.1)
        return bench.sides.split_counts.batches == 2

    await eventually(has_begun)
    assert bench.client.ended == "abort"
    assert memory_budget.shortages == 0


async def test_a_client_that_leaves_while_its_batch_waits_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.asks(WHOLE)
    other, client = bench.sides.client()
    line = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    other.data_received(line % len(WHOLE) + WHOLE)
    client.lose()
    await bench.answers(0)
    await bench.answers(1)
    assert await bench.is_right()
    assert bench.sides.split_counts.batches == 1


async def test_what_a_read_costs_does_not_grow_with_what_has_come() -> None:
    costs = []
    for count in (200, 800):
        bench = Bench()
        body = json.dumps({"id": "x" * count, **batch()}).encode()
        costs.append(instructions(partial(bench.asks, body, *range(1, count))))
        assert all(bench.bodies())
        bench.client.lose()
    assert costs[1] <= 6 * costs[0]
