"""The corpus for HTTP/2 and gRPC against a relay in this process, where everything that a row
leaves behind shows: calls, streams, timers, bytes held. On asyncio's loop; the process as a whole,
on uvloop: `test_corpus_http2`, `test_corpus_grpc`."""

from __future__ import annotations

import pytest

from tests.corpus import grpc, http2
from tests.corpus.http2_play import MemoryBudget, check_arrivals, connected, play
from tests.fakes.relay import running_relay
from tests.wire.http2 import raw_backend

TOKEN = b"in-process"
ROWS = http2.BY_ID | grpc.BY_ID


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("id_", ROWS)
async def test_nothing_is_left_behind(id_: str, piecewise: bool) -> None:
    memory_budget = MemoryBudget()
    async with raw_backend(memory_budget.script) as backend, running_relay(backend.target) as relay:
        async with connected(relay.port) as peer:
            await play(ROWS[id_], peer, TOKEN, piecewise=piecewise)
        await relay.until_clean()
        await check_arrivals(ROWS[id_], memory_budget.arrivals[TOKEN])
