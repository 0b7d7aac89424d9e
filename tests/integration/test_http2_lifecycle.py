"""How calls and connections end: GOAWAY, refusals, losses, limits, shutdown. After each, nothing
is left behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lb.domain.backend import parse_address
from lb.domain.outcome import Outcome, Reason
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import Options, RunningRelay, running_relay, snapshot_of
from tests.wire.frames import (
    CANCEL,
    DATA,
    GOAWAY,
    HANG_PATH,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    NO_ERROR,
    OK_TRAILERS,
    PING,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    RST_STREAM,
    SETTINGS_ACK,
    answer,
    call,
    data,
    frame,
    goaway,
    headers,
    literals,
    message,
    named,
    ping,
    request_fields,
    rst,
    settings,
    window_update,
)
from tests.wire.http2 import (
    Peer,
    RawBackend,
    Script,
    listens,
    plays,
    raw_backend,
    raw_client,
    replies,
    serve_calls,
)
from tests.wire.waiting import eventually, stand_still

BOTH_LOOPS = True
UNAVAILABLE, EXHAUSTED, DEADLINE_EXCEEDED = 14, 8, 4
INFER = b"/inference.GRPCInferenceService/ModelInfer"
LOAD = b"/inference.GRPCInferenceService/RepositoryModelLoad"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def request(stream: int, path: bytes = INFER, body: bytes | None = None) -> bytes:
    payload = named() if body is None else body
    return headers(stream, request_fields(path=path)) + data(stream, payload, end=True)


@asynccontextmanager
async def one_client(
    *backends: RawBackend, options: Options | None = None
) -> AsyncIterator[tuple[RunningRelay, Peer]]:
    """A relay over the backends and a client; afterwards nothing may be left."""
    targets = [backend.target for backend in backends]
    async with running_relay(*targets, options=options) as relay:
        async with raw_client(relay.port) as client:
            yield relay, client
        await relay.until_clean()


async def statuses(client: Peer, *streams: int) -> list[int | None]:
    for stream in streams:
        await client.until_over(stream)
    return [client.status(stream) for stream in streams]


# GOAWAY of a backend


async def test_streams_above_goaway_go_elsewhere_exactly_once() -> None:
    async with (
        raw_backend(plays(listens)) as leaving,
        raw_backend() as other,
        one_client(leaving, other) as (relay, client),
    ):
        relay.pool.publish(snapshot_of(relay.backends[:1]))
        client.send(*(request(stream) for stream in (1, 3, 5, 7)))
        await eventually(lambda: leaving.peers and len(leaving.peers[0].ended) == 4)
        peer = leaving.peers[0]
        relay.pool.publish(snapshot_of(relay.backends))
        peer.send(goaway(3), answer(1), answer(3))
        assert await statuses(client, 1, 3, 5, 7) == [0, 0, 0, 0]
        assert len(other.requests) == 2
        assert peer.ended == {1, 3, 5, 7}
        await eventually(lambda: peer.closed)
        assert relay.outcomes.seen == [("b0", Outcome.REFUSED)] * 2
        client.send(request(9))
        await eventually(lambda: len(leaving.peers) == 2)
        leaving.peers[1].send(answer(1))
        assert await statuses(client, 9) == [0]


async def test_goaway_with_an_error_leaves_taken_streams_alone() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (_, client):
        client.send(request(1))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        backend.peers[0].send(goaway(1, 11, b"too_many_pings"))
        backend.peers[0].send(answer(1))
        assert await statuses(client, 1) == [0]


async def test_goaway_of_an_idle_connection_closes_it_and_the_next_call_dials() -> None:
    async with raw_backend() as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        backend.peers[0].send(goaway(1))
        await eventually(lambda: backend.peers[0].closed)
        client.send(request(3))
        assert await statuses(client, 3) == [0]
        assert len(backend.peers) == 2
        assert relay.finished.records[1].attempts == 1


async def test_goaway_twice_with_another_last_stream() -> None:
    async with (
        raw_backend(plays(listens)) as leaving,
        one_client(leaving) as (_, client),
    ):
        client.send(*(request(stream) for stream in (1, 3, 5)))
        await eventually(lambda: leaving.peers and len(leaving.peers[0].ended) == 3)
        leaving.peers[0].send(goaway(2**31 - 1), goaway(3), goaway(2**31 - 1), answer(1), answer(3))
        await eventually(lambda: len(leaving.peers) == 2 and leaving.peers[1].ended)
        leaving.peers[1].send(answer(1))
        assert await statuses(client, 1, 3, 5) == [0, 0, 0]


async def test_a_backend_that_only_says_goaway_is_given_up() -> None:
    async def leaves(peer: Peer) -> None:
        peer.send(goaway(0))
        await listens(peer)

    async with raw_backend(plays(leaves)) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert relay.finished.records[0].attempts <= 3


# Refusals


async def test_a_refused_stream_goes_elsewhere() -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, REFUSED_STREAM))) as refusing,
        raw_backend() as other,
        one_client(refusing, other) as (relay, client),
    ):
        body = named(more=bytes(3000))
        client.send(request(1, body=body))
        assert await statuses(client, 1) == [0]
        assert other.requests[0][1] == body
        assert relay.finished.records[0].attempts == 2
        assert relay.outcomes.seen == [("b0", Outcome.REFUSED)]


async def test_a_stream_that_all_refuse_is_unavailable() -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, REFUSED_STREAM))) as refusing,
        one_client(refusing) as (relay, client),
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert relay.finished.records[0].attempts == 3


@pytest.mark.parametrize("path", [INFER, LOAD, STREAM], ids=["infer", "load", "stream"])
async def test_what_surely_did_not_run_goes_elsewhere_whatever_it_is(path: bytes) -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, REFUSED_STREAM))) as refusing,
        raw_backend() as other,
        one_client(refusing, other) as (_, client),
    ):
        client.send(request(1, path))
        assert await statuses(client, 1) == [0]
        assert len(other.requests) == 1


async def test_a_body_that_was_not_kept_is_not_sent_again() -> None:
    async with (
        raw_backend(replies(lambda stream, _: rst(stream, REFUSED_STREAM))) as refusing,
        raw_backend() as other,
        one_client(refusing, other, options={"retained_size": 5000}) as (_, client),
    ):
        client.send(request(1, body=named(more=bytes(5000))))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert other.requests == []


async def test_an_upload_that_is_refused_half_way_is_sent_again_from_its_start() -> None:
    async with (
        raw_backend(plays(listens)) as refusing,
        raw_backend() as other,
        one_client(refusing, other) as (_, client),
    ):
        body = named(more=b"x" * 40_000)
        client.send(headers(1, request_fields()), data(1, body[:16_000]))
        await eventually(lambda: refusing.peers and len(refusing.peers[0].bodies.get(1, b"")))
        refusing.peers[0].send(rst(1, REFUSED_STREAM))
        await eventually(lambda: other.peers)
        client.send(data(1, body[16_000:32_000]), data(1, body[32_000:], end=True))
        assert await statuses(client, 1) == [0]
        assert other.requests[0][1] == body


# Losses


def closes_reused(backend: RawBackend) -> Script:
    """Answer one call per connection; close when the second comes."""

    async def play(peer: Peer) -> None:
        first = await peer.until(lambda f: f.ends_stream)
        peer.send(answer(first.stream))
        await peer.until_kind(HEADERS)
        backend.requests.append(({}, b"closed"))

    return play


async def test_a_reused_connection_that_closes_before_a_byte_is_no_failure() -> None:
    async with raw_backend(closes_reused) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        client.send(request(3))
        assert await statuses(client, 3) == [0]
        assert relay.finished.records[1].attempts == 2
        assert relay.outcomes.seen == [("b0", Outcome.STALE)]


@pytest.mark.parametrize("path", [LOAD, HANG_PATH], ids=["load", "unknown"])
async def test_what_must_not_run_twice_is_not_sent_again_after_a_loss(path: bytes) -> None:
    async with raw_backend(closes_reused) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        client.send(request(3, path))
        assert await statuses(client, 3) == [UNAVAILABLE]
        assert relay.finished.records[1].attempts == 1


async def test_what_was_lost_goes_again_elsewhere() -> None:
    async def dies(peer: Peer) -> None:
        await peer.until(lambda f: f.ends_stream)

    async with (
        raw_backend(plays(dies)) as dying,
        raw_backend() as other,
        one_client(dying, other) as (relay, client),
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert len(other.requests) == 1
        assert relay.outcomes.seen == [("b0", Outcome.LOST)]


async def test_what_kills_two_servers_goes_to_no_third() -> None:
    async def dies(peer: Peer) -> None:
        await peer.until(lambda f: f.ends_stream)

    async with (
        raw_backend(plays(dies)) as first,
        raw_backend(plays(dies)) as second,
        raw_backend() as third,
        one_client(first, second, third) as (relay, client),
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert third.requests == []
        assert relay.outcomes.seen == [("b0", Outcome.LOST), ("b1", Outcome.LOST)]


async def test_losing_the_backend_before_a_message_is_a_status() -> None:
    """The head alone of a response to an inference does not go to the client."""

    async def dies(peer: Peer) -> None:
        await peer.until(lambda f: f.ends_stream)
        peer.send(headers(1, RESPONSE_FIELDS))

    async with raw_backend(plays(dies)) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert await client.is_alive()
        assert relay.finished.records[0].reason is Reason.UPSTREAM_LOST


@pytest.mark.parametrize("path", [INFER, STREAM, HANG_PATH], ids=["unary", "stream", "unknown"])
async def test_losing_the_backend_within_a_message_resets_the_stream(path: bytes) -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(request(1, path))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        backend.peers[0].send(headers(1, RESPONSE_FIELDS), data(1, message(bytes(50_000))[:-1]))
        await client.until_kind(DATA)
        backend.peers[0].abort()
        await client.until_over(1)
        assert client.resets[1] == INTERNAL_ERROR
        assert await client.is_alive()
        assert relay.finished.records[0].reason is Reason.UPSTREAM_LOST


@pytest.mark.parametrize("path", [INFER, STREAM], ids=["unary", "stream"])
async def test_losing_the_backend_after_a_message_is_a_status(path: bytes) -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(request(1, path))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        backend.peers[0].send(headers(1, RESPONSE_FIELDS), data(1, message(b"x")))
        await client.until_kind(DATA)
        backend.peers[0].abort()
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert b"backend b0" in client.fields(1)[b"grpc-message"]
        assert (bytes(client.bodies[1]), client.resets) == (message(b"x"), {})
        (record,) = relay.finished.records
        assert (record.reason, record.grpc_status) == (Reason.UPSTREAM_LOST, UNAVAILABLE)


async def test_messages_that_wait_come_before_the_loss_of_their_backend() -> None:
    many = message(bytes(20_000)) * 2
    async with (
        raw_backend(plays(listens)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 100}) as client,
    ):
        client.credits = False
        client.send(headers(1, request_fields(path=STREAM)), data(1, named()))
        await eventually(lambda: backend.peers and backend.peers[0].bodies.get(1))
        backend.peers[0].send(headers(1, RESPONSE_FIELDS), data(1, many[:30_000]))
        backend.peers[0].send(data(1, many[30_000:]))
        await eventually(lambda: relay.memory_budget.held > 39_000)
        backend.peers[0].abort()
        await eventually(lambda: not relay.backends[0].in_flight)
        client.send(data(1, named() * 100), window_update(1, len(many)))
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert client.bodies[1] == many
        await relay.until_clean()


async def test_the_time_of_a_request_ends_a_stream_between_messages() -> None:
    async def answers_once(peer: Peer) -> None:
        await peer.until_kind(DATA, 1)
        peer.send(headers(1, RESPONSE_FIELDS), data(1, message()))
        await listens(peer)

    async with (
        raw_backend(plays(answers_once)) as backend,
        one_client(backend, options={"request_timeout_s": 0.5}) as (relay, client),
    ):
        client.send(headers(1, request_fields(path=STREAM)), data(1, named()))
        assert await statuses(client, 1) == [DEADLINE_EXCEEDED]
        assert client.bodies == {1: message()}
        assert relay.finished.records[0].reason is Reason.DEADLINE


# A stream of which only a head has come


_NO = [(b"grpc-status", b"3"), (b"grpc-message", b"no")]


def _error(stream: int) -> bytes:
    return headers(stream, [*RESPONSE_FIELDS, *_NO], end=True)


@pytest.mark.parametrize(
    ("reply", "status", "body"), [(answer, 0, message()), (_error, 3, b"")], ids=["answer", "error"]
)
async def test_a_stream_without_a_message_goes_again_after_its_head(
    reply: Callable[[int], bytes], status: int, body: bytes
) -> None:
    async with (
        raw_backend(plays(listens)) as dying,
        raw_backend(plays(listens)) as other,
        one_client(dying, other) as (relay, client),
    ):
        client.send(headers(1, request_fields(path=STREAM)), data(1, named()))
        await eventually(lambda: dying.peers and dying.peers[0].bodies.get(1))
        dying.peers[0].send(headers(1, RESPONSE_FIELDS))
        await client.until_kind(HEADERS)
        client.send(data(1, named(), end=True))
        await eventually(lambda: dying.peers[0].ended)
        dying.peers[0].abort()
        await eventually(lambda: other.peers and other.peers[0].ended)
        assert other.peers[0].bodies[1] == named() * 2
        other.peers[0].send(reply(1))
        assert await statuses(client, 1) == [status]
        assert client.heads[1][0] == RESPONSE_FIELDS
        assert client.heads[1][1][0] in (OK_TRAILERS[0], (b"grpc-status", b"3"))
        assert (len(client.heads[1]), client.bodies.get(1, b"")) == (2, body)
        assert relay.outcomes.seen == [("b0", Outcome.LOST)]


async def test_a_stream_without_a_message_ends_with_a_status_where_nobody_else_is() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(headers(1, request_fields(path=STREAM)), data(1, named()))
        await eventually(lambda: backend.peers and backend.peers[0].bodies.get(1))
        backend.peers[0].send(headers(1, RESPONSE_FIELDS))
        await client.until_kind(HEADERS)
        backend.peers[0].abort()
        assert await statuses(client, 1) == [UNAVAILABLE]
        assert client.resets == {}
        assert relay.finished.records[0].reason is Reason.UPSTREAM_LOST


async def test_losing_one_backend_does_not_touch_calls_on_another() -> None:
    async with (
        raw_backend(plays(listens)) as dying,
        raw_backend(plays(listens)) as other,
        one_client(dying, other) as (relay, client),
    ):
        client.send(request(1), request(3))
        await eventually(lambda: dying.peers and other.peers)
        await eventually(lambda: dying.peers[0].ended and other.peers[0].ended)
        dying.peers[0].abort()
        await eventually(lambda: len(other.peers[0].ended) == 2)
        other.peers[0].send(answer(1))
        other.peers[0].send(answer(3))
        assert await statuses(client, 1) == await statuses(client, 3) == [0]
        assert sorted(record.attempts for record in relay.finished.records) == [1, 2]


async def test_losing_an_idle_connection_is_reported() -> None:
    async with raw_backend() as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        backend.peers[0].abort()
        await eventually(lambda: relay.outcomes.seen == [("b0", Outcome.LOST)])
        assert relay.backends[0].ports[1].connections == 0


async def test_losing_the_client_with_bytes_that_wait_leaves_nothing() -> None:
    def reply(stream: int, _: bytes) -> bytes:
        return headers(stream, RESPONSE_FIELDS) + 5 * data(stream, bytes(13_000))

    async with raw_backend(replies(reply)) as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port, {INITIAL_WINDOW_SIZE: 1000}) as client:
            client.credits = False
            client.send(request(1))
            await eventually(lambda: relay.memory_budget.held >= 64_000)
            client.abort()
        await relay.until_clean()
        assert relay.finished.records[0].reason is Reason.CLIENT_GONE
        await eventually(lambda: backend.peers[0].resets == {1: CANCEL})


# Limits


async def test_further_connections_when_streams_run_out() -> None:
    async with (
        raw_backend(plays(listens), {MAX_CONCURRENT_STREAMS: 2}) as backend,
        one_client(backend) as (_, client),
    ):
        client.send(*(request(stream) for stream in range(1, 11, 2)))
        await eventually(lambda: sum(len(peer.ended) for peer in backend.peers) == 5)
        assert sorted(len(peer.ended) for peer in backend.peers) == [1, 2, 2]
        for peer in backend.peers:
            peer.send(*(answer(stream) for stream in sorted(peer.ended)))
        assert await statuses(client, 1, 3, 5, 7, 9) == [0] * 5


async def test_a_burst_on_a_new_connection_keeps_to_the_limit() -> None:
    """More calls than the backend takes wait for its SETTINGS instead of being refused."""
    most = 0

    def limited(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            nonlocal most
            open_streams: set[int] = set()
            while (found := await peer.next()) is not None:
                if found.kind == HEADERS:
                    open_streams.add(found.stream)
                    most = max(most, len(open_streams))
                if found.ends_stream:
                    await asyncio.sleep(0)
                    peer.send(answer(found.stream))
                    open_streams.discard(found.stream)

        return play

    async with (
        raw_backend(limited, {MAX_CONCURRENT_STREAMS: 10}) as backend,
        one_client(backend) as (relay, client),
    ):
        streams = range(1, 401, 2)
        client.send(*(headers(stream, request_fields(path=STREAM)) for stream in streams))
        client.send(*(data(stream, named(), end=True) for stream in streams))
        assert await statuses(client, *streams) == [0] * 200
        assert most <= 10
        assert relay.outcomes.seen == []


async def test_a_backend_that_takes_no_streams_is_passed_over() -> None:
    async with (
        raw_backend(values={MAX_CONCURRENT_STREAMS: 0}) as closed,
        raw_backend() as other,
        one_client(closed, other) as (_, client),
    ):
        for stream in (1, 3, 5, 7, 9):
            client.send(request(stream))
            assert await statuses(client, stream) == [0]
        assert len(other.requests) == 5
        assert len(closed.peers) <= 1


async def test_a_backend_that_takes_no_streams_is_unavailable() -> None:
    async with (
        raw_backend(values={MAX_CONCURRENT_STREAMS: 0}) as closed,
        one_client(closed) as (_, client),
    ):
        client.send(*(request(stream) for stream in range(1, 41, 2)))
        assert await statuses(client, *range(1, 41, 2)) == [UNAVAILABLE] * 20
        assert len(closed.peers) <= 1


async def test_a_backend_may_take_streams_again_later() -> None:
    async with (
        raw_backend(values={MAX_CONCURRENT_STREAMS: 0}) as backend,
        one_client(backend) as (_, client),
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [UNAVAILABLE]
        backend.peers[0].send(settings({MAX_CONCURRENT_STREAMS: 5}))
        await eventually(lambda: backend.peers[0].seen[-1].kind == 4)
        client.send(request(3))
        assert await statuses(client, 3) == [0]


async def test_a_backend_that_says_nothing_is_given_up() -> None:
    options = {"head_timeout_s": 0.1}
    async with (
        raw_backend(plays(listens), greets=False) as silent,
        raw_backend() as other,
        running_relay(silent.target, other.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert len(other.requests) == 1
        await eventually(lambda: silent.peers[0].closed)
        assert relay.outcomes.seen[0][0] == "b0"


async def test_a_backend_that_greets_while_we_stand_still_is_used() -> None:
    def greets_late(backend: RawBackend) -> Script:
        serve = serve_calls(backend)

        async def play(peer: Peer) -> None:
            for _ in range(5):
                await asyncio.sleep(0)  # by now the relay waits for what follows
            stand_still(0.5)
            peer.send(settings({}))
            await serve(peer)

        return play

    async with (
        raw_backend(greets_late, greets=False) as backend,
        running_relay(backend.target, options={"head_timeout_s": 0.2}) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert relay.outcomes.seen == []


async def test_a_backend_that_never_acknowledges_is_served_all_the_same() -> None:
    def silent(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            peer.acknowledges = False
            while (found := await peer.next()) is not None:
                if found.ends_stream:
                    peer.send(answer(found.stream))

        return play

    async with raw_backend(silent) as backend, one_client(backend) as (_, client):
        client.send(request(1), request(3))
        assert await statuses(client, 1, 3) == [0, 0]


async def test_more_streams_than_we_allow_are_refused() -> None:
    options = {"concurrent_streams": 2}
    async with (
        raw_backend(plays(listens)) as backend,
        one_client(backend, options=options) as (
            _,
            client,
        ),
    ):
        client.send(request(1), request(3), request(5))
        await client.until_over(5)
        assert client.resets == {5: REFUSED_STREAM}
        await eventually(lambda: backend.peers and len(backend.peers[0].ended) == 2)
        backend.peers[0].send(answer(1))
        assert await statuses(client, 1) == [0]
        client.send(request(7))
        await eventually(lambda: len(backend.peers[0].ended) == 3)
        backend.peers[0].send(answer(3), answer(5))
        assert await statuses(client, 3, 7) == [0, 0]


@pytest.mark.parametrize("path", [INFER, STREAM])
async def test_a_further_connection_before_stream_ids_run_out(path: bytes) -> None:
    async with raw_backend() as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        relay.skip_streams(0, 2**31 - 2**20 + 1)
        for stream in (3, 5):
            client.send(request(stream, path))
            assert await statuses(client, stream) == [0]
        assert [max(peer.ended) for peer in backend.peers] == [2**31 - 2**20 + 1, 1]
        await eventually(lambda: backend.peers[0].closed)


async def test_a_client_that_runs_out_of_stream_ids_is_told_and_served() -> None:
    async with raw_backend() as backend, one_client(backend) as (_, client):
        last = (2**31 - 5, 2**31 - 3, 2**31 - 1)
        client.send(*map(request, last))
        assert await statuses(client, *last) == [0, 0, 0]
        first, *_ = [frame for frame in client.seen if frame.kind == GOAWAY]
        assert (first.code, first.last_stream) == (NO_ERROR, 2**31 - 1)


async def test_stream_ids_do_not_go_back() -> None:
    async with raw_backend() as backend, one_client(backend) as (_, client):
        client.send(request(3))
        assert await statuses(client, 3) == [0]
        client.send(request(1))
        assert (await client.until_kind(GOAWAY)).code == PROTOCOL_ERROR
        await client.until_closed()


# Clients that leave


@asynccontextmanager
async def full_listener() -> AsyncIterator[str]:
    """An address that neither accepts nor refuses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        try:
            yield f"127.0.0.1:{address[1]}"
        finally:
            for filler in fillers:
                filler.close()


@pytest.mark.parametrize("leaves", ["reset", "close"])
async def test_a_client_may_leave_while_its_backend_is_dialled(leaves: str) -> None:
    async with full_listener() as target, running_relay(target) as relay:
        async with raw_client(relay.port) as client:
            client.send(request(1))
            await eventually(lambda: len(relay.tasks) == 1)
            if leaves == "reset":
                client.send(rst(1))
                assert await client.is_alive()
                assert relay.open_requests == 0
        await relay.until_clean()
        assert relay.finished.records[0].reason is Reason.CLIENT_GONE


async def test_a_dial_that_takes_too_long_goes_elsewhere() -> None:
    options = {"connect_timeout_s": 0.1}
    async with (
        full_listener() as target,
        raw_backend() as other,
        running_relay(target, other.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert relay.outcomes.seen == [("b0", Outcome.CONNECT_TIMEOUT)]


@pytest.mark.parametrize("moment", ["upload", "waiting", "download"])
async def test_a_reset_of_the_client_reaches_the_backend(moment: str) -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(headers(1, request_fields()) + data(1, named(), end=moment != "upload"))
        await eventually(lambda: backend.peers and backend.peers[0].bodies.get(1))
        peer = backend.peers[0]
        if moment == "download":
            peer.send(headers(1, RESPONSE_FIELDS), data(1, message()))
            await client.until_kind(DATA)
        client.send(rst(1))
        await eventually(lambda: peer.resets == {1: CANCEL})
        assert not relay.backends[0].in_flight
        client.send(request(3))
        await eventually(lambda: 3 in peer.ended)
        peer.send(answer(3))
        assert await statuses(client, 3) == [0]


async def test_the_deadline_ends_the_call_on_both_sides() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(call(1, None, (b"grpc-timeout", b"500m")))
        assert await statuses(client, 1) == [4]
        await eventually(lambda: backend.peers[0].resets == {1: CANCEL})
        assert (b"grpc-timeout", b"500m") in backend.peers[0].heads[1][0]
        assert relay.outcomes.seen == [("b0", Outcome.DEADLINE)]


async def test_an_answered_call_leaves_no_timer() -> None:
    async with raw_backend() as backend, one_client(backend) as (relay, client):
        before = len(relay.timers)
        client.send(call(1, None, (b"grpc-timeout", b"10S")))
        assert await statuses(client, 1) == [0]
        assert len(relay.timers) <= before


async def test_the_deadline_while_bytes_wait_resets_the_stream() -> None:
    def reply(stream: int, _: bytes) -> bytes:
        return headers(stream, RESPONSE_FIELDS) + data(stream, bytes(60_000))

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 10}) as client,
    ):
        client.send(call(1, None, (b"grpc-timeout", b"500m")))
        await client.until_over(1)
        assert client.resets == {1: CANCEL}
        await relay.until_clean()


# Early ends


async def test_an_answer_that_comes_early_ends_the_upload() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (_, client):
        client.send(headers(1, request_fields()), data(1, named()))
        await eventually(lambda: backend.peers and backend.peers[0].bodies.get(1))
        backend.peers[0].send(headers(1, [*RESPONSE_FIELDS, (b"grpc-status", b"3")], end=True))
        assert await statuses(client, 1) == [3]
        client.send(data(1, bytes(1000)), data(1, b"", end=True))
        await client.until_kind(RST_STREAM, 1)
        assert client.resets == {1: NO_ERROR}
        await eventually(lambda: backend.peers[0].resets)
        assert await client.is_alive()


async def test_trailers_that_wait_for_a_slow_reader_free_the_backend_at_once() -> None:
    def reply(stream: int, _: bytes) -> bytes:
        return (
            headers(stream, RESPONSE_FIELDS)
            + data(stream, bytes(50_000))
            + headers(stream, OK_TRAILERS, end=True)
        )

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 100}) as client,
    ):
        client.credits = False
        client.send(request(1))
        await client.until_kind(DATA)
        await eventually(lambda: not relay.backends[0].in_flight)
        assert relay.open_requests == 1
        client.send(window_update(1, 49_900))
        assert await statuses(client, 1) == [0]
        assert len(client.bodies[1]) == 50_000
        await relay.until_clean()


# SETTINGS in the middle


async def test_windows_move_with_settings_and_may_be_negative() -> None:
    def reply(stream: int, _: bytes) -> bytes:
        return (
            headers(stream, RESPONSE_FIELDS)
            + data(stream, bytes(60_000))
            + headers(stream, OK_TRAILERS, end=True)
        )

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 10_000}) as client,
    ):
        client.credits = False
        client.send(request(1))
        while len(client.bodies.get(1, b"")) < 10_000:
            await client.until_kind(DATA)
        client.send(settings({INITIAL_WINDOW_SIZE: 4_000}))
        assert await client.is_alive()
        client.send(window_update(1, 5_999))
        assert await client.is_alive()
        assert len(client.bodies[1]) == 10_000, "the window is -1"
        client.send(window_update(1, 2))
        await client.until_kind(DATA)
        assert len(client.bodies[1]) == 10_001
        client.send(settings({INITIAL_WINDOW_SIZE: 4_100}))
        await client.until_kind(DATA)
        assert len(client.bodies[1]) == 10_101
        client.send(settings({INITIAL_WINDOW_SIZE: 65_535}))
        assert await statuses(client, 1) == [0]
        assert len(client.bodies[1]) == 60_000
        await relay.until_clean()


async def test_a_window_of_one_byte_is_used() -> None:
    async with (
        raw_backend() as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 1}) as client,
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert [len(f.payload) for f in client.seen if f.kind == DATA] == [1] * len(named())
        await relay.until_clean()


async def test_upload_waits_for_the_backends_window() -> None:
    async with (
        raw_backend(plays(listens), {INITIAL_WINDOW_SIZE: 0}) as backend,
        one_client(backend) as (_, client),
    ):
        client.send(request(1))
        await eventually(lambda: backend.peers and 1 in backend.peers[0].heads)
        peer = backend.peers[0]
        peer.credits = False
        peer.send(window_update(1, 3))
        await eventually(lambda: len(peer.bodies.get(1, b"")) == 3)
        peer.send(settings({INITIAL_WINDOW_SIZE: 2}))
        await eventually(lambda: len(peer.bodies[1]) == 5)
        peer.send(window_update(1, 100))
        await eventually(lambda: 1 in peer.ended)
        peer.send(answer(1))
        assert await statuses(client, 1) == [0]


async def test_an_empty_body_needs_no_window() -> None:
    async with (
        raw_backend(
            replies(lambda stream, _: answer(stream)), values={INITIAL_WINDOW_SIZE: 0}
        ) as backend,
        one_client(backend) as (_, client),
    ):
        client.send(call(1, b""), call(3, b""))
        assert await statuses(client, 1, 3) == [0, 0]


async def test_a_client_without_a_dynamic_table_is_told_that_we_use_none() -> None:
    """RFC 7541 4.2: it may insist on it."""
    async with (
        raw_backend() as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {HEADER_TABLE_SIZE: 0}) as client,
    ):
        client.allow_table(0)
        client.send(request(1), request(3))
        assert await statuses(client, 1, 3) == [0, 0]


@pytest.mark.parametrize("whole", [True, False])
async def test_heads_are_cut_to_the_frame_size_of_the_receiver(whole: bool) -> None:
    """What a client may send in one frame need not fit one frame of the backend."""
    more = (b"x-large", b"v" * 20_000)

    def reply(stream: int, _: bytes) -> bytes:
        head = literals([*RESPONSE_FIELDS, more])
        trailers = literals([*OK_TRAILERS, more])
        return headers(stream, head) + data(stream, message()) + headers(stream, trailers, end=True)

    async with raw_backend(replies(reply)) as backend, one_client(backend) as (_, client):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        body = named(more=bytes(0 if whole else 5000))
        for stream in (3, 5):
            client.send(call(stream, body, more))
            assert await statuses(client, stream) == [0]
        assert more in backend.peers[0].heads[5][0]
        assert more in client.heads[5][0]
        assert more in client.heads[5][1]


@pytest.mark.parametrize("first", [ping(), goaway(), frame(4, 1, 0), frame(0x16, 0, 0)])
async def test_a_backend_that_does_not_begin_with_settings_is_passed_over(first: bytes) -> None:
    async def rude(peer: Peer) -> None:
        peer.send(first, settings())
        await listens(peer)

    async with (
        raw_backend(plays(rude), greets=False) as odd,
        raw_backend() as other,
        one_client(odd, other) as (relay, client),
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        assert relay.outcomes.seen == [("b0", Outcome.CONNECT_FAILED)]


async def test_calls_that_wait_for_a_backend_go_elsewhere_when_it_is_taken_out() -> None:
    async with (
        raw_backend(plays(listens), greets=False) as stopped,
        raw_backend() as other,
        one_client(stopped, other) as (relay, client),
    ):
        client.send(request(1))
        await eventually(lambda: stopped.peers)
        relay.pool.publish(snapshot_of(relay.backends[1:]))
        assert await statuses(client, 1) == [0]
        assert len(other.requests) == 1


async def test_a_call_that_waits_is_served_by_the_stream_that_ends() -> None:
    """Even where the backend takes no second connection."""

    def single(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            if len(backend.peers) > 1:
                return
            await listens(peer)

        return play

    async with (
        raw_backend(single, {MAX_CONCURRENT_STREAMS: 1}) as backend,
        one_client(backend) as (relay, client),
    ):
        client.send(request(1))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        port = relay.backends[0].ports[1]
        assert port is not None
        port.address = parse_address("127.0.0.1:1")
        client.send(request(3))
        await eventually(lambda: port.connect_failures == 1)
        backend.peers[0].send(answer(1))
        await eventually(lambda: 3 in backend.peers[0].ended)
        backend.peers[0].send(answer(3))
        assert await statuses(client, 1, 3) == [0, 0]


# Shutdown


async def test_shutdown_is_in_two_steps() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        relay.begin_drain()
        first = await client.until_kind(GOAWAY)
        assert (first.last_stream, first.code) == (2**31 - 1, NO_ERROR)
        asked = await client.until_kind(PING)
        # gRPC's core writes acknowledgements before requests that it began earlier.
        client.send(request(3), ping(asked.payload, ack=True), request(5))
        asked = await client.until_kind(PING)
        client.send(ping(asked.payload, ack=True), request(7))
        second = await client.until_kind(GOAWAY)
        assert (second.last_stream, second.code) == (5, NO_ERROR)
        await eventually(lambda: len(backend.peers[0].ended) == 3)
        backend.peers[0].send(answer(1), answer(3), answer(5))
        assert await statuses(client, 1, 3, 5) == [0, 0, 0]
        await client.until_closed()
        assert 7 not in client.heads
        assert len(backend.peers[0].heads) == 3


async def test_streams_that_come_too_late_cost_those_that_run_nothing() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (relay, client):
        client.send(request(1))
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        relay.begin_drain()
        for _ in range(2):
            client.send(ping((await client.until_kind(PING)).payload, ack=True))
        assert (await client.until_kind(GOAWAY)).last_stream == 1
        # All that the client had sent before it heard of the end; the last is asked for an echo.
        for stream_id in range(3, 1003, 2):
            client.send(request(stream_id))
        client.send(ping(b"received"))
        assert (await client.until_kind(PING)).payload == b"received"
        backend.peers[0].send(answer(1))
        assert await statuses(client, 1) == [0]
        await client.until_closed()
        assert not any(frame.kind == RST_STREAM for frame in client.seen)
        assert len(backend.peers[0].heads) == 1


async def test_shutdown_does_not_wait_for_the_ping_for_ever() -> None:
    async with raw_backend() as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port) as client:
            relay.begin_drain()
            await client.until_kind(PING)
            await client.until_closed()
        assert [f.kind for f in client.seen].count(GOAWAY) == 2
        await relay.until_clean()


async def test_a_connection_that_comes_during_shutdown_is_told() -> None:
    async with raw_backend() as backend, one_client(backend) as (relay, _):
        relay.begin_drain()
        async with raw_client(relay.port, handshake=False) as late:
            late.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings(), SETTINGS_ACK)
            found = await late.until_kind(GOAWAY)
            assert found.last_stream == 2**31 - 1
            await late.until_closed()


async def test_the_last_answer_arrives_although_the_client_keeps_sending() -> None:
    """Closing with unread bytes would reset the connection and take the answer with it."""

    def reply(stream: int, _: bytes) -> bytes:
        return (
            headers(stream, RESPONSE_FIELDS)
            + 60 * data(stream, bytes(16_000))
            + headers(stream, OK_TRAILERS, end=True)
        )

    async with (
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 2**30}) as client,
    ):
        client.send(window_update(0, 2**30), request(1))
        await client.until_kind(DATA)
        relay.begin_drain()
        for _ in range(2):
            client.send(ping((await client.until_kind(PING)).payload, ack=True))
        while 1 not in client.ended:
            await client.until(lambda _: True)
            client.send(ping())
        await client.until_closed()
        assert len(client.bodies[1]) == 960_000
        assert client.status(1) == 0


async def test_an_idle_client_is_told_and_closed() -> None:
    options, loop = {"client_idle_s": 60.0}, FakeLoop()
    async with (
        raw_backend() as backend,
        running_relay(backend.target, options=options, loop=loop) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(request(1))
        assert await statuses(client, 1) == [0]
        await eventually(relay.is_clean)
        loop.advance(59.0)
        assert await client.is_alive()
        loop.advance(2.0)
        assert (await client.until_kind(GOAWAY)).code == NO_ERROR
        loop.advance(3.0)  # requests that were sent before it was heard have come
        await client.until_closed()


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["no", "half"])
async def test_a_client_that_does_not_greet_is_closed(sent: bytes) -> None:
    options = {"head_timeout_s": 0.1}
    async with raw_backend() as backend, running_relay(backend.target, options=options) as relay:
        async with raw_client(relay.port, handshake=False, acknowledges=False) as client:
            client.send(sent)
            assert (await client.until_kind(GOAWAY)).code == 4
            await client.until_closed()
        await relay.until_clean()


async def test_a_client_with_goaway_may_finish() -> None:
    async with raw_backend(plays(listens)) as backend, one_client(backend) as (_, client):
        client.send(request(1), goaway())
        await eventually(lambda: backend.peers and backend.peers[0].ended)
        assert await client.is_alive()
        backend.peers[0].send(answer(1))
        assert await statuses(client, 1) == [0]
        await client.until_closed()


async def test_goaway_of_an_idle_client_brings_no_reaction() -> None:
    async with raw_backend() as backend, one_client(backend) as (_, client):
        client.send(goaway())
        assert await client.is_alive()
        assert await client.is_alive()


async def test_closing_the_relay_ends_everything() -> None:
    async with raw_backend(plays(listens)) as backend:
        async with running_relay(backend.target) as relay, raw_client(relay.port) as client:
            client.send(request(1))
            await eventually(lambda: backend.peers and backend.peers[0].ended)
            await relay.aclose()
            await relay.until_clean()
            assert not relay.client_connections
            assert not relay.upstream_connections
            await client.until_closed()
        await eventually(lambda: backend.peers[0].closed)
