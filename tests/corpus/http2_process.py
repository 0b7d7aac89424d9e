"""`triton-lb serve` for rows of the corpus: plain and TLS side by side, in front of backends that
the test plays; and all rows against it at once."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.corpus import serving as process
from tests.corpus.http2_play import (
    PAUSE_S,
    MemoryBudget,
    check_arrivals,
    connected,
    good_call,
    play,
)
from tests.corpus.http2_row import Row
from tests.corpus.serving import Serving
from tests.fakes.tls import World
from tests.wire.http2 import raw_backend

TRANSPORTS = ("plain", "tls")
PACES = ("at once", "byte by byte")
_AT_ONCE = 32
"""Rows under way at the same time."""

Verdicts = Mapping[tuple[str, str, str], BaseException | None]
"""What was wrong, by row, transport and pace; None where all was right."""


@dataclass(frozen=True)
class Served:
    """A running process."""

    running: Serving
    context: ssl.SSLContext

    @property
    def ports(self) -> Mapping[str, int]:
        """By transport."""
        return {"plain": self.running.grpc, "tls": self.running.grpcs}

    def tls(self, transport: str) -> ssl.SSLContext | None:
        """What a client of this transport needs."""
        return self.context if transport == "tls" else None

    async def until_zero(self, gauge: str) -> None:
        """Wait until every series of a gauge is zero."""
        async with asyncio.timeout(30):
            while await self.running.metric(gauge):  # noqa: ASYNC110  # the state of the product
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    folder: Path, backends: Sequence[Mapping[str, Any]], **sections: Any
) -> AsyncIterator[Served]:
    """Run the process, plain and with TLS; no call may be left at the end.

    Args:
        folder: for its files.
        backends: as in the configuration.
        sections: of the configuration, beside `listen` and `backends`.
    """
    world = World(folder)
    sections = {"health": {"probe": "tcp"}, **sections}
    async with process.serving(folder, list(backends), world, **sections) as running:
        served = Served(running, world.client_context("h2"))
        yield served
        await served.until_zero("triton_lb_backend_in_flight")
        await served.until_zero("triton_lb_open_requests")


async def play_all(
    folder: Path,
    rows: Iterable[Row],
    transports: Iterable[str] = TRANSPORTS,
    paces: Iterable[str] = PACES,
    **sections: Any,
) -> Verdicts:
    """Play every row by every transport and pace, many at the same time, against a process with
    these sections in its configuration.

    After each row a good call works on a fresh connection, and what arrived behind is checked: that
    call takes the same connection to the backend, so all that the row caused came before it.
    """
    verdicts: dict[tuple[str, str, str], BaseException | None] = {}
    free = asyncio.Semaphore(_AT_ONCE)
    memory_budget = MemoryBudget()

    async def judge(served: Served, row: Row, transport: str, pace: str) -> None:
        token = b"%010d" % len(verdicts)
        key = (row.id, transport, pace)
        verdicts[key] = None
        port, tls = served.ports[transport], served.tls(transport)
        async with free:
            try:
                async with connected(port, tls) as peer:
                    await play(row, peer, token, piecewise=pace == PACES[1], pause_s=PAUSE_S)
                await good_call(port, tls)
                await check_arrivals(row, memory_budget.arrivals[token])
            except (AssertionError, OSError, TimeoutError) as error:
                verdicts[key] = error

    async with raw_backend(memory_budget.script) as backend:
        backends = [{"name": "only", "grpc": backend.target}]
        sections["limits"] = {"max_concurrent_streams": 100, **sections.get("limits", {})}
        async with (
            serving(folder, backends, **sections) as served,
            asyncio.TaskGroup() as tasks,
        ):
            for row in rows:
                for transport in transports:
                    for pace in paces:
                        tasks.create_task(judge(served, row, transport, pace))
    return verdicts


def wanted_ids(request: pytest.FixtureRequest) -> set[str]:
    """What the tests of a module that run ask for by their parameter `id_`."""
    return {
        item.callspec.params["id_"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and "id_" in getattr(getattr(item, "callspec", None), "params", ())
    }


def play_wanted(
    request: pytest.FixtureRequest,
    factory: pytest.TempPathFactory,
    rows: Iterable[Row],
    **sections: Any,
) -> Verdicts:
    """Play the rows that the tests of a module ask for, once for all; see `play_all`."""
    wanted = wanted_ids(request)
    chosen = [row for row in rows if row.id in wanted]
    return asyncio.run(play_all(factory.mktemp("corpus"), chosen, **sections))


def raise_flaw(row: Row, flaw: BaseException | None) -> None:
    """Fail with what was wrong with a row."""
    if flaw is not None:
        raise AssertionError(f"{row}: {flaw}") from flaw
