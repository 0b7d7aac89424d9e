from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lb.control import configurations
from lb.control.configurations import ConfigurationReader
from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord, Member
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelEntry, ModelState
from lb.domain.outcome import Outcome
from lb.health.configurations import ConfigurationBook
from lb.health.models import ModelList, Version
from lb.kserve.configuration import Configuration
from lb.net.ask.backend_client import BackendClient
from lb.net.tasks import TaskOwner
from tests.fakes.backends import make_spec
from tests.wire.waiting import eventually

M, N = (b"m", b"1"), (b"n", b"1")


class Scripted(Questions):
    """Answers with a number by backend and model; None is no answer."""

    def __init__(self) -> None:
        super().__init__(BackendClient())
        self.digests: dict[tuple[str, bytes], int | None] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.gate: asyncio.Event | None = None

    async def configuration(self, record: BackendRecord, version: Version) -> Configuration:
        key = (record.backend.name, version[0])
        self.asked.append(key)
        digest = self.digests.get(key, -1)
        if self.gate is not None:
            await self.gate.wait()
        if digest is None:
            raise UpstreamError(Outcome.DEADLINE, "no answer")
        if digest < 0:
            raise NotOffered("restricted")
        return Configuration(digest, "{}")


class Bench:
    def __init__(self) -> None:
        self.questions = Scripted()
        self.book = ConfigurationBook()
        self.changed: list[tuple[str, Version]] = []
        self.now = 100.0
        self.reader = ConfigurationReader(
            self.questions,
            self.book,
            lambda record, version: self.changed.append((record.backend.name, version)),
            lambda: self.now,
        )

    def record(self, name: str, **models: int | None) -> BackendRecord:
        """One that configures models like that."""
        record = BackendRecord(Member(make_spec(name)), 100.0)
        entries = [ModelEntry(each.encode(), b"1", ModelState.READY) for each in models]
        record.models.listed(ModelList(entries), 100.0)
        for model, digest in models.items():
            self.questions.digests[name, model.encode()] = digest
        self.reader.read(record)
        return record

    def known(self, *records: BackendRecord) -> list[int | None]:
        return [self.book.digest(each.backend, M) for each in records]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "_PAUSE_S", 0.0)


@asynccontextmanager
async def reading() -> AsyncIterator[Bench]:
    bench, tasks = Bench(), TaskOwner()
    tasks.spawn(bench.reader.run(), name="reader")
    try:
        yield bench
    finally:
        await tasks.aclose()


async def test_what_several_have_is_read_from_each_once() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1, n=3), bench.record("b", m=2)
        await eventually(lambda: bench.known(a, b) == [1, 2])
        assert bench.book.differing.keys() == {M}
        c = bench.record("c", n=3)
        await eventually(lambda: bench.book.digest(c.backend, N) == 3)
        await eventually(lambda: bench.book.digest(a.backend, N) == 3)
        assert sorted(bench.questions.asked) == [("a", b"m"), ("a", b"n"), ("b", b"m"), ("c", b"n")]


async def test_what_one_alone_has_is_not_read() -> None:
    async with reading() as bench:
        bench.record("a", n=1)
        a, b = bench.record("b", m=1), bench.record("c", m=1)
        await eventually(lambda: bench.known(a, b) == [1, 1])
        assert ("a", b"n") not in bench.questions.asked


async def test_who_comes_back_is_read_anew() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1), bench.record("b", m=1)
        await eventually(lambda: bench.known(a, b) == [1, 1])
        bench.book.forget(b.backend, lambda _: True)  # as when its ports close
        bench.questions.digests["b", b"m"] = 2
        bench.reader.read(b, anew=True)
        await eventually(lambda: bench.known(a, b) == [1, 2])


async def test_what_a_call_may_have_changed_is_read_again() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1), bench.record("b", m=1)
        await eventually(lambda: bench.known(a, b) == [1, 1])
        bench.questions.digests["b", b"m"] = 2
        bench.reader.forget(b"m", (b.backend,))
        bench.reader.read(b)
        await eventually(lambda: bench.known(a, b) == [1, 2])


async def test_what_is_refused_is_not_asked_for_for_ever() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=-1), bench.record("b", m=-1)
        await eventually(lambda: len(bench.questions.asked) >= 2)
        c, d = bench.record("c", n=1), bench.record("d", n=1)
        await eventually(lambda: None not in [bench.book.digest(r.backend, N) for r in (c, d)])
        assert bench.known(a, b) == [None, None]
        assert sum(model == b"m" for _, model in bench.questions.asked) <= 4


async def test_all_is_read_again_after_a_while() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1), bench.record("b", m=1)
        await eventually(lambda: bench.known(a, b) == [1, 1])
        bench.questions.digests["b", b"m"] = 2
        bench.now += 1801
        bench.reader.read(a)
        await eventually(lambda: bench.known(a, b) == [1, 2])
        assert bench.changed == [("b", M)]


async def test_who_gives_no_answer_is_asked_again_later() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1), bench.record("b", m=None)
        await eventually(lambda: ("b", b"m") in bench.questions.asked)
        bench.questions.digests["b", b"m"] = 1
        bench.now += 61
        bench.reader.read(a)
        await eventually(lambda: bench.known(a, b) == [1, 1])


async def test_what_was_asked_for_before_a_change_is_no_news() -> None:
    async with reading() as bench:
        bench.questions.gate = asyncio.Event()
        a, b = bench.record("a", m=1), bench.record("b", m=1)
        await eventually(lambda: len(bench.questions.asked) == 1)
        bench.reader.forget(b"m", [a.backend, b.backend])
        bench.questions.digests = {("a", b"m"): 2, ("b", b"m"): 2}
        bench.questions.gate.set()
        await eventually(lambda: bench.known(a, b) == [2, 2])
        assert bench.changed == []


async def test_who_leaves_is_forgotten() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1), bench.record("b", m=2)
        await eventually(lambda: bench.known(a, b) == [1, 2])
        bench.reader.leave(b)
        assert bench.book.count == 1
        assert not bench.book.differing


async def test_what_is_not_ready_any_more_is_forgotten() -> None:
    async with reading() as bench:
        a, b = bench.record("a", m=1, n=1), bench.record("b", m=2, n=1)
        await eventually(lambda: bench.book.count == 4)
        b.models.listed(ModelList([ModelEntry(b"n", b"1", ModelState.READY)]), 101.0)
        bench.reader.read(b)
        await eventually(lambda: bench.known(a, b) == [1, None])
        assert not bench.book.differing
