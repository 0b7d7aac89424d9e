"""A backend's connection: streams, answers out of order, GOAWAY, resets and loss."""

from __future__ import annotations

import pytest

from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import (
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    RST_STREAM,
    SETTINGS_ACK,
    Frame,
    answer,
    call,
    data,
    headers,
    named,
    request_fields,
    rst,
    settings,
    window_update,
)


def heads(frames: list[Frame]) -> list[int]:
    """Streams of the heads that begin a message."""
    return [frame.stream for frame in frames if frame.kind == HEADERS]


async def test_first_block_says_that_we_use_no_table() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    client.sends(call(1), call(3))
    first, second = [frame for frame in backend.gets() if frame.kind == HEADERS]
    assert first.payload == b"\x20" + second.payload


@pytest.mark.parametrize("size", [1_000, 16_384, 65_535])
@pytest.mark.parametrize("ended", [True, False])
async def test_large_message_goes_again_as_it_was(size: int, ended: bool) -> None:
    """In frames that come one by one, or in runs of many."""
    relay = PaperRelay(backends=2)
    wide = settings({INITIAL_WINDOW_SIZE: 10**7}) + window_update(0, 10**7) + SETTINGS_ACK
    first, second, client = relay.backend(0, wide), relay.backend(1, wide), relay.client()
    head = bytes(1) + (600_000).to_bytes(4, "big")
    body = (head + named()[5:] + bytes(range(256)) * 2400)[: 600_000 + 5]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    frames = [data(1, piece) for piece in pieces[:-1]]
    client.sends(headers(1, request_fields()), b"".join(frames))
    last = data(1, pieces[-1], end=True)
    if ended:
        client.sends(last)
    assert first.gets()
    first.goes()
    relay.loop.advance(0.1)
    if not ended:
        client.sends(last)
    relay.relay.flush()
    got = b"".join(frame.payload for frame in second.gets() if frame.kind == DATA)
    assert got == body
    assert relay.memory_budget.held > 600_000
    second.sends(answer(1))
    assert client.gets()
    assert relay.is_clean()


@pytest.mark.parametrize("in_turn", [True, False])
async def test_request_that_comes_with_its_reset_is_not_sent(in_turn: bool) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(0, settings({}) + SETTINGS_ACK), relay.client()
    client.sends(call(1))
    backend.sends(answer(1))
    client.gets()
    backend.gets()
    relay.loop.advance(1.0)
    streams = range(3, 41, 2)
    if in_turn:
        client.sends(*(call(stream) + rst(stream) for stream in streams), call(41))
    else:
        client.sends(*map(call, [*streams, 41]), *map(rst, streams))
    got = backend.gets()
    assert [frame.kind for frame in got] == [HEADERS, DATA]
    last = got[0].stream
    backend.sends(answer(last))
    assert {frame.stream for frame in client.gets()} == {41}
    # The credit of what was not sent is there: it was all but that of three messages.
    client.sends(call(43, named() + bytes(65_535 - 3 * len(named()))))
    assert sum(len(frame.payload) for frame in backend.gets() if frame.kind == DATA) == (
        65_535 - 2 * len(named())
    )
    backend.sends(answer(last + 2))
    assert relay.is_clean()


async def test_request_that_is_sent_already_is_reset() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    relay.loop.advance(1.0)
    client.sends(call(1))
    client.sends(rst(1))
    assert [frame.kind for frame in backend.gets()] == [HEADERS, DATA, RST_STREAM]
    assert relay.is_clean()


async def test_call_that_the_client_cancels_does_not_go_again() -> None:
    relay = PaperRelay(backends=2)
    first, second, client = relay.backend(0), relay.backend(1), relay.client()
    client.sends(call(1))
    first.goes()
    client.sends(rst(1))
    relay.loop.advance(1.0)
    relay.relay.flush()
    assert second.gets() == []
    assert relay.is_clean()
