"""Streams whose backends are lost or freeze between answers, in any order of events: the client
gets the answer to each request once and in order, the backends get whole messages, and nothing is
left."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.domain.backend import AppProtocol
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from tests.fakes.paper_streams import ROUTES, PaperStreams, request
from tests.fakes.relay import snapshot_of
from tests.property.test_stream_ends import Server, answers
from tests.wire.frames import DATA, INITIAL_WINDOW_SIZE, data, window_update
from tests.wire.frames import settings as settings_frame

SCHEDULED = ModelRoute(
    facts=ModelFacts(is_stateful=False, is_decoupled=False),
    is_uniform=True,
    plan=QueuePlan(limits={}, default=Capacity(1, is_auto=True)),
)
MODELS = {"plain": ("plain",), "work": ("work",), "several": ("plain", "work", "other")}
"""What is asked for, in turn."""
_BACKENDS = 4
"""One is left for each request, since fewer are lost or silent."""
WINDOW = 6000
OPTIONS = {"stream_window": WINDOW, "stream_window_max": WINDOW, "answer_window": 3000}
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.just(0), st.sampled_from([0, 10, 10, 900, 4500])),
        st.tuples(st.just("ask in pieces"), st.just(0), st.integers(8, 2000)),
        st.tuples(st.just("answer"), st.integers(0, _BACKENDS - 1), st.integers(0, 1500)),
        st.tuples(st.just("credit"), st.just(0), st.integers(1, 9000)),
        st.tuples(st.just("pause"), st.just(0), st.just(0)),
        st.tuples(
            st.sampled_from(["reset", "unavailable"]), st.integers(0, _BACKENDS - 1), st.just(0)
        ),
        st.tuples(
            st.sampled_from(["freeze", "freeze", "thaw"]),
            st.integers(0, _BACKENDS - 1),
            st.just(0),
        ),
    ),
    min_size=8,
    max_size=50,
)


ALL_EXIT = [
    *[("ask", 0, 0)] * _BACKENDS,
    *[("answer", 0, 0)] * _BACKENDS,
    *[("unavailable", 0, 0)] * _BACKENDS,
    ("ask", 0, 0),
]
"""An idle stream over several backends outlives all of them."""


@settings(max_examples=150, deadline=None)
@example(ALL_EXIT, "work")
@given(ACTS, st.sampled_from(sorted(MODELS)))
def test_each_request_has_one_answer(acts: list[tuple[str, int, int]], models: str) -> None:
    asyncio.run(play(acts, MODELS[models]))


async def play(acts: list[tuple[str, int, int]], models: tuple[str, ...]) -> None:
    paper = PaperStreams(backends=_BACKENDS, options=OPTIONS)
    paper.bench.max_attempts = 100
    paper.bench.allow_retries(1000.0)
    paper.client.sends(settings_frame({INITIAL_WINDOW_SIZE: 3000}))
    servers = [Server(paper, number) for number in range(_BACKENDS)]
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

    frozen: list[int] = []

    def find(*down: int) -> None:
        """These backends are down because they are silent, the others are well."""
        for number in frozen:
            # Nothing new goes over the connection to a backend that was down.
            paper.backends[number] = paper.bench.backend(number)
            servers[number] = Server(paper, number)
        frozen[:] = down
        everywhere = paper.bench.backends
        for number, backend in enumerate(everywhere):
            port = backend.port(AppProtocol.GRPC)
            port.is_hung = port.is_given_up = number in down
        routes = {**ROUTES, b"work": SCHEDULED, b"other": ROUTES[b"plain"]}
        rest = snapshot_of([each for n, each in enumerate(everywhere) if n not in down])
        paper.bench.ref.publish(replace(rest, backends=tuple(everywhere), routes=routes))

    find()
    losses = 0
    for name, number, size in acts:
        alive = [server for each, server in enumerate(servers) if each not in frozen]
        if name.startswith("ask"):
            model = models[len(asked) % len(models)]
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
            busy = [server for server in alive if any(server.owed.values())]
            if busy:
                busy[number % len(busy)].answer(size, part=False)
        elif name == "credit":
            paper.client.sends(window_update(1, size))
        elif name == "pause":
            paper.bench.loop.advance(0.1)
        elif name == "thaw":
            find()
        elif name == "freeze":
            if losses < _BACKENDS - 1:
                losses += 1
                find(number)
        else:
            begun = [server for server in alive if server.headed & server.got.keys()]
            is_loss = any(any(server.owed.values()) for server in servers)
            if begun and losses + is_loss < _BACKENDS:
                losses += is_loss
                begun[number % len(begun)].end(name)
        await settle()
    find()
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
