"""Playing bad gRPC backends behind the process, with a good one beside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.corpus.grpc_backends import BackendRow
from tests.corpus.http2_play import PAUSE_S, MemoryBudget, connected, hear
from tests.corpus.http2_process import PACES, Served, serving
from tests.corpus.http2_row import TOKEN_FIELD
from tests.wire import frames as fr
from tests.wire.frames import HANG_PATH
from tests.wire.http2 import ConnectionOver, Peer, RawBackend, Script, greet, raw_backend
from tests.wire.waiting import eventually

_HEAD_TIMEOUT_S = 30
"""The time for a backend's SETTINGS and heads: a busy machine is slow to send them byte by byte."""
_SHORT_HEAD_TIMEOUT_S = 2
"""The same where a row waits for its end."""

_LIST = b"/inference.GRPCInferenceService/RepositoryIndex"
_NO_LIST = (*fr.RESPONSE_FIELDS, (b"grpc-status", b"12"))
"""What has no list of models is not asked for it again when a connection was lost: such a question
would take a row that is meant for a call."""

_PROCESSES = 4
"""Rows are about one backend's connection each, so they cannot share a process at a time."""

Verdicts = Mapping[tuple[str, str], BaseException | None]
"""What was wrong, by row and pace; None where all was right."""


class BadBackend(MemoryBudget):
    """Answers calls as a good one does, but plays a row on the next connection when it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.row: BackendRow | None = None
        self.piecewise = False
        self.speaks = False
        """The reply of a row is being sent; the client may have heard enough of it already."""
        self.live: dict[Peer, BackendRow | None] = {}
        """Open connections, and the row that is still to be played on them."""
        self.played: Peer | None = None
        """The connection that the last row was played on."""

    def script(self, _: RawBackend) -> Script:
        return self._serve

    async def _serve(self, peer: Peer) -> None:
        row, self.row = self.row, None
        self.live[peer] = row
        try:
            if row is None:
                peer.send(fr.settings())
            else:
                self.played = peer
                peer.acknowledges = row.acknowledges
                peer.send(row.greeting or b"")
                if row.hangs_up and not row.greeting:
                    return
            await self._play(peer)
        finally:
            self.live.pop(peer, None)

    async def reply(self, peer: Peer, stream: int) -> None:
        """Answer as the row wants it, once."""
        if (b":path", _LIST) in peer.heads[stream][0]:
            peer.send(fr.headers(stream, _NO_LIST, end=True))
            return
        row = self.live.get(peer)
        if row is None:
            await super().reply(peer, stream)
            return
        self.live[peer] = None
        self.speaks = True
        try:
            if self.piecewise:
                await peer.send_in_pieces(row.reply, PAUSE_S)
            else:
                peer.send(row.reply)
        finally:
            self.speaks = False
        if row.hangs_up:
            raise ConnectionOver(str(row))

    async def hang_up(self) -> None:
        """Close all connections, and see the other side close them too."""
        for peer in self.live:
            if not peer.writer.is_closing():
                peer.closed = True  # it may still read, and would answer what it reads
                peer.writer.write_eof()
        await eventually(lambda: not self.live)

    async def is_left(self, peer: Peer) -> bool:
        """Whether the process closes a connection to here."""
        try:
            await eventually(lambda: peer not in self.live)
        except TimeoutError:
            return False
        return True

    async def still_listens(self, peer: Peer) -> bool:
        """Whether the process answers a PING on a connection to here."""
        token = b"backend?"
        await eventually(lambda: not self.speaks)
        peer.send(fr.ping(token))
        await eventually(lambda: peer not in self.live or any(f[3] == token for f in peer.seen))
        return peer in self.live


class Round:
    """One process with the bad and the good backend behind it, one row after the other."""

    def __init__(self, served: Served, bad: BadBackend, good: MemoryBudget) -> None:
        self.served = served
        self.bad = bad
        self.good = good
        self._count = 0

    async def hold_good(self, client: Peer) -> int:
        """Keep the good backend busy, so that calls go to the bad one; returns the stream."""
        await greet(client)
        for stream in (1, 3):
            token = b"held-%d" % stream
            client.send(fr.headers(stream, fr.request_fields((TOKEN_FIELD, token), path=HANG_PATH)))
            await eventually(lambda t=token: self.good.arrivals[t] or self.bad.arrivals[t])
            if self.good.arrivals[token]:
                break
        else:
            raise AssertionError("the second call does not go where the first did not")
        for other in range(1, stream, 2):
            client.send(fr.rst(other))
        return stream

    async def play(self, row: BackendRow, held: Peer, stream: int, *, piecewise: bool) -> None:
        """Play a row; raises AssertionError where something is not right."""
        bad = self.bad
        await bad.hang_up()
        bad.row, bad.piecewise = row, piecewise
        self._count += 1
        token = b"row-%d" % self._count
        more = [(TOKEN_FIELD, token)]
        if row.timeout:
            more.append((b"grpc-timeout", row.timeout))
        async with connected(self.served.ports["plain"]) as client:
            client.credits = False
            await greet(client)
            client.send(fr.call(1, None, *more))
            await hear(row.right, client)
            last = client.heads[1][-1] if row.carries else []
        assert tuple(last[len(last) - len(row.carries) :]) == row.carries
        assert bad.row is None, "the bad backend was not asked"
        elsewhere = [arrival for arrival in self.good.arrivals[token] if arrival.complete]
        assert len(elsewhere) == row.retried, f"{len(elsewhere)} sent to the good backend"
        played = bad.played
        assert played is not None
        if row.keeps:
            assert await bad.still_listens(played), "the connection to the backend was closed"
        else:
            assert await bad.is_left(played), "the connection to the backend was not closed"
        assert await held.is_alive(), "another connection of a client was lost"
        assert stream not in held.resets | dict.fromkeys(held.ended), "another call was lost"
        await self._go_on(token)

    async def _go_on(self, token: bytes) -> None:
        """The bad backend gets the next call, and answers it well."""
        await self.bad.hang_up()
        after = token + b"-after"
        async with connected(self.served.ports["plain"]) as client:
            await greet(client)
            client.send(fr.call(1, None, (TOKEN_FIELD, after)))
            await client.until_over(1)
            assert client.status(1) == 0, client.heads
        assert self.bad.arrivals[after], "the backend was taken out"


async def _play_some(folder: Path, rows: Iterable[BackendRow], head_timeout_s: int) -> Verdicts:
    """Play rows at both paces, one after the other against one process."""
    verdicts: dict[tuple[str, str], BaseException | None] = {}
    bad, good = BadBackend(), MemoryBudget()
    async with AsyncExitStack() as stack:
        behind = [
            await stack.enter_async_context(raw_backend(one.script, greets=one is good))
            for one in (bad, good)
        ]
        backends = [
            {"name": name, "grpc": one.target}
            for name, one in zip(("bad", "good"), behind, strict=True)
        ]
        settings = {
            "timeouts": {"head": f"{head_timeout_s}s"},
            # The balancer's own questions would take rows, see `_NO_LIST`.
            "model_table": {"refresh": "1h"},
            # Rows show what becomes of one attempt: nothing goes again, and nobody is ejected.
            "retry": {"budget": 0},
            "outlier_detection": {"enabled": False},
        }
        served = await stack.enter_async_context(serving(folder, backends, **settings))
        held = await stack.enter_async_context(connected(served.ports["plain"]))
        this = Round(served, bad, good)
        stream = await this.hold_good(held)
        for row in rows:
            for pace in PACES:
                verdicts[row.id, pace] = None
                try:
                    await this.play(row, held, stream, piecewise=pace == PACES[1])
                except (AssertionError, OSError, TimeoutError) as error:
                    verdicts[row.id, pace] = error
        await bad.hang_up()
        held.abort()
    return verdicts


async def play_all(folder: Path, rows: Sequence[BackendRow]) -> Verdicts:
    """Play every row at both paces, spread over some processes."""
    quick = [row for row in rows if row.acknowledges]
    parts = [(quick[number::_PROCESSES], _HEAD_TIMEOUT_S) for number in range(_PROCESSES)]
    parts.append(([row for row in rows if not row.acknowledges], _SHORT_HEAD_TIMEOUT_S))
    playing = []
    for number, (some, head_timeout_s) in enumerate(parts):
        if some:
            (one := folder / str(number)).mkdir()
            playing.append(_play_some(one, some, head_timeout_s))
    found = await asyncio.gather(*playing)
    return {key: flaw for part in found for key, flaw in part.items()}


def play_all_now(folder: Path, rows: Sequence[BackendRow]) -> Verdicts:
    """The same from outside of an event loop."""
    return asyncio.run(play_all(folder, rows))
