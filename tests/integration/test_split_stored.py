"""Long gRPC batches, whose frames are stored in the kernel and go to backends from there
(`lb.net.intake`): whatever can happen to a request still does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.relay import RunningRelay, running_relay
from tests.wire.frames import (
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    answer,
    call,
    data,
    headers,
    message,
    named,
    request_fields,
    rst,
)
from tests.wire.http2 import Peer, RawBackend, Script, raw_backend, raw_client, serve_calls
from tests.wire.waiting import eventually

BOTH_LOOPS = True
MIB = 1 << 20
ROWS = 20
ROW_BYTES = 200_000
DATA = random.Random(1).randbytes(ROWS * ROW_BYTES)
WIDE = {"stream_window": 16 * MIB, "stream_window_max": 16 * MIB, "message_size": 16 * MIB}
"""A batch fits into the window of its stream."""
LONG_FRAMES = {MAX_FRAME_SIZE: MIB, INITIAL_WINDOW_SIZE: 16 * MIB}


def _batch() -> bytes:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="IN", datatype="UINT8", shape=[ROWS, ROW_BYTES])
    request.raw_input_contents.append(DATA)
    return message(request.SerializeToString())


BATCH = _batch()
RIGHT = b"".join(DATA[row * ROW_BYTES : row * ROW_BYTES + 4] for row in range(ROWS))


def _first_of(stream: int, body: bytes) -> bytes:
    """An answer that has the first four bytes of each row."""
    request = pb.ModelInferRequest.FromString(body[5:])
    if not request.inputs:
        return answer(stream)
    [rows] = request.raw_input_contents
    response = pb.ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name="OUT", datatype="INT32", shape=[len(rows) // ROW_BYTES, 1])
    found = b"".join(rows[at : at + 4] for at in range(0, len(rows), ROW_BYTES))
    response.raw_output_contents.append(found)
    return answer(stream, message(response.SerializeToString()))


def _first_numbers(backend: RawBackend) -> Script:
    play = serve_calls(backend, _first_of)

    async def script(peer: Peer) -> None:
        peer.frame_size = MIB
        await play(peer)

    return script


@asynccontextmanager
async def _serving(
    script: Callable[[RawBackend], Script] = _first_numbers,
    values: dict[int, int] | None = None,
    ceiling: int = 2**28,
) -> AsyncIterator[tuple[RunningRelay, Peer]]:
    values = LONG_FRAMES if values is None else values
    async with (
        raw_backend(script, values) as first,
        raw_backend(script, values) as second,
        running_relay(first.target, second.target, options=WIDE, ceiling=ceiling) as relay,
    ):
        relay.split(b"m", 8)
        async with raw_client(relay.port) as client:
            yield relay, client
        await eventually(relay.is_clean)


def _frames(stream: int, size: int = MIB) -> list[bytes]:
    """A batch in frames of a size."""
    starts = range(0, len(BATCH), size)
    ends = (at + size >= len(BATCH) for at in starts)
    return [
        data(stream, BATCH[at : at + size], end=end) for at, end in zip(starts, ends, strict=True)
    ]


def _stored(relay: RunningRelay) -> int:
    return relay.leftovers()["stored"]


async def _answer_of(client: Peer, stream: int) -> bytes:
    await client.until_over(stream)
    [*_, trailers] = client.heads[stream]
    assert (b"grpc-status", b"0") in trailers, trailers
    response = pb.ModelInferResponse.FromString(bytes(client.bodies[stream][5:]))
    return b"".join(response.raw_output_contents)


async def _send_until_stored(relay: RunningRelay, client: Peer, stream: int) -> bytes:
    """Send some of a batch, until a part of it is stored. Returns what is still to be sent."""
    content = b"".join(_frames(stream))
    client.send(headers(stream, request_fields()), content[: 2 * MIB])
    await eventually(lambda: _stored(relay) > 0)
    return content[2 * MIB :]


@pytest.mark.parametrize("values", [LONG_FRAMES, {}], ids=["long frames", "short frames"])
@pytest.mark.parametrize("size", [MIB, 16 * 1024])
async def test_a_long_batch_is_answered_rightly_and_so_is_the_next_one(
    size: int, values: dict[int, int]
) -> None:
    async with _serving(values=values) as (relay, client):
        for stream in (1, 3):
            client.send(headers(stream, request_fields()), *_frames(stream, size))
            assert await _answer_of(client, stream) == RIGHT
        assert [record.attempts for record in relay.finished.records] == [3, 3]
        assert [record.bytes_in for record in relay.finished.records] == [len(BATCH)] * 2


async def test_frames_of_other_streams_may_come_between() -> None:
    async with _serving() as (_, client):
        client.send(*(headers(stream, request_fields()) for stream in (1, 3)))
        for number, pair in enumerate(zip(_frames(1), _frames(3), strict=True)):
            client.send(*pair, call(5 + 2 * number, message(named()[5:])))
        assert [await _answer_of(client, stream) for stream in (1, 3)] == [RIGHT] * 2


async def test_a_part_whose_backend_fails_is_sent_again() -> None:
    failures = iter([True])

    def fails_at_first(backend: RawBackend) -> Script:
        play = _first_numbers(backend)

        async def script(peer: Peer) -> None:
            if next(failures, False):
                peer.frame_size = MIB
                await peer.until_kind(HEADERS)
                peer.abort()
            else:
                await play(peer)

        return script

    async with _serving(fails_at_first) as (relay, client):
        rest = await _send_until_stored(relay, client, 1)
        client.send(rest)
        assert await _answer_of(client, 1) == RIGHT
        assert relay.finished.records[0].attempts > 3


async def test_a_client_that_leaves_a_long_batch_leaves_nothing() -> None:
    async with _serving() as (relay, client):
        await _send_until_stored(relay, client, 1)
        client.abort()
        await eventually(lambda: len(relay.finished.records) == 1)


async def test_a_connection_goes_on_after_a_batch_is_reset() -> None:
    async with _serving() as (relay, client):
        rest = await _send_until_stored(relay, client, 1)
        # The frame under way is completed before anything else can be sent.
        client.send(rest[: len(b"".join(_frames(1)[:3])) - 2 * MIB], rst(1))
        await eventually(lambda: len(relay.finished.records) == 1)
        client.send(headers(3, request_fields()), *_frames(3))
        assert await _answer_of(client, 3) == RIGHT


async def test_a_long_batch_that_memory_is_too_short_for_gets_an_error() -> None:
    async with _serving(ceiling=MIB) as (_, client):
        client.send(headers(1, request_fields()), *_frames(1))
        await client.until_over(1)
        assert b"out of memory" in dict(client.heads[1][-1])[b"grpc-message"]
