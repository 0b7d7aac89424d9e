"""`cancellation: withhold`: a Triton computes inferences that nobody waits for any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.clock import FakeLoop
from tests.fakes.relay import RunningRelay, running_relay
from tests.wire.frames import (
    CANCEL,
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    WINDOW_UPDATE,
    answer,
    call,
    data,
    goaway,
    headers,
    message,
    named,
    request_fields,
    rst,
)
from tests.wire.http2 import Peer, listens, plays, raw_backend, raw_client
from tests.wire.waiting import eventually

BOTH_LOOPS = True
WITHHELD = {"withholds_cancellation": True, "private_fields": frozenset({b"grpc-timeout"})}
LOST_S = 60.0
"""After so long an answer counts as lost where nothing is known of its model."""
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def request(stream: int, path: bytes = b"") -> bytes:
    fields = request_fields(path=path) if path else request_fields()
    return headers(stream, fields) + data(stream, named(), end=True)


@asynccontextmanager
async def abandoned(
    loop: FakeLoop | None = None,
) -> AsyncIterator[tuple[RunningRelay, Peer, Peer]]:
    """A relay, its client, which has cancelled a call, and the backend that has the call."""
    async with (
        raw_backend(plays(listens)) as backend,
        running_relay(backend.target, options=WITHHELD, loop=loop) as relay,
    ):
        async with raw_client(relay.port) as client:
            client.send(request(1))
            await eventually(lambda: backend.peers and 1 in backend.peers[0].ended)
            client.send(rst(1))
            await eventually(lambda: relay.finished.records)
            yield relay, client, backend.peers[0]
        await relay.until_clean()


def credit_of(peer: Peer, stream: int) -> int:
    """Bytes that a peer may send beyond the first 64 KiB."""
    return sum(
        each.increment for each in peer.seen if each.kind == WINDOW_UPDATE and each.stream == stream
    )


async def is_told_nothing(relay: RunningRelay, client: Peer, backend: Peer) -> bool:
    """Whether the backend hears a later request, and no reset before it."""
    client.send(request(3))
    await eventually(lambda: 3 in backend.ended)
    backend.send(answer(3))
    await client.until_over(3)
    return not backend.resets and client.status(3) == 0


async def test_a_cancelled_inference_stays_in_flight_until_it_is_answered() -> None:
    async with abandoned() as (relay, client, backend):
        assert await is_told_nothing(relay, client, backend)
        assert relay.backends[0].in_flight == 1
        backend.send(answer(1))
        await eventually(lambda: not relay.backends[0].in_flight)
        assert not backend.resets
        assert relay.outcomes.seen == []


async def test_a_large_answer_that_nobody_wants_is_taken_to_its_end() -> None:
    async with abandoned() as (relay, _, backend):
        answer_of = message(bytes(1_000_000))
        backend.send(headers(1, RESPONSE_FIELDS))
        for begin in range(0, len(answer_of), 16_000):

            def has_room(end: int = begin + 16_000) -> bool:
                return all(end <= 65_535 + credit_of(backend, stream) for stream in (0, 1))

            await eventually(has_room)
            backend.send(data(1, answer_of[begin : begin + 16_000]))
        backend.send(headers(1, OK_TRAILERS, end=True))
        await eventually(lambda: not relay.backends[0].in_flight)
        assert not relay.memory_budget.held


@pytest.mark.parametrize("end", ["reset", "refused", "lost", "goaway", "trailers only"])
async def test_the_attempt_ends_however_the_backend_ends_it(end: str) -> None:
    async with abandoned() as (relay, _, backend):
        match end:
            case "reset":
                backend.send(rst(1, CANCEL))
            case "refused":
                backend.send(rst(1, REFUSED_STREAM))
            case "lost":
                backend.abort()
            case "goaway":
                backend.send(goaway(0))
            case "trailers only":
                fields = [*RESPONSE_FIELDS, (b"grpc-status", b"3"), (b"grpc-message", b"bad")]
                backend.send(headers(1, fields, end=True))
        await eventually(lambda: not relay.backends[0].in_flight)


async def test_one_that_is_never_answered_is_given_up_as_lost() -> None:
    loop = FakeLoop()
    async with abandoned(loop) as (relay, client, backend):
        loop.advance(LOST_S - 1)
        assert await is_told_nothing(relay, client, backend)
        loop.advance(2)
        await eventually(lambda: backend.resets == {1: CANCEL})
        assert not relay.backends[0].in_flight
        assert relay.backends[0].lost_requests == 1


async def test_a_deadline_ends_the_call_and_the_backend_does_not_hear_of_it() -> None:
    async with (
        raw_backend(plays(listens)) as backend,
        running_relay(backend.target, options=WITHHELD) as relay,
    ):
        async with raw_client(relay.port) as client:
            client.send(call(1, None, (b"grpc-timeout", b"200m")))
            await client.until_over(1)
            assert client.status(1) == 4
            peer = backend.peers[0]
            assert not any(name == b"grpc-timeout" for name, _ in peer.heads[1][0])
            assert relay.backends[0].in_flight == 1
            peer.send(answer(1))
            await eventually(lambda: not relay.backends[0].in_flight)
            assert not peer.resets
        await relay.until_clean()


async def test_what_is_not_whole_or_a_stream_is_cancelled_all_the_same() -> None:
    async with (
        raw_backend(plays(listens)) as backend,
        running_relay(backend.target, options=WITHHELD) as relay,
    ):
        async with raw_client(relay.port) as client:
            client.send(headers(1, request_fields()) + data(1, named()), request(3, STREAM))
            await eventually(lambda: backend.peers and {1, 3} <= set(backend.peers[0].bodies))
            client.send(rst(1), rst(3))
            await eventually(lambda: set(backend.peers[0].resets) == {1, 3})
            assert not relay.backends[0].in_flight
        await relay.until_clean()
