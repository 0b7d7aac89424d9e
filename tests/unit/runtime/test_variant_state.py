"""Shares of variants outlive the process in a file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from lb.domain.pool import PoolRef
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.proxy.variants import NameRules, VariantBook, VariantOptions, VariantRules
from lb.runtime.variant_state import VariantState
from tests.fakes.backends import make_backend
from tests.fakes.relay import snapshot_of
from tests.wire.waiting import eventually

NAME = b"detector"


class Process:
    """As much of one as keeps shares."""

    def __init__(self, path: Path, ramp: tuple[float, float] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.timers, self.tasks = TimerWheel(loop), TaskOwner()
        self.book = VariantBook(PoolRef(snapshot_of([make_backend()])), loop.time)
        variants = (
            VariantRules(name="stable", model=b"detector", weight=95),
            VariantRules(name="canary", model=b"detector_v2", weight=5),
        )
        rules = NameRules(variants=variants, ramp=ramp)
        self.book.configure(VariantOptions(names={NAME: rules}))
        self.state = VariantState(self.book, self.timers, self.tasks)
        self.state.configure(str(path))

    @property
    def percents(self) -> list[float]:
        return self.book.sets[NAME].percents

    async def close(self) -> None:
        self.timers.close()
        await self.tasks.aclose()


async def test_what_an_operator_set_holds_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    first = Process(file)
    assert not file.exists()
    first.book.sets[NAME].set_shares({"canary": 20})
    await eventually(lambda: file.exists() and "20" in file.read_text())
    await first.close()
    assert list(json.loads(file.read_text())) == ["variants"]
    second = Process(file)
    assert second.percents == [80, 20]
    second.book.reset("detector")
    await eventually(lambda: "20" not in file.read_text())
    await second.close()
    third = Process(file)
    assert third.percents == [95, 5]
    await third.close()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"variants": 7}', '{"variants": {"detector": 1}}']
)
async def test_a_broken_file_is_told_and_does_no_harm(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    process = Process(file)
    assert process.percents == [95, 5]
    assert "cannot be read" in caplog.text
    await process.close()


async def test_a_file_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(tmp_path / "nowhere" / "state.json")
    process.book.sets[NAME].set_shares({"canary": 20})
    await eventually(lambda: "cannot be written" in caplog.text)
    await process.close()


async def test_what_could_not_be_written_is_written_once_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "nowhere" / "state.json"
    process = Process(file)
    process.book.sets[NAME].set_shares({"canary": 20})
    await eventually(lambda: "cannot be written" in caplog.text)
    file.parent.mkdir()
    await eventually(lambda: file.exists() and "20" in file.read_text())
    assert caplog.text.count("cannot be written") == 1
    await process.close()


async def test_a_fifo_in_the_place_of_the_file_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "state.json"
    os.mkfifo(file)
    process = Process(file)
    assert "cannot be read" in caplog.text
    process.book.sets[NAME].set_shares({"canary": 20})
    await eventually(lambda: "cannot be written" in caplog.text)
    assert file.is_fifo()
    await process.close()
