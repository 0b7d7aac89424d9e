"""Floods as frames over sockets: the attacker is cut within its budget and told why, its work at
the backend ends at once, one line is logged and one connection counted; a good client beside it
sees nothing of it."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lb.domain.outcome import Outcome, Reason
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import RunningRelay, running_relay
from tests.wire import frames as f
from tests.wire.http2 import Peer, RawBackend, Script, raw_backend, raw_client
from tests.wire.waiting import eventually

BOTH_LOOPS = True
STREAM_PATH = f.METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")
AT_ONCE = 20
"""Units between two looks at what came back."""
SOON_S = 20.0
"""What is done at once, on a busy machine; nothing else would end it."""
FENCE = b"anybody?"


def begin(stream: int) -> bytes:
    """A request that is sent on at once and never answered."""
    return f.headers(stream, f.request_fields(path=f.HANG_PATH))


def hanging(stream: int) -> bytes:
    """The same, complete."""
    return begin(stream) + f.data(stream, f.named(), end=True)


@dataclass(frozen=True)
class Flood:
    """Units of it, and how many are taken at most."""

    unit: Callable[[int], bytes]
    """Of the stream that is next."""
    most: int
    opening: bytes = b""
    reason: Reason = Reason.FLOOD
    code: int = f.ENHANCE_YOUR_CALM


FLOODS = {
    "rapid reset": Flood(lambda s: begin(s) + f.rst(s), 300),
    "rapid reset of whole requests": Flood(lambda s: hanging(s) + f.rst(s), 300),
    "WINDOW_UPDATE 0": Flood(lambda s: hanging(s) + f.window_update(s, 0), 100),
    "window overflow": Flood(lambda s: hanging(s) + f.window_update(s, 2**31 - 1), 100),
    "short PRIORITY": Flood(lambda s: hanging(s) + f.frame(f.PRIORITY, 0, s, bytes(4)), 100),
    "own PRIORITY": Flood(
        lambda s: hanging(s) + f.frame(f.PRIORITY, 0, s, s.to_bytes(4, "big") + b"\1"), 100
    ),
    "DATA after the end": Flood(lambda s: hanging(s) + f.data(s, b"x"), 100),
    "HEADERS after the end": Flood(lambda s: hanging(s) + begin(s), 100),
    "malformed heads": Flood(lambda s: f.headers(s, [(b"a", b"b")], end=True), 100),
    "streams above the limit": Flood(begin, 60 + 100),
    "resets of streams that are over": Flood(lambda _: f.rst(1), 101, begin(1) + f.rst(1)),
    "PING": Flood(lambda _: f.ping(), 220),
    "SETTINGS": Flood(lambda _: f.settings({f.INITIAL_WINDOW_SIZE: 65_535}), 220),
    "33 settings": Flood(lambda _: f.settings([(0xAB, 0)] * 33), 1),
    "PRIORITY": Flood(lambda _: f.frame(f.PRIORITY, 0, 9, bytes(5)), 110, begin(1)),
    "WINDOW_UPDATE": Flood(lambda _: f.window_update(0, 1), 220, begin(1)),
    "WINDOW_UPDATE of a stream": Flood(lambda _: f.window_update(1, 1), 220, begin(1)),
    "empty DATA": Flood(lambda _: f.data(1), 110, begin(1)),
    "padding": Flood(lambda _: f.data(1, pad=255), 110, begin(1)),
    "DATA of one byte": Flood(lambda _: f.data(1, b"x"), 2200, begin(1)),
    "unknown frames": Flood(lambda s: f.frame(0x77, 0, s, b"?"), 100),
    "CONTINUATION": Flood(
        lambda _: f.continuation(1, f.literal(b"x", b"y"), done=False),
        9,
        f.headers(1, b"", done=False),
    ),
    "CONTINUATION of 16 kB": Flood(
        lambda _: f.continuation(1, f.literal(b"x", bytes(16_000)), done=False),
        5,
        f.headers(1, f.literals(f.request_fields()), done=False),
    ),
    "empty CONTINUATION": Flood(
        lambda _: f.continuation(1, b"", done=False), 9, f.headers(1, b"", done=False)
    ),
}  # fmt: skip


async def until_cut(client: Peer, flood: Flood) -> int:
    """Send units and listen; returns how many had been sent when the other side ended it."""
    client.send(flood.opening)
    first = 3 if flood.opening else 1
    may_ask = flood.unit(1)[3] != f.CONTINUATION
    at_once = AT_ONCE if may_ask else 1
    for sent in range(0, 12_000, at_once):
        client.send(*(flood.unit(first + 2 * n) for n in range(sent, sent + at_once)))
        if may_ask:
            client.send(f.ping(FENCE))
        found = await (client.next() if may_ask else quickly(client))
        while found is not None and found.payload != FENCE:
            if found.kind == f.GOAWAY:
                return sent + at_once
            found = await (client.next() if may_ask else quickly(client))
        assert not client.closed
    raise AssertionError("never cut")


async def quickly(client: Peer) -> f.Frame | None:
    """What has come, where nothing may be asked for."""
    try:
        async with asyncio.timeout(0.01):
            return await client.next()
    except TimeoutError:
        return None


def watching(cancelled: list[float]) -> Callable[[RawBackend], Script]:
    """A backend that never answers hanging calls and notes when they are reset."""

    def make(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            answered: set[int] = set()
            while (found := await peer.next()) is not None:
                if found.kind == f.RST_STREAM:
                    cancelled.append(time.monotonic())
                for stream in sorted(peer.ended - answered - peer.resets.keys()):
                    answered.add(stream)
                    head = dict(peer.heads[stream][0])
                    backend.requests.append((head, b""))
                    if head[b":path"] != f.HANG_PATH:
                        peer.send(f.answer(stream))

        return play

    return make


async def good_calls(relay: RunningRelay, stop: asyncio.Event) -> int:
    """Unary calls one after the other; all must be answered."""
    count = 0
    async with raw_client(relay.port) as client:
        for stream in range(1, 20_000, 2):
            client.send(f.call(stream))
            await client.until_over(stream)
            assert client.status(stream) == 0
            count += 1
            if stop.is_set():
                break
            await asyncio.sleep(0.005)
    return count


@pytest.mark.parametrize("name", FLOODS)
async def test_attacker_is_cut_and_nobody_else_is_hurt(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lb")
    flood = FLOODS[name]
    resets: list[float] = []
    async with (
        raw_backend(watching(resets)) as backend,
        # Budgets are filled up in the course of time, of which none passes.
        running_relay(backend.target, options={"concurrent_streams": 60}, loop=FakeLoop()) as relay,
    ):
        stop = asyncio.Event()
        good = asyncio.get_running_loop().create_task(good_calls(relay, stop))
        async with raw_client(relay.port) as attacker:
            sent = await until_cut(attacker, flood)
            assert sent <= -(-flood.most // AT_ONCE) * AT_ONCE + AT_ONCE
            (last,) = [frame for frame in attacker.seen if frame.kind == f.GOAWAY]
            assert last.code == flood.code
            cut_at = time.monotonic()
            await eventually(lambda: relay.open_requests <= 1)
            await eventually(lambda: sum(b.in_flight for b in relay.backends) <= 1)
            assert time.monotonic() - cut_at < SOON_S
        stop.set()
        assert await good >= 1
        await relay.until_clean()
        errors = relay.finished.meter.traffic[1].connection_errors
        assert errors.pop(flood.reason) == 1
        assert sum(len(backend.requests) for backend in (backend,)) <= 400 + sent
    lines = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert [record.message for record in lines] == ["client broke HTTP/2"]
    assert lines[0].__dict__["reason"] == flood.reason.value


async def test_work_of_a_flood_ends_at_the_backend_at_once() -> None:
    resets: list[float] = []
    async with raw_backend(watching(resets)) as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port) as attacker:
            attacker.send(*map(hanging, range(1, 101, 2)))
            await eventually(lambda: len(backend.requests) == 50)
            assert resets == []
            attacker.send(300 * f.ping())
            await attacker.until_kind(f.GOAWAY)
            cut_at = time.monotonic()
            await eventually(lambda: len(resets) == 50)
            assert max(resets) - cut_at < SOON_S
        await relay.until_clean()
        reasons = relay.finished.meter.traffic[1].reasons
        assert reasons == {Reason.FLOOD: 50}


@pytest.mark.parametrize(("begun", "most"), [(0, 0), (1, 1 + 64)], ids=["first", "later"])
async def test_requests_of_a_client_that_has_left_are_not_begun(begun: int, most: int) -> None:
    """They are read in turns, of which the first may begin before it is known."""
    requests = [f.PREFACE + f.settings({}) + f.SETTINGS_ACK, *map(hanging, range(1, 601, 2))]
    async with raw_backend(watching([])) as backend, running_relay(backend.target) as relay:
        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            if begun:
                client.sendall(b"".join(requests[: 1 + begun]))
                await eventually(lambda: relay.open_requests == begun)
                del requests[: 1 + begun]
            client.sendall(b"".join(requests))
        await eventually(lambda: relay.traffic.accepted == 1 and not relay.traffic.connections)
        await relay.until_clean()
        cancelled = relay.finished.meter.traffic[1].reasons.get(Reason.CLIENT_GONE, 0)
        assert begun <= cancelled <= most


@pytest.mark.parametrize("whole", [True, False], ids=["between frames", "within a frame"])
async def test_a_header_block_must_be_complete_in_time(whole: bool) -> None:
    options = {"head_timeout_s": 0.3}
    block = f.headers(1, f.literals(f.request_fields()), done=False)
    async with raw_backend() as backend, running_relay(backend.target, options=options) as relay:
        async with raw_client(relay.port) as client:
            begun = time.monotonic()
            client.send(block if whole else block[:40])
            assert (await client.until_kind(f.GOAWAY)).code == f.ENHANCE_YOUR_CALM
            assert 0.25 < time.monotonic() - begun < SOON_S
            await client.until_closed()
        await relay.until_clean()
        errors = relay.finished.meter.traffic[1].connection_errors
        assert errors == {Reason.HEAD_TIMEOUT: 1}


async def test_header_blocks_in_parts_that_come_slowly_are_fine() -> None:
    """Each within its time, on a connection that is older."""
    options, loop = {"head_timeout_s": 1.0}, FakeLoop()
    async with (
        raw_backend() as backend,
        running_relay(backend.target, options=options, loop=loop) as relay,
    ):
        async with raw_client(relay.port) as client:
            for stream in range(1, 21, 2):
                parts = f.call(stream)
                client.send(parts[:40])
                await eventually(lambda: relay.begun_blocks == 1)
                loop.advance(0.9)
                client.send(parts[40:])
                await client.until_over(stream)
                assert client.status(stream) == 0
        await relay.until_clean()


@pytest.mark.parametrize("full", [False, True], ids=["no window", "unread"])
async def test_answers_that_nobody_takes_end(full: bool) -> None:
    """100 streams with 60 kB each; the backend is told, and the client where it listens."""
    options = {"stream_stalled_s": 0.5}
    values = {f.INITIAL_WINDOW_SIZE: 2**31 - 1 if full else 0}
    resets: list[float] = []

    def pours(_: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            while (found := await peer.next()) is not None:
                if found.kind == f.RST_STREAM:
                    resets.append(time.monotonic())
                elif found.ends_stream:
                    peer.send(f.headers(found.stream, f.RESPONSE_FIELDS))
                    peer.send(*(f.data(found.stream, bytes(10_000)) for _ in range(6)))

        return play

    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, options=options) as relay,
        raw_client(relay.port, values) as client,
    ):
        client.send(f.window_update(0, 2**31 - 1 - 65_535))
        client.send(*map(f.call, range(1, 201, 2)))
        if full:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        else:
            while len(client.resets) < 100:
                await client.next()
            assert set(client.resets.values()) == {f.CANCEL}
        await eventually(lambda: len(relay.finished.records) == 100)
        await eventually(lambda: len(resets) == 100)
        reasons = relay.finished.meter.traffic[1].reasons
        assert reasons == {Reason.CLIENT_STALLED: 100}
        assert relay.memory_budget.held == 0


# Backends


BACKEND_FLOODS = {
    "PING": f.ping(),
    "SETTINGS": f.settings(),
    "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": f.window_update(0, 1),
    "unknown": f.frame(0x77, 0, 0, b"?"),
    "empty DATA": f.data(1),
    "resets of streams that are over": f.rst(1),
    "tiny DATA": f.data(1, b"x"),
}


@pytest.mark.parametrize("name", BACKEND_FLOODS)
async def test_a_backend_that_floods_loses_its_connection_only(name: str) -> None:
    flood = BACKEND_FLOODS[name]

    def floods(backend: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            await peer.until(lambda frame: frame.ends_stream)
            peer.send(f.headers(1, f.RESPONSE_FIELDS) + f.data(1, f.message()))
            if flood[3] == f.RST_STREAM:
                peer.send(f.headers(1, f.OK_TRAILERS, end=True))
            for _ in range(200):
                peer.send(100 * flood)
                await asyncio.sleep(0)
            await peer.until_closed()

        return play

    async with (
        raw_backend(floods) as flooding,
        raw_backend() as other,
        running_relay(flooding.target, other.target) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(begin(1) + f.data(1, f.named(), end=True))
        await eventually(lambda: flooding.peers and flooding.peers[0].closed)
        await client.until_over(1)
        if flood[3] != f.RST_STREAM:
            assert client.resets[1] == f.INTERNAL_ERROR
            assert ("b0", Outcome.PROTOCOL_ERROR) in relay.outcomes.seen
        assert await client.is_alive()
        assert not other.peers or not other.peers[0].closed


async def test_a_backend_that_never_acknowledges_settings_is_given_up() -> None:
    def silent(_: RawBackend) -> Script:
        async def play(peer: Peer) -> None:
            peer.acknowledges = False
            await peer.until_closed()

        return play

    options = {"head_timeout_s": 0.3}
    async with (
        raw_backend(silent) as backend,
        running_relay(backend.target, options=options) as relay,
        raw_client(relay.port) as client,
    ):
        client.send(begin(1))
        await client.until_over(1)
        assert (await backend_goaway(backend)).code == 4
        port = relay.backends[0].ports[1]
        assert port is not None
        assert port.connect_failures == 1


async def backend_goaway(backend: RawBackend) -> f.Frame:
    """What a backend heard last."""
    await eventually(lambda: any(frame.kind == f.GOAWAY for frame in backend.peers[0].seen))
    return next(frame for frame in backend.peers[0].seen if frame.kind == f.GOAWAY)


# Honest peers


async def test_cancelling_as_go_does_is_no_flood() -> None:
    """RST_STREAM and a PING in one write, and a PING for the bandwidth with each answer."""
    async with raw_backend() as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port) as client:
            for stream in range(1, 1201, 2):
                if stream % 20 < 6:
                    client.send(begin(stream), f.rst(stream), f.ping())
                    continue
                client.send(f.call(stream), f.ping())
                await client.until_over(stream)
                assert client.status(stream) == 0
                client.send(f.window_update(0, 7))
            assert await client.is_alive()
        await relay.until_clean()


async def test_a_thousand_deadlines_at_once_are_no_flood() -> None:
    loop = FakeLoop()
    async with raw_backend() as backend, running_relay(backend.target, loop=loop) as relay:
        async with raw_client(relay.port) as client:
            head = f.request_fields((b"grpc-timeout", b"10S"), path=f.HANG_PATH)
            client.send(*(f.headers(stream, head) for stream in range(1, 2001, 2)))
            await eventually(lambda: relay.open_requests == 1000)
            loop.advance(5.4)  # more than half of what all of them have
            client.send(*(f.rst(stream) + f.ping() for stream in range(1, 401, 2)))
            client.send(*map(f.rst, range(401, 2001, 2)))
            assert await client.is_alive()
            client.send(f.call(2001))
            await client.until_over(2001)
            assert client.status(2001) == 0
        await relay.until_clean()
