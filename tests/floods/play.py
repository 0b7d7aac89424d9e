"""How floods are played: counted frame by frame, at full speed, or by connections that wait."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.floods.line import Line, Target, greeted

_CHUNK = 32 * 1024
"""Bytes written at once at full speed."""
_COUNTED_AT_MOST = 3000
_SPREAD_S = 0.001
"""Between two slow connections that are opened."""
_PAUSE_S = 0.01
"""Where no PING can come between, so long is waited for the end after each unit."""


class Size(NamedTuple):
    """How big a flood is."""

    units: int = 12_000
    """Frames (or what is repeated) per connection at most."""
    lines: int = 20
    """Connections at full speed, one after the other."""
    every_s: float = 0.25
    """From the start of one to the start of the next."""
    held: int = 500
    """Connections at once, where they are slow."""
    lasts_s: float = 6.0
    """How long it goes on: who is cut comes again until then."""
    patience_s: float = 12.0
    """How long the end of a slow connection is waited for."""


SMALL = Size(units=3000, lines=1, every_s=0.0, held=20, lasts_s=0.0, patience_s=2.5)


@dataclass
class Played:
    """What an attacker saw. Times are of the monotonic clock."""

    started: float = 0.0
    ended: float = 0.0
    accepted: int = -1
    """Units until the end of the connection that was counted; -1 where it was not ended."""
    counted_s: float = 0.0
    """How long that connection lived: time refills what a peer may do."""
    lines: int = 0
    cut: int = 0
    """Connections (or streams, where only they end) that the other side ended."""
    codes: dict[str, int] = field(default_factory=dict)
    lives_s: list[float] = field(default_factory=list)
    """From opened (or begun) to cut."""
    cuts: list[float] = field(default_factory=list)
    """When the lines ended, one after the other; empty where they overlap."""
    refused: int = 0
    """Connections that could not be made."""
    resets: int = 0

    def add(self, lines: Iterable[Line], *, one_by_one: bool = False) -> None:
        """Note what became of lines."""
        codes = Counter(self.codes)
        for line in lines:
            self.lines += 1
            self.resets += line.resets.total()
            if line.cut_at:
                self.cut += 1
                codes[line.code or "closed"] += 1
                self.lives_s.append(line.cut_at - line.opened_at)
                if one_by_one:
                    self.cuts.append(line.cut_at)
            line.leave()
        self.codes = dict(codes)


Play = Callable[[Target, Size], Awaitable[Played]]


@dataclass(frozen=True)
class Frames:
    """A flood of frames on one HTTP/2 connection after the other."""

    unit: Callable[[int], bytes]
    """The unit with this number, from 0."""
    opening: bytes = b""
    """What is sent before."""
    step: int = 10
    """Units between two PINGs, where they are counted."""
    pings: bool = True
    """Whether PINGs may come between the units."""
    reads: bool = True
    counted: bool = True

    async def __call__(self, target: Target, size: Size) -> Played:
        """Play it: first counted, then at full speed."""
        played = Played(started=time.monotonic())
        if self.counted:
            line, played.accepted = await self._count(target)
            played.counted_s = max(0.0, line.cut_at - line.opened_at)
            played.add((line,), one_by_one=True)
        for number in range(size.lines):
            if number:
                if time.monotonic() - played.started > size.lasts_s:
                    break
                due = played.started + (number + self.counted) * size.every_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            line = await self._blast(target, size.units)
            played.add((line,), one_by_one=True)
        played.ended = time.monotonic()
        return played

    async def _open(self, target: Target) -> Line:
        line = await greeted(target, reads=self.reads)
        await line.send(self.opening)
        return line

    async def _count(self, target: Target) -> tuple[Line, int]:
        line = await greeted(target)
        await line.send(self.opening)
        if self.pings:
            await line.pong()
        sent = 0
        while sent < _COUNTED_AT_MOST and not line.is_over:
            stop = sent + (self.step if self.pings else 1)
            await line.send(b"".join(map(self.unit, range(sent, stop))))
            sent = stop
            if not self.pings:
                await line.until_cut(_PAUSE_S)
            elif not await line.pong():
                break
        return line, sent if line.is_over else -1

    async def _blast(self, target: Target, units: int) -> Line:
        line = await self._open(target)
        sent = 0
        while sent < units:
            chunk = []
            length = 0
            while length < _CHUNK and sent < units:
                chunk.append(self.unit(sent))
                length += len(chunk[-1])
                sent += 1
            if not await line.send(b"".join(chunk)):
                break
        await line.until_cut(1.0)
        return line


async def gather_lines(
    make: Callable[[], Awaitable[Line]], count: int, played: Played, at_once: int = 50
) -> list[Line]:
    """Open connections, some at a time; those that fail are counted."""
    lines: list[Line] = []
    left = count
    while left > 0:
        batch = min(left, at_once)
        made = await asyncio.gather(*(make() for _ in range(batch)), return_exceptions=True)
        for each in made:
            if isinstance(each, Line):
                lines.append(each)
            elif isinstance(each, OSError):
                played.refused += 1
            elif each is not None:
                raise each
        left -= batch
    return lines


@dataclass(frozen=True)
class Slow:
    """Connections that are all there at once and do next to nothing."""

    make: Callable[[Target], Awaitable[Line]]
    """Open one and send what it begins with."""
    drip: bytes = b""
    """Sent again and again; nothing when empty."""
    every_s: float = 0.3
    reads_a_little: bool = False
    """Take a buffer full every so often."""
    at_most: int = 10_000
    """Connections at once, whatever the size."""

    async def __call__(self, target: Target, size: Size) -> Played:
        """Play it: who is cut comes again, until it has lasted long enough."""
        played = Played(started=time.monotonic())
        deadline = played.started + size.lasts_s
        lines: list[Line] = []

        async def slot(number: int) -> None:
            await asyncio.sleep(number * _SPREAD_S)
            while True:
                try:
                    line = await self.make(target)
                except OSError:
                    played.refused += 1
                else:
                    lines.append(line)
                    await self._keep(line, max(deadline, line.opened_at + size.patience_s))
                if time.monotonic() > deadline:
                    return
                await asyncio.sleep(_SPREAD_S)

        await asyncio.gather(*map(slot, range(min(size.held, self.at_most))))
        played.add(lines)
        played.ended = time.monotonic()
        return played

    async def _keep(self, line: Line, deadline: float) -> None:
        while not line.is_over:
            left = deadline - time.monotonic()
            if left <= 0 or await line.until_cut(min(left, self.every_s)):
                return
            if self.drip:
                await line.send(self.drip)
            if self.reads_a_little:
                line.sip()
