"""Every row of the HTTP/1.1 corpus against the process: plain and TLS, at once and by bytes.

A backend reads what is forwarded with two other parsers. After each row another client, on a
connection of its own, must get its own answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.corpus.http1 import ALL, DEVIATIONS
from tests.corpus.http1_play import Stage, play_all
from tests.corpus.observer import observing_backend
from tests.corpus.serving import serving
from tests.fakes.tls import World

_GROUPS = tuple(dict.fromkeys(row.id.split("-")[0] for row in ALL))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("corpus")
    world = World(folder)
    async with observing_backend() as (port, memory_budget):
        backends = [{"name": "only", "http": f"127.0.0.1:{port}", "health": {"probe": "tcp"}}]
        async with serving(folder, backends, world) as balancer:
            stage = Stage(balancer, memory_budget, world.client_context("http/1.1"))
            yield stage
            await stage.check_idle()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("bytewise", [False, True], ids=["at once", "by bytes"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("group", _GROUPS)
async def test_corpus_gets_its_answer(
    stage: Stage, group: str, secure: bool, bytewise: bool
) -> None:
    rows = [row for row in ALL if row.id.split("-")[0] == group]
    await play_all(stage, rows, secure=secure, bytewise=bytewise)


def test_rows_have_their_own_ids_and_sources() -> None:
    assert len({row.id for row in ALL}) == len(ALL)
    assert all(row.source for row in ALL)
    assert set(DEVIATIONS) <= {row.id for row in ALL}
    assert all(DEVIATIONS.values())
