"""Frames of a large message that pass in runs are relayed as if each came by itself."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.wire.grpc.message import PREFIX_SIZE, message_prefix
from lb.wire.http2 import frames as fr
from tests.fakes.http2_connections import GREETING, PaperRelay, Side
from tests.fakes.relay import SINGLE_FRAMES, USUAL, counts_runs
from tests.wire.frames import (
    DATA,
    INITIAL_WINDOW_SIZE,
    RESPONSE_FIELDS,
    SETTINGS_ACK,
    data,
    headers,
    named,
    request_fields,
    window_update,
)
from tests.wire.frames import settings as settings_frame

_SIZES = st.lists(
    st.tuples(st.sampled_from([4096, 5000, 16_384, 100]), st.integers(1, 9)), min_size=1, max_size=4
)
_WINDOWS = st.sampled_from([0, 10_000, 65_535, 10**6])


def _relayed(
    sizes: list[tuple[int, int]],
    cuts: list[int],
    window: int,
    *,
    up: bool,
    full: bool,
    slow: bool,
    ends: bool,
) -> tuple[object, ...]:
    """What went through, and what stands on the accounts then."""
    relay = PaperRelay(
        options={"retained_size": 1000, "answer_window": 2**20},
        form=SINGLE_FRAMES if slow else USUAL,
    )
    narrow = settings_frame({INITIAL_WINDOW_SIZE: window}) + SETTINGS_ACK
    narrow += window_update(0, 2**20)
    client = relay.client(GREETING if up else narrow)
    backend = relay.backend(0, narrow if up else GREETING)
    size = sum(size * n for size, n in sizes)
    start = message_prefix(size + len(named()) - PREFIX_SIZE) + named()[PREFIX_SIZE:]
    client.sends(headers(1, request_fields()), data(1, start))
    backend.sends(headers(1, RESPONSE_FIELDS))
    source, sink = (client, backend) if up else (backend, client)
    if full:
        sink.pause()
    frames = [data(1, bytes([at % 251]) * size) for size, n in sizes for at in range(n)]
    if ends and up:
        frames[-1] = fr.frame_header(len(frames[-1]) - 9, DATA, 1, 1) + frames[-1][9:]
    wire = b"".join(frames)
    edges = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    for at, stop in pairwise(edges):
        source.sends(wire[at:stop])
    pipe = source.facts.streams[1]
    first = _payload(sink)
    state = (pipe.held, pipe.ended, pipe.credit, sink.facts.credit, relay.memory_budget.held)
    counted = source.facts.carried(1)
    if full:
        sink.resume()
    sink.sends(window_update(1, 2**20), window_update(0, 2**20))
    rest = _payload(sink)
    assert first + rest == (start if up else b"") + b"".join(frame[9:] for frame in frames)
    assert not relay.memory_budget.held
    if not pipe.ended:
        assert pipe.window + pipe.owed == pipe.window_size, "all that went out is credited or owed"
    return first, state, counted


def _payload(side: Side) -> bytes:
    return b"".join(frame.payload for frame in side.gets() if frame.kind == DATA)


@settings(max_examples=80, deadline=None)
@given(
    _SIZES,
    st.lists(st.integers(0, 200_000), max_size=3),
    _WINDOWS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_runs_of_frames_are_relayed_as_single_frames_are(
    sizes: list[tuple[int, int]], cuts: list[int], window: int, up: bool, full: bool, ends: bool
) -> None:
    async def both() -> None:
        given_to = {"up": up, "full": full, "ends": ends}
        fast = _relayed(sizes, cuts, window, **given_to, slow=False)
        assert fast == _relayed(sizes, cuts, window, **given_to, slow=True)

    asyncio.run(both())


def test_the_common_large_message_does_pass_in_runs() -> None:
    form, runs = counts_runs()

    async def answer() -> None:
        relay = PaperRelay(options={"answer_window": 2**20}, form=form)
        client = relay.client()
        client.sends(settings_frame({INITIAL_WINDOW_SIZE: 10**6}))
        backend = relay.backend()
        client.sends(headers(1, request_fields()), data(1, named(), end=True))
        backend.sends(headers(1, RESPONSE_FIELDS))
        backend.sends(b"".join(data(1, bytes(16_384)) for _ in range(10)))
        assert len(_payload(client)) == 163_840
        assert runs() == 9

    asyncio.run(answer())
