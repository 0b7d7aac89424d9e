"""What beside its model decides where a call goes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.model import ModelFacts
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute
from lb.domain.sequence import SequenceKey
from lb.kserve import inference_pb2 as pb
from lb.proxy.http2.inspection import INSPECTED_BYTES
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fakes.relay import snapshot_of
from tests.wire.frames import (
    DATA,
    HEADERS,
    MAX_CONCURRENT_STREAMS,
    SETTINGS_ACK,
    answer,
    call,
    data,
    goaway,
    headers,
    message,
    request_fields,
    rst,
    settings,
)
from tests.wire.waiting import eventually

STATEFUL = ModelRoute(facts=ModelFacts(is_stateful=True, idle_s=1.0))
STATELESS = ModelRoute(facts=ModelFacts(is_stateful=False), is_plain=True)


def infer(*, size: int = 4, model: str = "s", version: str = "", **parameters: Any) -> bytes:
    """A request without its prefix; the type of a parameter follows from its value."""
    request = pb.ModelInferRequest(
        model_name=model, model_version=version, raw_input_contents=[b"x" * size]
    )
    request.inputs.add(name="X", datatype="INT32", shape=[1, 1])
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request.SerializeToString()


def start(sequence_id: int | str, **more: Any) -> bytes:
    return message(infer(sequence_id=sequence_id, sequence_start=True, **more))


def step(sequence_id: int | str, **more: Any) -> bytes:
    return message(infer(sequence_id=sequence_id, **more))


class Bench:
    """A relay before two backends, each with one connection."""

    def __init__(self, **routes: ModelRoute) -> None:
        self.paper = PaperRelay(backends=2)
        snapshot = snapshot_of(self.paper.backends, 2)
        self.paper.ref.publish(
            replace(snapshot, routes={name.encode(): route for name, route in routes.items()})
        )
        self.sides = [self.paper.backend(0), self.paper.backend(1)]
        self.client = self.paper.client()

    def where(self) -> int | None:
        """Which backend has got a call since the last time."""
        for number, side in enumerate(self.sides):
            if any(frame.kind == HEADERS for frame in side.gets()):
                return number
        return None

    def asks(self, stream: int, body: bytes) -> int | None:
        """A call that is answered; which backend got it."""
        self.client.sends(call(stream, body))
        number = self.where()
        if number is not None:
            upstream = self.sides[number].connection.next_id - 2  # type: ignore[union-attr]
            self.sides[number].sends(answer(upstream))
        return number


@pytest.mark.parametrize("routes", [{}, {"s": STATEFUL}, {"s": ModelRoute(facts=ModelFacts())}])
async def test_steps_follow_their_start(routes: dict[str, ModelRoute]) -> None:
    bench = Bench(**routes)
    homes = {number: bench.asks(2 * number + 1, start(number)) for number in range(1, 5)}
    assert sorted(str(home) for home in homes.values()) == ["0", "0", "1", "1"]
    for number in range(1, 5):
        assert bench.asks(2 * number + 11, step(number)) == homes[number]
    assert bench.paper.is_clean()
    assert [backend.open_sequences for backend in bench.paper.backends] == [2, 2]
    assert {record.model for record in bench.paper.finished.records} == {b"s"}


async def test_a_stateless_model_has_no_sequences() -> None:
    bench = Bench(s=STATELESS)
    for number in range(4):
        bench.asks(2 * number + 1, start(7))
    bench = Bench(s=replace(STATELESS, is_plain=False))
    bench.asks(1, start(7))
    assert [backend.open_sequences for backend in bench.paper.backends] == [0, 0]


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_compressed_messages_are_looked_into_and_go_on_as_they_came(
    compress: Callable[[bytes], bytes],
) -> None:
    bench = Bench(s=STATEFUL)
    first = compress(infer(sequence_id=7, sequence_start=True, size=20_000))
    home = bench.asks(1, message(first, 1))
    assert home is not None
    bench.paper.backends[home].in_flight += 1
    later = message(compress(infer(sequence_id=7)), 1)
    bench.client.sends(call(3, later))
    sent = b"".join(frame.payload for frame in bench.sides[home].gets() if frame.kind == DATA)
    assert sent == later
    assert bench.paper.finished.records[0].model == b"s"


async def test_what_cannot_be_inflated_goes_to_any_backend() -> None:
    bench = Bench(s=STATEFUL)
    assert bench.asks(1, message(b"not compressed", 1)) is not None
    assert bench.paper.is_clean()


@pytest.mark.parametrize("cut", [1, 5, 6, 12, 20, 26])
async def test_a_call_waits_until_its_parameters_have_come(cut: int) -> None:
    bench = Bench(s=STATEFUL)
    home = bench.asks(1, start(7))
    body = step(7, size=100_000)
    bench.client.sends(headers(3, request_fields()) + data(3, body[:cut]))
    assert bench.where() is None
    bench.client.sends(data(3, body[cut : cut + 1000]))
    assert bench.where() == home
    bench.client.sends(rst(3))
    assert bench.paper.is_clean()


async def test_parameters_that_do_not_end_hold_a_call_back_for_so_long_only() -> None:
    bench = Bench(s=STATEFUL)
    body = step(7, note="x" * 3 * INSPECTED_BYTES)
    bench.client.sends(headers(1, request_fields()))
    for at in range(0, INSPECTED_BYTES - 1024, 1024):
        bench.client.sends(data(1, body[at : at + 1024]))
        assert bench.where() is None
    for at in range(INSPECTED_BYTES - 1024, 3 * INSPECTED_BYTES, 1024):
        bench.client.sends(data(1, body[at : at + 1024]))
    assert bench.where() is not None
    bench.client.sends(rst(1))
    assert bench.paper.is_clean()


async def test_a_version_goes_where_it_is() -> None:
    paper = PaperRelay(backends=2)
    snapshot = snapshot_of(paper.backends, 2)
    second = snapshot_of(paper.backends[1:]).placements
    route = ModelRoute(facts=ModelFacts(is_stateful=False), versions={b"2": second})
    paper.ref.publish(replace(snapshot, routes={b"s": route}))
    first, other = paper.backend(0), paper.backend(1)
    client = paper.client()
    for number in range(3):
        client.sends(call(2 * number + 1, message(infer(version="2"))))
    assert not first.gets()
    assert [frame.stream for frame in other.gets() if frame.kind == HEADERS] == [1, 3, 5]
    ready = message(pb.ModelReadyRequest(name="s", version="2").SerializeToString())
    path = b"/inference.GRPCInferenceService/ModelReady"
    client.sends(headers(7, request_fields(path=path)) + data(7, ready, end=True))
    assert other.gets()


async def test_a_region_goes_where_it_is_registered() -> None:
    paper = PaperRelay(backends=2)
    snapshot = snapshot_of(paper.backends, 2)
    second = snapshot_of(paper.backends[1:]).placements
    paper.ref.publish(replace(snapshot, regions={b"r": second}, routes={b"s": STATELESS}))
    first, other = paper.backend(0), paper.backend(1)
    request = pb.ModelInferRequest(model_name="s")
    request.inputs.add(name="X").parameters["shared_memory_region"].string_param = "r"
    client = paper.client()
    for number in range(3):
        client.sends(call(2 * number + 1, message(request.SerializeToString())))
    assert not first.gets()
    assert len([frame for frame in other.gets() if frame.kind == HEADERS]) == 3


# Lost


async def test_the_next_step_is_told_that_its_backend_has_gone() -> None:
    bench = Bench(s=STATEFUL)
    home = bench.asks(1, start("call"))
    assert home is not None
    bench.paper.backends[home].died()
    bench.client.gets()
    bench.client.sends(call(3, step("call")))
    assert bench.where() is None
    (refused,) = (frame for frame in bench.client.gets() if frame.kind == HEADERS)
    assert b'sequence "call" of model s is lost' in refused.payload
    record = bench.paper.finished.records[-1]
    assert (record.grpc_status, record.reason) == (14, Reason.SEQUENCE_LOST)
    assert record.sequence == "call"
    assert bench.paper.is_clean()


async def test_a_connection_lost_under_a_step_names_its_sequence() -> None:
    bench = Bench(s=STATEFUL)
    bench.client.sends(call(1, start(7)))
    home = bench.where()
    assert home is not None
    bench.sides[home].goes()
    (failed,) = (frame for frame in bench.client.gets() if frame.kind == HEADERS)
    assert b"sequence 7 of model s: backend" in failed.payload
    assert bench.where() is None
    assert bench.paper.is_clean()


# Order


def opened(side: Side) -> list[int]:
    """The streams that were opened on a connection since the last time."""
    return [frame.stream for frame in side.gets() if frame.kind == HEADERS]


async def test_steps_under_way_are_followed_on_their_connection_even_when_it_is_full() -> None:
    paper = PaperRelay()
    two_streams = settings({MAX_CONCURRENT_STREAMS: 2}) + SETTINGS_ACK
    first, second = paper.backend(0, two_streams), paper.backend(0)
    client = paper.client()
    client.sends(call(1, start(7)), call(3, step(7)))
    assert opened(first) == [1, 3]
    client.sends(call(5, step(7)), call(7, start(8)), call(9, step(7)))
    assert opened(first) == []
    assert opened(second) == [1]  # the START of the other one
    first.sends(answer(1))
    assert opened(first) == [5]
    first.sends(answer(3), answer(5))
    assert opened(first) == [7]
    first.sends(answer(7))
    second.sends(answer(1))
    await eventually(paper.is_clean)  # the dials of those who waited fail


async def test_a_sequence_without_steps_under_way_takes_any_connection() -> None:
    paper = PaperRelay()
    one_stream = settings({MAX_CONCURRENT_STREAMS: 1}) + SETTINGS_ACK
    first, second = paper.backend(0, one_stream), paper.backend(0)
    client = paper.client()
    client.sends(call(1, start(7)))
    first.sends(answer(1))
    client.sends(call(3), call(5, step(7)))
    assert opened(first) == [1, 3]
    assert opened(second) == [1]


async def test_steps_do_not_pass_one_that_waits_for_a_connection() -> None:
    paper = PaperRelay()
    one_stream = settings({MAX_CONCURRENT_STREAMS: 1}) + SETTINGS_ACK
    only = paper.backend(0, one_stream)
    client = paper.client()
    client.sends(call(1, start(7)), call(3, step(7)), call(5, step(7, sequence_end=True)))
    seen = opened(only)
    for stream in (1, 3, 5):
        only.sends(answer(stream))
        seen += opened(only)
    assert seen == [1, 3, 5]
    assert paper.backends[0].open_sequences == 0
    await eventually(paper.is_clean)  # the dials of those who waited fail


async def test_steps_keep_their_order_while_a_connection_is_made() -> None:
    paper = PaperRelay()
    client = paper.client()
    client.sends(call(1, start(7)), call(3, step(7)), call(5, start(8)), call(7, step(7)))
    assert len(paper.relay.pool(paper.backends[0]).waiting) == 4
    first, second = paper.backend(0), paper.backend(0)
    paper.relay.pool(paper.backends[0]).serve_waiting()
    client.sends(call(9, step(7)))
    paper.relay.flush()
    bodies = [frame.payload for frame in first.gets() if frame.kind == DATA]
    assert bodies == [start(7), step(7), start(8), step(7), step(7)]
    assert not second.gets()


async def test_steps_that_a_backend_refused_go_again_in_order() -> None:
    paper = PaperRelay()
    first = paper.backend(0)
    client = paper.client()
    client.sends(call(1, start(7)))
    first.sends(answer(1))
    first.gets()
    client.sends(call(3, step(7)), call(5, step(7)))
    second = paper.backend(0)
    first.sends(goaway(1))
    bodies = [frame.payload for frame in second.gets() if frame.kind == DATA]
    assert bodies == [step(7), step(7)]
    assert paper.backends[0].port(AppProtocol.GRPC).in_flight == 2
    assert paper.dispatcher.steps.table.backend_of(SequenceKey(b"s", 7)) is paper.backends[0]


def pipelined(steps: int, streams: int = 1) -> tuple[PaperRelay, Side, Side]:
    """A backend with two connections; all but `streams` of the steps wait for the first one."""
    paper = PaperRelay()
    limit = settings({MAX_CONCURRENT_STREAMS: streams}) + SETTINGS_ACK
    first, second = paper.backend(0, limit), paper.backend(0)
    calls = (call(2 * number + 1, step(7, size=number + 1)) for number in range(1, steps))
    paper.client().sends(call(1, start(7)), *calls)
    return paper, first, second


def sizes(side: Side) -> list[int]:
    """What tells the steps apart that were sent on a connection since the last time."""
    bodies = [frame.payload[5:] for frame in side.gets() if frame.kind == DATA]
    return [len(pb.ModelInferRequest.FromString(body).raw_input_contents[0]) for body in bodies]


def calls_per_answer(steps: int) -> int:
    paper, first, _ = pipelined(steps)
    first.sends(answer(1))
    seen = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += 1

    gc.disable()  # what others have it call would count
    sys.setprofile(count)
    try:
        first.sends(answer(3))
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(paper.relay.pool(paper.backends[0]).connections[0].bound) == steps - 3
    return seen


async def test_an_answer_costs_the_same_however_many_steps_wait_for_its_connection() -> None:
    assert calls_per_answer(400) == calls_per_answer(20)


async def test_steps_that_wait_for_their_connection_open_no_others() -> None:
    paper, first, second = pipelined(4)
    pool = paper.relay.pool(paper.backends[0])
    assert not paper.tasks
    first.sends(answer(1))
    pool.serve_waiting()
    assert not paper.tasks
    for stream in (3, 5, 7):
        first.sends(answer(stream))
    assert sizes(first) == [4, 2, 3, 4]
    assert not second.gets()
    assert not pool.waiting
    assert paper.is_clean()


async def test_steps_leave_a_connection_that_takes_nothing_new_in_their_order() -> None:
    paper, first, second = pipelined(4)
    first.sends(goaway(1))
    await eventually(lambda: not paper.tasks)  # the dial fails, and the other one has room
    paper.relay.flush()
    assert sizes(second) == [2, 3, 4]
    first.sends(answer(1))
    second.sends(answer(1), answer(3), answer(5))
    assert paper.is_clean()


async def test_steps_leave_a_connection_whose_backend_takes_no_more_streams_there() -> None:
    _, first, second = pipelined(4)
    first.sends(settings({MAX_CONCURRENT_STREAMS: 0}))
    assert sizes(second) == [2, 3, 4]


async def test_cancelled_steps_that_wait_for_their_connection_are_passed_over() -> None:
    paper, first, _ = pipelined(3)
    (client,) = paper.relay.servers
    client.data_received(rst(3))
    first.sends(answer(1))
    assert sizes(first) == [4, 3]


async def test_steps_that_wait_for_their_connection_fail_with_their_backend() -> None:
    paper, first, second = pipelined(3)
    second.goes()
    first.goes()
    await eventually(paper.is_clean)
    assert [record.grpc_status for record in paper.finished.records] == [14, 14, 14]


def tiny_fields(count: int) -> bytes:
    """A compressed message without a tensor among its first fields."""
    return b"\1" + message(gzip.compress(b"\x1a\x00" * count))[1:]


async def test_many_costly_messages_in_one_read_take_many_turns() -> None:
    paper = PaperRelay()
    paper.backend(0)
    client = paper.client()
    cheap = client.sends(*(call(2 * number + 1, start(number)) for number in range(1, 21)))
    costly = client.sends(*(call(2 * number + 101, tiny_fields(9000)) for number in range(20)))
    assert cheap == 1
    assert costly > 2


async def test_large_calls_that_are_no_inference_cost_no_more_than_others() -> None:
    paper = PaperRelay()
    backend = paper.backend(0)
    client = paper.client()
    start = b"\0" + (602_112).to_bytes(4, "big") + b"x\1" * 1024  # as many fields as are looked at
    streams = range(1, 41, 2)
    turns = client.sends(*(headers(n, request_fields()) + data(n, start) for n in streams))
    assert turns == 1
    assert sum(frame.kind == HEADERS for frame in backend.gets()) == len(streams)
    client.sends(*map(rst, streams))
    assert paper.is_clean()


async def test_many_costly_messages_of_one_frame_take_many_turns() -> None:
    paper = PaperRelay()
    backend = paper.backend(0)
    client = paper.client()
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    messages = b"".join([tiny_fields(9000)] * 40 + [message(infer())])
    turns = client.sends(
        headers(1, request_fields(path=path)), data(1, messages), data(1, message(infer())),
        data(1, b"", end=True),
    )  # fmt: skip
    assert turns > 5
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    assert sent == messages + message(infer())


async def test_costly_messages_of_many_connections_share_one_iteration() -> None:
    paper = PaperRelay()
    paper.backend(0)
    clients = [paper.client() for _ in range(10)]
    for client in clients:
        client.connection.data_received(
            b"".join(call(2 * number + 1, tiny_fields(9000)) for number in range(3))
        )
    begun = [client.facts.last_peer_stream > 0 for client in clients]
    assert begun[0]
    assert sum(begun) <= 4
    assert not clients[-1].transport.reading
    while not all(client.facts.last_peer_stream == 5 for client in clients):
        before = sum(client.facts.last_peer_stream for client in clients)
        await asyncio.sleep(0)
        begun_now = sum(client.facts.last_peer_stream for client in clients) - before
        assert begun_now <= 2 * 10
    await asyncio.sleep(0)
    assert all(client.transport.reading for client in clients)
