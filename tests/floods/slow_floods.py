"""Floods of connections: slow ones, silent ones, very many ones, and pipelined requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.floods.line import Line, Target, dial, greeted
from tests.floods.play import Played, Size, Slow, gather_lines
from tests.wire import frames as fr

_BIG = b"POST /v2/models/big/infer HTTP/1.1\r\nHost: lb\r\nContent-Length: 0\r\n\r\n"
_PIPELINED = (
    b"POST /v2/models/flood/infer HTTP/1.1\r\nHost: lb\r\nContent-Length: 4096\r\n\r\n"
    + bytes(4096)
)
_LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n"
CLIENT_LIMIT = 1024
"""Connections of one address that the balancer under test allows."""
_RECEIVE = 128 * 1024
"""Bytes that the kernel of a slow reader takes for it; with less, loopback's packets do not fit."""
_HALF_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(20)


def _http(first: bytes) -> Slow:
    return Slow(_opener(first))


def _opener(
    first: bytes, *, reads: bool = True, receive_buffer: int = 0, secure: bool = True
) -> Callable[[Target], Awaitable[Line]]:
    async def make(target: Target) -> Line:
        return await dial(
            target,
            http2=False,
            reads=reads,
            receive_buffer=receive_buffer,
            secure=secure,
            first=first,
        )

    return make


def _grpc(first: bytes) -> Slow:
    async def make(target: Target) -> Line:
        return await dial(target, first=first)

    return Slow(make)


async def _stalled_call(target: Target) -> Line:
    line = await greeted(target)
    await line.send(fr.headers(1, fr.request_fields()) + fr.data(1, b"\0\0\0\1\0x"))
    return line


async def _open_block(target: Target) -> Line:
    line = await greeted(target)
    await line.send(fr.headers(1, fr.literals(fr.request_fields()), done=False))
    return line


def _body(length: int) -> bytes:
    return (
        b"POST /v2/models/flood/infer HTTP/1.1\r\nHost: lb\r\nContent-Length: %d\r\n\r\nx" % length
    )


_UNREAD = _opener(_BIG, reads=False, receive_buffer=_RECEIVE)
_HEAD = b"POST /v2/models/flood/infer HTTP/1.1\r\nHost: lb\r\nX: "
SLOW_FLOODS = {
    "slow head, HTTP": Slow(_opener(_HEAD), drip=b"x"),
    "slow preface, gRPC": Slow(_grpc(fr.PREFACE[:3]).make, drip=b""),
    "open header block, gRPC": Slow(_open_block),
    "silent, HTTP": _http(b""),
    "silent, gRPC": _grpc(b""),
    "no SETTINGS, gRPC": _grpc(fr.PREFACE),
    "body stops, HTTP": _http(_body(100_000)),
    "body of a byte now and then, HTTP": Slow(_opener(_body(100_000)), drip=b"x"),
    "request stream that stops, gRPC": Slow(_stalled_call),
    "answer not read, HTTP": Slow(_UNREAD, at_most=20),
    "answer not read by 100, HTTP": Slow(_UNREAD, at_most=100),
    "answer read slowly, HTTP": Slow(_UNREAD, every_s=0.7, reads_a_little=True, at_most=20),
    "idle, HTTP": _http(b"GET /v2/health/live HTTP/1.1\r\nHost: lb\r\n\r\n"),
}
HANDSHAKE_FLOODS = {
    "TLS handshake not begun": Slow(_opener(b"", secure=False)),
    "TLS handshake stalled": Slow(_opener(_HALF_HELLO, secure=False)),
}


async def connect_and_close(target: Target, size: Size) -> Played:
    """Connections opened and closed as fast as eight of them at a time can be."""
    played = Played(started=time.monotonic())
    deadline = played.started + max(0.5, size.lasts_s)
    left = iter(range(4 * size.units))

    async def loop(http2: bool) -> None:
        for _ in left:
            if time.monotonic() > deadline:
                return
            try:
                line = await dial(target, http2=http2)
            except OSError:
                played.refused += 1
                continue
            played.lines += 1
            line.leave()

    await asyncio.gather(*(loop(bool(n % 2)) for n in range(8)))
    played.ended = time.monotonic()
    return played


def _idle(target: Target) -> Awaitable[Line]:
    return SLOW_FLOODS["idle, HTTP"].make(target)


async def hold_connections(target: Target, size: Size) -> Played:
    """Thousands of connections that have made one request each, or none, and stay."""
    played = Played(started=time.monotonic())
    other = target._replace(source="127.0.1.2")
    lines = await gather_lines(lambda: _idle(target), 2 * size.held, played)
    lines += await gather_lines(lambda: greeted(other), 2 * size.held, played)
    await asyncio.sleep(max(0.0, played.started + size.lasts_s - time.monotonic()))
    played.add(lines)
    played.ended = time.monotonic()
    return played


async def warm_up(target: Target) -> None:
    """What any busy day brings: some hundreds of connections at once, and so many one after the
    other that the garbage of closed ones has been collected before memory is looked at."""
    await connect_and_close(target, Size(units=1000))
    lines = await gather_lines(lambda: _idle(target), 200, Played())
    lines += await gather_lines(lambda: greeted(target), 200, Played())
    for line in lines:
        await line.until_answered(5.0)
    for line in lines:
        line.leave()


async def exceed_client_limit(target: Target, size: Size) -> Played:
    """More connections than one address may have. Only those beyond the limit count."""
    played = Played(started=time.monotonic())
    lines: list[Line] = []
    while len(lines) < CLIENT_LIMIT:
        made = await gather_lines(lambda: _idle(target), CLIENT_LIMIT - len(lines), played)
        await asyncio.gather(*(line.until_answered(size.patience_s) for line in made))
        # On a busy machine a request may come too late for the time-out: then another stands in.
        lines += [line for line in made if line.code == "200"]
    more = await gather_lines(lambda: _idle(target), 2 * size.held, played)
    await asyncio.gather(*(line.until_cut(size.patience_s) for line in more))
    await asyncio.sleep(max(0.0, played.started + size.lasts_s - time.monotonic()))
    for line in lines:
        line.leave()
    played.add(more)
    played.ended = time.monotonic()
    return played


async def pipeline(target: Target, size: Size) -> Played:
    """Requests pipelined as fast as they are taken; answers are read."""
    return await _pipeline(target, size, reads=True)


async def pipeline_unread(target: Target, size: Size) -> Played:
    """The same; answers are not read."""
    return await _pipeline(target, size, reads=False)


async def _pipeline(target: Target, size: Size, *, reads: bool) -> Played:
    played = Played(started=time.monotonic())
    while True:
        line = await dial(target, http2=False, reads=reads, receive_buffer=0 if reads else 4096)
        try:
            async with asyncio.timeout(size.lasts_s + size.patience_s):
                for _ in range(size.units // 20):
                    if not await line.send(_PIPELINED * 20):
                        break
                await line.send(_LAST)
                await line.until_cut(size.patience_s)
        except TimeoutError:
            pass
        played.add((line,))
        if time.monotonic() - played.started > size.lasts_s:
            break
    played.ended = time.monotonic()
    return played
