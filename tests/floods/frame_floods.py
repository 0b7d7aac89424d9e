"""Floods of HTTP/2 frames: what one unit of each is."""

from __future__ import annotations

import asyncio
import time

from tests.floods.line import CODES, Target, greeted
from tests.floods.observation import BIG_MODEL, HANG_MODEL, STREAM_PATH
from tests.floods.play import Frames, Played, Size
from tests.wire import frames as fr

_HEAD = fr.literals(fr.request_fields(path=STREAM_PATH))
_UNARY_HEAD = fr.literals(fr.request_fields())
_HANG = fr.named(HANG_MODEL)
_NO_FIELDS = fr.literals([(b"a", b"b")])
_PRIORITY = b"\0\0\0\0\1"


def _id(number: int) -> int:
    return 2 * number + 1


def _begin(number: int) -> bytes:
    """A stream that the backend never answers, left open."""
    return fr.headers(_id(number), _HEAD)


def _request(number: int) -> bytes:
    """A whole request that the backend never answers."""
    stream = _id(number)
    return fr.headers(stream, _UNARY_HEAD) + fr.data(stream, _HANG, end=True)


def _rapid_reset(number: int) -> bytes:
    return _begin(number) + fr.rst(_id(number))


# MadeYouReset (CVE-2025-8671): a good request, then what makes the server reset it.


def _zero_update(number: int) -> bytes:
    return _request(number) + fr.window_update(_id(number), 0)


def _overflow(number: int) -> bytes:
    return _request(number) + fr.window_update(_id(number), 2**31 - 1)


def _short_priority(number: int) -> bytes:
    return _request(number) + fr.frame(fr.PRIORITY, 0, _id(number), b"\0\0\0\0")


def _own_priority(number: int) -> bytes:
    stream = _id(number)
    return _request(number) + fr.frame(fr.PRIORITY, 0, stream, stream.to_bytes(4, "big") + b"\1")


def _late_data(number: int) -> bytes:
    return _request(number) + fr.data(_id(number), b"x")


def _late_head(number: int) -> bytes:
    return _request(number) + fr.headers(_id(number), _UNARY_HEAD, end=True)


def _bad_head(number: int) -> bytes:
    return fr.headers(_id(number), _NO_FIELDS, end=True)


# Header blocks


def _bomb(number: int) -> bytes:
    """A 4 kB entry of the dynamic table (the default before we could refuse one), named 12,000
    times: 48 MB of fields in 16 kB."""
    entry = fr.literal(b"a", bytes(4000), 0x40)
    return fr.headers(_id(number), _UNARY_HEAD + entry + b"\xbe" * 12_000, end=True)


_OPEN_BLOCK = fr.headers(1, _UNARY_HEAD, done=False)

RESET_FLOODS = {
    "rapid reset": Frames(_rapid_reset),
    "rapid reset, unread": Frames(_rapid_reset, reads=False),
    "made-you-reset: WINDOW_UPDATE 0": Frames(_zero_update),
    "made-you-reset: window overflow": Frames(_overflow),
    "made-you-reset: PRIORITY of 4 bytes": Frames(_short_priority),
    "made-you-reset: PRIORITY on itself": Frames(_own_priority),
    "made-you-reset: DATA after the end": Frames(_late_data),
    "made-you-reset: HEADERS after the end": Frames(_late_head),
    "malformed heads": Frames(_bad_head),
}
BLOCK_FLOODS = {
    "CONTINUATION, 16 kB each": Frames(
        lambda _: fr.continuation(1, fr.literal(b"x", bytes(16_000)), done=False),
        _OPEN_BLOCK, pings=False,
    ),
    "CONTINUATION, one field each": Frames(
        lambda n: fr.continuation(1, fr.literal(b"x-%d" % n, b"y"), done=False),
        _OPEN_BLOCK, pings=False,
    ),
    "CONTINUATION, empty": Frames(
        lambda _: fr.continuation(1, b"", done=False), _OPEN_BLOCK, pings=False
    ),
    "HPACK bomb": Frames(_bomb, step=1),
}  # fmt: skip
CONTROL_FLOODS = {
    "PING": Frames(lambda _: fr.ping()),
    "PING, unread": Frames(lambda _: fr.ping(), reads=False),
    "SETTINGS": Frames(lambda n: fr.settings({fr.INITIAL_WINDOW_SIZE: 65_535 + n % 2})),
    "SETTINGS, unread": Frames(lambda _: fr.settings(), reads=False),
    "SETTINGS of 2,700 entries": Frames(
        lambda _: fr.settings([(0xABCD, n) for n in range(2700)]), step=1
    ),
    "PRIORITY": Frames(lambda _: fr.frame(fr.PRIORITY, 0, 1, b"\0\0\0\0\1")),
    "PRIORITY on many streams": Frames(
        lambda n: fr.frame(fr.PRIORITY, 0, _id(n) + 2, _PRIORITY), _begin(0)
    ),
    "WINDOW_UPDATE, connection": Frames(lambda _: fr.window_update(0, 1)),
    "WINDOW_UPDATE, stream": Frames(lambda _: fr.window_update(1, 1), _begin(0)),
    "unknown frames": Frames(lambda n: fr.frame(0x60 + n % 16, n % 256, 0, b"unknown")),
}
DATA_FLOODS = {
    "DATA, empty": Frames(lambda _: fr.data(1), _begin(0)),
    "DATA, empty and padded": Frames(lambda _: fr.data(1, pad=200), _begin(0)),
    "DATA of one byte": Frames(lambda _: fr.data(1, b"x"), _begin(0) + fr.data(1, fr.named()[:5])),
}


async def zero_window(target: Target, size: Size) -> Played:
    """100 streams ask for 4 MiB each and give no window. What ends is streams."""
    played = Played(started=time.monotonic())
    count = min(100, size.held)
    while True:
        line = await greeted(target, {fr.INITIAL_WINDOW_SIZE: 0})
        begun = time.monotonic()
        await line.send(_ask_for_much(count))
        await line.until_reset(count, size.patience_s)
        played.lines += count
        played.cut += len(line.reset_at)
        played.lives_s += [at - begun for at in line.reset_at]
        for code, many in line.resets.items():
            name = f"reset {CODES.get(code, code)}"
            played.codes[name] = played.codes.get(name, 0) + many
        line.leave()
        if time.monotonic() - played.started > size.lasts_s:
            break
    played.ended = time.monotonic()
    return played


async def unread_answers(target: Target, size: Size) -> Played:
    """100 streams with all the window, on a connection that nobody reads."""
    played = Played(started=time.monotonic())
    wide = {fr.INITIAL_WINDOW_SIZE: 2**31 - 1}
    while True:
        line = await greeted(target, wide, reads=False, receive_buffer=128 * 1024)
        await line.send(_ask_for_much(min(100, size.held)))
        await line.until_cut(size.patience_s)
        played.add((line,))
        if time.monotonic() - played.started > size.lasts_s:
            break
    played.ended = time.monotonic()
    return played


def _ask_for_much(count: int) -> bytes:
    return b"".join(fr.call(_id(n), fr.named(BIG_MODEL)) for n in range(count))


async def too_many_streams(target: Target, size: Size) -> Played:
    """1,400 streams at once on one connection that may have 1,024, again and again."""
    played = Played(started=time.monotonic())
    while True:
        line = await greeted(target)
        for first in range(0, 1400, 100):
            await line.send(b"".join(map(_request, range(first, first + 100))))
            await asyncio.sleep(0.005)
        await line.until_cut(1.0)
        played.add((line,), one_by_one=True)
        if time.monotonic() - played.started > size.lasts_s:
            break
        await asyncio.sleep(0.5)
    played.ended = time.monotonic()
    return played
