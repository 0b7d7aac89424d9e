"""Long batches over HTTP, which are read straight into the memory that holds them
(`lb.net.intake`): whatever can happen to a request still does."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.wire.http1 import Peer, RawClient, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True

ROWS = 20
ROW_BYTES = 131_072
DATA = random.Random(1).randbytes(ROWS * ROW_BYTES)
SIZE = "Inference-Header-Content-Length"


async def _first_numbers(peer: Peer) -> None:
    """Answer each row with its first four bytes."""
    while True:
        received = await peer.request()
        data = received.body[int(received.field(SIZE.lower().encode()) or 0) :]
        found = b"".join(data[at : at + 4] for at in range(0, len(data), ROW_BYTES))
        tensor = {
            "name": "OUT", "datatype": "INT32", "shape": [len(found) // 4, 1],
            "parameters": {"binary_data_size": len(found)},
        }  # fmt: skip
        head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [tensor]})
        fields = f"{SIZE}: {len(head)}\r\n".encode()
        await peer.send(reply(head.encode() + found, fields))


def _request() -> bytes:
    tensor = {
        "name": "IN", "datatype": "UINT8", "shape": [ROWS, ROW_BYTES],
        "parameters": {"binary_data_size": len(DATA)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    lines = (
        "POST /v2/models/m/infer HTTP/1.1", "Host: a", f"{SIZE}: {len(head)}",
        f"Content-Length: {len(head) + len(DATA)}",
    )  # fmt: skip
    return "\r\n".join((*lines, "", "")).encode() + head + DATA


RIGHT = b"".join(DATA[row * ROW_BYTES : row * ROW_BYTES + 4] for row in range(ROWS))


@asynccontextmanager
async def _serving(ceiling: int = 2**28) -> AsyncIterator[tuple[RunningRelay, RawClient]]:
    async with (
        scripted_backend(_first_numbers) as backend,
        running_http1_relay(backend.target, ceiling=ceiling) as relay,
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


@pytest.mark.parametrize("step", [0, 40_000])
async def test_a_long_batch_is_answered_rightly_and_so_is_the_next_request(step: int) -> None:
    async with _serving() as (relay, client):
        for _ in range(2):
            sending = asyncio.ensure_future(client.send(_request(), step=step))
            answer = await client.answer("POST")
            await sending
            fields = {name.lower(): value for name, value in answer.fields.items()}
            assert answer.body[int(fields[SIZE.lower().encode()]) :] == RIGHT
        records = relay.finished.records
        assert [record.attempts for record in records] == [3, 3]
        body = _request().partition(b"\r\n\r\n")[2]
        assert [record.bytes_in for record in records] == [len(body)] * 2


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
