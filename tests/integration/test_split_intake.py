"""Long batches over HTTP, which an intake holds without copying them (`lb.net.intake`): whatever
can happen to a request still does."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lb.domain.backend import BackendTls
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.fakes.tls import World
from tests.wire.http1 import (
    Peer,
    RawClient,
    Received,
    Script,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

BOTH_LOOPS = True

ROWS = 20
ROW_BYTES = 200_000
FEW_ROWS = 9
"""Their parts are so short that they are sent at once."""
DATA = random.Random(1).randbytes(ROWS * ROW_BYTES)
SIZE = "Inference-Header-Content-Length"


def _answer(numbers: bytes) -> bytes:
    """An answer with a number for each row."""
    tensor = {
        "name": "OUT", "datatype": "INT32", "shape": [len(numbers) // 4, 1],
        "parameters": {"binary_data_size": len(numbers)},
    }  # fmt: skip
    head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [tensor]})
    fields = f"{SIZE}: {len(head)}\r\n".encode()
    return reply(head.encode() + numbers, fields)


def _first_of(received: Received) -> bytes:
    """The answer that has the first four bytes of each row."""
    data = received.body[int(received.field(SIZE.lower().encode()) or 0) :]
    return _answer(b"".join(data[at : at + 4] for at in range(0, len(data), ROW_BYTES)))


async def _first_numbers(peer: Peer) -> None:
    while True:
        await peer.send(_first_of(await peer.request()))


def _request(rows: int = ROWS, data: bytes = b"", **changes: object) -> bytes:
    """A batch.

    Args:
        rows: of it.
        data: of all rows; otherwise the first of `DATA`.
        changes: of its tensor.
    """
    data = data or DATA[: rows * ROW_BYTES]
    tensor = {
        "name": "IN", "datatype": "UINT8", "shape": [rows, ROW_BYTES],
        "parameters": {"binary_data_size": len(data)}, **changes,
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    lines = (
        "POST /v2/models/m/infer HTTP/1.1", "Host: a", f"{SIZE}: {len(head)}",
        f"Content-Length: {len(head) + len(data)}",
    )  # fmt: skip
    return "\r\n".join((*lines, "", "")).encode() + head + data


def _right(rows: int) -> bytes:
    """The answer to a batch."""
    return b"".join(DATA[row * ROW_BYTES : row * ROW_BYTES + 4] for row in range(rows))


async def _ask(client: RawClient, request: bytes, *, step: int = 0) -> bytes:
    """Send a batch. Returns the data of its answer."""
    sending = asyncio.ensure_future(client.send(request, step=step))
    answer = await client.answer("POST")
    await sending
    fields = {name.lower(): value for name, value in answer.fields.items()}
    assert answer.status == 200, answer.body
    return answer.body[int(fields[SIZE.lower().encode()]) :]


@asynccontextmanager
async def _serving(
    script: Script = _first_numbers, ceiling: int = 2**28, world: World | None = None
) -> AsyncIterator[tuple[RunningRelay, RawClient]]:
    tls = None if world is None else BackendTls(ca=world.ca)
    context = None if world is None else world.server_context()
    async with (
        scripted_backend(script, tls=context) as backend,
        running_http1_relay(*[backend.target] * 2, ceiling=ceiling, tls=tls) as relay,
    ):
        relay.split(b"m", 8)
        async with raw_client(relay.port) as client:
            yield relay, client
        await eventually(relay.is_clean)


async def _send_until_read(relay: RunningRelay, client: RawClient, data: bytes) -> int:
    """Send the beginning of a batch until an intake reads it. Returns how much that was."""
    sent = 0
    while not relay.pumps:
        await client.send(data[sent : sent + 100_000])
        sent += 100_000
        await asyncio.sleep(0)
    return sent


@pytest.mark.parametrize("rows", [FEW_ROWS, ROWS])
@pytest.mark.parametrize("step", [0, 40_000])
async def test_a_long_batch_is_answered_rightly_and_so_is_the_next_request(
    step: int, rows: int
) -> None:
    async with _serving() as (relay, client):
        for _ in range(2):
            assert await _ask(client, _request(rows), step=step) == _right(rows)
        records = relay.finished.records
        assert [record.attempts for record in records] == [-(-rows // 8)] * 2
        body = _request(rows).partition(b"\r\n\r\n")[2]
        assert [record.bytes_in for record in records] == [len(body)] * 2


async def test_a_backend_that_reads_slowly_gets_all_of_its_part() -> None:
    async def slowly(peer: Peer) -> None:
        while True:
            received = await peer.head()
            left = int(received.field(b"content-length") or 0)
            while left:
                received.body += await peer.reader.read(min(left, 10_000))
                left = int(received.field(b"content-length") or 0) - len(received.body)
                await asyncio.sleep(0)
            await peer.send(_first_of(received))

    async with _serving(slowly) as (_, client):
        assert await _ask(client, _request()) == _right(ROWS)


async def test_a_backend_behind_tls_gets_its_part(tmp_path: Path) -> None:
    async with _serving(world=World(tmp_path)) as (_, client):
        assert await _ask(client, _request()) == _right(ROWS)


async def test_a_part_whose_backend_fails_is_sent_again() -> None:
    failures = iter([True])

    async def fails_at_first(peer: Peer) -> None:
        while True:
            received = await peer.head()
            if next(failures, False):
                await peer.reader.readexactly(100_000)
                await peer.reset()
                return
            await peer.body(received)
            await peer.send(_first_of(received))

    async with _serving(fails_at_first) as (relay, client):
        assert await _ask(client, _request()) == _right(ROWS)
        assert relay.finished.records[0].attempts == 4


async def test_the_rows_of_long_strings_are_found_wherever_they_lie() -> None:
    async def lengths(peer: Peer) -> None:
        """Answer each row with its length."""
        while True:
            received = await peer.request()
            data = received.body[int(received.field(SIZE.lower().encode()) or 0) :]
            found, at = b"", 0
            while at < len(data):
                found += data[at : at + 4]
                at += 4 + int.from_bytes(data[at : at + 4], "little")
            await peer.send(_answer(found))

    sizes = [0, 70_000, *(150_000 + row for row in range(ROWS - 2))]
    heads = [size.to_bytes(4, "little") for size in sizes]
    data = b"".join(head + DATA[:size] for head, size in zip(heads, sizes, strict=True))
    async with _serving(lengths) as (_, client):
        request = _request(data=data, datatype="BYTES", shape=[ROWS, 1])
        assert await _ask(client, request) == b"".join(heads)


@pytest.mark.parametrize("rows", [FEW_ROWS, ROWS])
async def test_a_batch_that_cannot_be_cut_goes_on_as_it_came(rows: int) -> None:
    async def whole(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(reply(b"as it came" if received.body == body else b"changed"))

    request = _request(rows, datatype="FP16")
    body = request.partition(b"\r\n\r\n")[2]
    async with _serving(whole) as (relay, client):
        sending = asyncio.ensure_future(client.send(request))
        assert (await client.answer("POST")).body == b"as it came"
        await sending
        assert [record.attempts for record in relay.finished.records] == [1]


async def test_a_client_that_leaves_a_long_batch_leaves_nothing() -> None:
    async with _serving() as (relay, client):
        await _send_until_read(relay, client, _request())
        client.writer.close()
        await eventually(lambda: len(relay.finished.records) == 1)


async def test_a_long_batch_that_memory_is_too_short_for_gets_an_error() -> None:
    # There is room for its beginning.
    async with _serving(ceiling=1 << 20) as (_, client):
        sending = asyncio.ensure_future(client.send(_request()))
        answer = await client.answer("POST")
        assert answer.status == 503
        assert b"memory" in answer.body
        await asyncio.gather(sending, return_exceptions=True)
