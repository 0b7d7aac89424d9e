"""Streams whose backends are lost between answers, in any order of events: the client gets the
answer to each request once and in order, the backends get whole messages, and nothing is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from tests.fakes.paper_streams import ROUTES, PaperStreams, request
from tests.property.test_stream_ends import BACKENDS, Server, answers
from tests.wire.frames import DATA, INITIAL_WINDOW_SIZE, data, window_update
from tests.wire.frames import settings as settings_frame

SCHEDULED = ModelRoute(
    facts=ModelFacts(is_stateful=False, is_decoupled=False),
    is_uniform=True,
    plan=QueuePlan(limits={}, default=Capacity(1, is_auto=True)),
)
WINDOW = 6000
OPTIONS = {"stream_window": WINDOW, "stream_window_max": WINDOW, "answer_window": 3000}
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.just(0), st.sampled_from([0, 10, 10, 900, 4500])),
        st.tuples(st.just("ask in pieces"), st.just(0), st.integers(8, 2000)),
        st.tuples(st.just("answer"), st.integers(0, BACKENDS - 1), st.integers(0, 1500)),
        st.tuples(st.just("credit"), st.just(0), st.integers(1, 9000)),
        st.tuples(st.just("pause"), st.just(0), st.just(0)),
        st.tuples(
            st.sampled_from(["reset", "unavailable"]), st.integers(0, BACKENDS - 1), st.just(0)
        ),
    ),
    min_size=8,
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(ACTS, st.sampled_from(["plain", "work"]))
def test_each_request_has_one_answer(acts: list[tuple[str, int, int]], model: str) -> None:
    asyncio.run(play(acts, model))


async def play(acts: list[tuple[str, int, int]], model: str) -> None:
    paper = PaperStreams(backends=BACKENDS, options=OPTIONS)
    paper.bench.ref.publish(replace(paper.bench.ref.current, routes={**ROUTES, b"work": SCHEDULED}))
    paper.bench.max_attempts = 100
    paper.client.sends(settings_frame({INITIAL_WINDOW_SIZE: 3000}))
    servers = [Server(paper, number) for number in range(BACKENDS)]
    asked: list[str] = []
    got = bytearray()
    room = WINDOW

    async def settle() -> None:
        nonlocal room
        for _ in range(2):
            for server in servers:
                server.look()
            await paper.turn()
            for frame in paper.looks():
                if frame.kind == DATA:
                    got.extend(frame.payload)
                elif frame.kind == 8 and frame.stream == 1:
                    room += frame.increment
                    assert room <= WINDOW, "credited twice"

    for name, number, size in acts:
        if name.startswith("ask"):
            message = request(model, 0, f"{len(asked)}", tensor=bytes(size))
            if len(message) <= room:
                room -= len(message)
                asked.append(f"{len(asked)}")
                cut = 0 if name == "ask" else len(message) // 2
                for piece in (message[:cut], message[cut:]):
                    if piece:
                        paper.client.sends(data(1, piece))
                        await settle()
        elif name == "answer":
            busy = [server for server in servers if any(server.owed.values())]
            if busy:
                busy[number % len(busy)].answer(size, part=False)
        elif name == "credit":
            paper.client.sends(window_update(1, size))
        elif name == "pause":
            paper.bench.loop.advance(0.1)
        else:
            begun = [server for server in servers if server.headed & server.got.keys()]
            if begun:
                begun[number % len(begun)].end(name)
        await settle()
    paper.client.sends(window_update(1, 2**20))
    paper.send(end=True)
    for _ in range(4 * len(acts) + 20):
        paper.bench.loop.advance(0.1)
        await settle()
        for server in servers:
            server.answer(10, part=False)
    await settle()
    for server in servers:
        server.close_half_closed()
    await settle()
    assert answers(bytes(got)) == asked
    (record,) = paper.bench.finished.records
    assert record.grpc_status == 0
    assert paper.bench.is_clean()
    paper.client.goes()
    paper.bench.timers.close()
