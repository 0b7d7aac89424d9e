"""The corpus for gRPC against the process as users run it."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import NamedTuple

import grpc.aio
import pytest

from tests.corpus.grpc import BODIES, BY_ID, DENIED, LIMIT, LIMITED, METADATA, NAMES, ROWS
from tests.corpus.http2_play import MemoryBudget, connected
from tests.corpus.http2_process import (
    PACES,
    TRANSPORTS,
    Served,
    Verdicts,
    play_wanted,
    raise_flaw,
    serving,
)
from tests.corpus.http2_row import TOKEN, TOKEN_FIELD, Row, Status
from tests.fakes.grpc_server import grpc_channel, grpc_server, path
from tests.wire import frames as fr
from tests.wire.frames import HANG_PATH
from tests.wire.http2 import Peer, RawBackend, Script, greet, raw_backend
from tests.wire.waiting import eventually

DENIED_BY_ID = {row.id: row for row in DENIED}
LIMITED_BY_ID = {row.id: row for row in LIMITED}
EVERY_WAY = pytest.mark.parametrize("transport", TRANSPORTS)
AT_BOTH = pytest.mark.parametrize("pace", PACES)


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All rows that this run asks for, played once."""
    return play_wanted(request, tmp_path_factory, ROWS)


@pytest.fixture(scope="module")
def denials(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The same for a process that lets nobody change a server."""
    access = {"control": {"loopback": False}}
    return play_wanted(request, tmp_path_factory, DENIED, access=access)


@pytest.fixture(scope="module")
def limits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The same for a process with a limit on messages."""
    return play_wanted(request, tmp_path_factory, LIMITED, limits={"body_bytes": LIMIT})


@EVERY_WAY
@AT_BOTH
@pytest.mark.parametrize("id_", BY_ID)
def test_row_gets_its_right_answer(verdicts: Verdicts, id_: str, transport: str, pace: str) -> None:
    raise_flaw(BY_ID[id_], verdicts[id_, transport, pace])


@EVERY_WAY
@AT_BOTH
@pytest.mark.parametrize("id_", DENIED_BY_ID)
def test_nobody_changes_a_server_however_it_is_spelled(
    denials: Verdicts, id_: str, transport: str, pace: str
) -> None:
    raise_flaw(DENIED_BY_ID[id_], denials[id_, transport, pace])


@EVERY_WAY
@AT_BOTH
@pytest.mark.parametrize("id_", LIMITED_BY_ID)
def test_message_over_the_limit_is_refused_by_its_prefix(
    limits: Verdicts, id_: str, transport: str, pace: str
) -> None:
    raise_flaw(LIMITED_BY_ID[id_], limits[id_, transport, pace])


def test_every_row_has_its_own_name() -> None:
    rows = [*ROWS, *DENIED, *LIMITED]
    assert len({row.id for row in rows}) == len(rows)


# G-18


class Pouring(MemoryBudget):
    """A backend that begins an answer to every request as soon as it begins, and never ends it."""

    def script(self, _: RawBackend) -> Script:
        return self._pour

    async def _pour(self, peer: Peer) -> None:
        poured = set()
        while (found := await self._next(peer)) is not None:
            if found.stream in peer.heads and found.stream not in poured:
                poured.add(found.stream)
                stream = found.stream
                peer.send(fr.headers(stream, fr.RESPONSE_FIELDS), fr.data(stream, bytes(8000)))


def _carrying(backend: RawBackend) -> set[tuple[Peer, int]]:
    """Where clients' calls are; questions of our own come on connections of their own."""
    return {
        (peer, stream)
        for peer in backend.peers
        for stream in peer.heads
        if peer.fields(stream)[b":path"] == HANG_PATH
    }


async def cancelled(
    served: Served, backend: RawBackend, sent: bytes, leave: str, transport: str
) -> float:
    """Begin a call, leave it, and return the seconds until the backend hears of that."""
    async with connected(served.ports[transport], served.tls(transport)) as client:
        await greet(client)
        before = _carrying(backend)
        client.send(sent)
        await eventually(lambda: _carrying(backend) - before)
        ((behind, stream),) = _carrying(backend) - before
        loop = asyncio.get_running_loop()
        began = loop.time()
        if leave == "reset":
            client.send(fr.rst(1))
        else:
            client.abort()
        await eventually(lambda: stream in behind.resets)
        assert behind.resets[stream] == fr.CANCEL
        return loop.time() - began


@pytest.mark.parametrize("within", ["upload", "download"])
async def test_backend_hears_at_once_that_a_client_left(tmp_path: Path, within: str) -> None:
    memory_budget = MemoryBudget() if within == "upload" else Pouring()
    head = fr.headers(1, fr.request_fields((TOKEN_FIELD, b"left"), path=HANG_PATH))
    sent = head + fr.data(1, bytes(5000))
    async with (
        raw_backend(memory_budget.script) as backend,
        serving(tmp_path, [{"grpc": backend.target}]) as served,
    ):
        for leave, transport in product(("reset", "connection lost"), TRANSPORTS):
            took = await cancelled(served, backend, sent, leave, transport)
            assert took < 20.0, (leave, transport)  # 100 ms on a quiet machine
            await served.until_zero("triton_lb_backend_in_flight")
            await served.until_zero("triton_lb_open_requests")


# G-19


async def test_one_stalled_stream_holds_up_none_of_99_others(tmp_path: Path) -> None:
    # The stalled one has more than all windows together; the others are many enough as short ones.
    count, short, size = 40, 8, 50_000
    async with (
        grpc_server() as (_, target),
        serving(tmp_path, [{"grpc": target}]) as served,
        grpc_channel(f"127.0.0.1:{served.ports['plain']}") as channel,
    ):
        repeat = channel.unary_stream(path("Repeat"))
        stalled = repeat(b"%d,%d" % (count, size))
        assert await stalled.read() == b"r" * size

        async def read_all(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> int:
            total = 0
            while message := await call.read():
                total += len(message)
            return total

        got = await asyncio.wait_for(
            asyncio.gather(*(read_all(repeat(b"%d,%d" % (short, size))) for _ in range(99))), 60
        )
        assert got == 99 * [short * size]
        assert await read_all(stalled) == (count - 1) * size


# A real gRPC server


NOT_COMPARED = {
    "G-6": "we refuse what ends within its message; grpcio waits for the rest, for ever",
    "G-8": "the same",
    "G-9": "the same, for the only message",
    "G-10c": "more than the window of a server that was not asked first; ours is larger",
    "G-17": "we answer what a server resets",
    "G-17g": "more metadata than our limit",
}
"""Rows, or beginnings of their names, and why."""


class Heard(NamedTuple):
    """How a call ended for its client."""

    ended: bool
    http: bytes
    status: bytes | None
    text: bytes | None


async def heard(port: int, row: Row) -> Heard:
    """Play what a row sends, and wait for the end of its stream."""
    right = row.right
    assert isinstance(right, Status)
    async with connected(port) as client:
        await greet(client)
        client.send(row.sent.replace(TOKEN, b"real-----@"))
        await client.until_over(right.stream)
        fields = {
            name: value for head in client.heads.get(right.stream, []) for name, value in head
        }
        return Heard(
            right.stream in client.ended,
            fields.get(b":status", b""),
            fields.get(b"grpc-status"),
            fields.get(b"grpc-message"),
        )


async def test_a_real_server_answers_as_it_does_without_us(tmp_path: Path) -> None:
    every = [*BODIES, *NAMES, *METADATA]
    rows = [row for row in every if row.id not in NOT_COMPARED and row.id[:3] not in NOT_COMPARED]
    async with (
        grpc_server() as (_, target),
        serving(tmp_path, [{"grpc": target}]) as served,
    ):
        direct = int(target.rpartition(":")[2])
        differ = [
            (str(row), with_us, without_us)
            for row in rows
            if (with_us := await heard(served.ports["plain"], row))
            != (without_us := await heard(direct, row))
        ]
    assert differ == []
