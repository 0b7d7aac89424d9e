from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lb.control.facts import FactsKeeper
from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord, Member
from lb.domain.model import ModelEntry, ModelFacts, ModelState
from lb.health.models import ModelList, Version
from lb.kserve.facts import Configured
from lb.net.ask.backend_client import BackendClient
from lb.net.tasks import TaskOwner
from tests.fakes.backends import make_spec
from tests.wire.waiting import eventually, soon

STATELESS, STATEFUL = ModelFacts(is_stateful=False), ModelFacts(is_stateful=True, idle_s=5.0)


class Scripted(Questions):
    """Answers from a table, and counts what is under way."""

    def __init__(self) -> None:
        super().__init__(BackendClient())
        self.configs: dict[bytes, Configured] = {}
        self.asked: list[tuple[str, Version]] = []
        self.under_way = self.most = 0

    async def config(self, record: BackendRecord, version: Version) -> Configured:
        self.asked.append((record.backend.name, version))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if version[0] not in self.configs:
            raise NotOffered("restricted")
        return self.configs[version[0]]


class Bench:
    def __init__(self) -> None:
        self.questions = Scripted()
        self.tasks = TaskOwner()
        self.published: list[Mapping[bytes, ModelFacts]] = []
        self.now = 100.0
        self.keeper = FactsKeeper(
            self.questions, self.tasks, self.published.append, lambda: self.now
        )

    def record(self, *models: bytes, name: str = "a") -> BackendRecord:
        record = BackendRecord(Member(make_spec(name)), 100.0)
        record.models.listed(
            ModelList([ModelEntry(m, b"1", ModelState.READY) for m in models]), 100.0
        )
        return record

    async def idle(self) -> Mapping[bytes, ModelFacts]:
        await soon(self.keeper.idle.wait())
        return self.published[-1]


@asynccontextmanager
async def keeping(**configs: Configured) -> AsyncIterator[Bench]:
    bench = Bench()
    bench.questions.configs = {name.encode(): each for name, each in configs.items()}
    try:
        yield bench
    finally:
        await bench.tasks.aclose()


async def test_what_is_missing_is_read_once() -> None:
    async with keeping(m=Configured(STATEFUL), n=Configured(STATELESS)) as bench:
        record = bench.record(b"m", b"n")
        bench.keeper.read_missing(record)
        bench.keeper.read_missing(record)
        assert await bench.idle() == {b"m": STATEFUL, b"n": STATELESS}
        bench.keeper.read_missing(record)
        assert sorted(bench.questions.asked) == [("a", (b"m", b"1")), ("a", (b"n", b"1"))]


async def test_few_are_read_at_once() -> None:
    names = [f"m{at}" for at in range(100)]
    async with keeping(**dict.fromkeys(names, Configured(STATELESS))) as bench:
        bench.keeper.read_missing(bench.record(*(name.encode() for name in names)))
        assert len(await bench.idle()) == 100
        assert bench.questions.most == 4
        assert len(bench.published) <= 5


async def test_what_is_told_to_be_read_is_read_again() -> None:
    async with keeping(m=Configured(STATELESS)) as bench:
        bench.keeper.read_missing(bench.record(b"m"))
        await bench.idle()
        bench.questions.configs[b"m"] = Configured(STATEFUL)
        bench.keeper.read(bench.record(b"m", name="b"), [(b"m", b"1")])
        assert await bench.idle() == {b"m": STATEFUL}
        assert bench.questions.asked[-1][0] == "b"


async def test_what_others_have_said_as_well_is_not_published_again() -> None:
    async with keeping(m=Configured(STATELESS)) as bench:
        bench.keeper.read_missing(bench.record(b"m"))
        await bench.idle()
        published = len(bench.published)
        bench.keeper.read(bench.record(b"m", name="b"), [(b"m", b"1")])
        assert await bench.idle() == {b"m": STATELESS}
        assert bench.questions.asked[-1][0] == "b"
        assert len(bench.published) == published


async def test_what_cannot_be_read_is_unknown_and_asked_for_later() -> None:
    async with keeping() as bench:
        record = bench.record(b"m")
        bench.keeper.read_missing(record)
        assert (await bench.idle())[b"m"].is_stateful is None
        bench.now += 59
        bench.keeper.read_missing(record)
        await bench.idle()
        assert len(bench.questions.asked) == 1
        bench.now += 2
        bench.questions.configs[b"m"] = Configured(STATELESS)
        bench.keeper.read_missing(record)
        assert await bench.idle() == {b"m": STATELESS}


async def test_a_version_that_is_not_read_yet_leaves_its_model_open() -> None:
    async with keeping(m=Configured(STATELESS)) as bench:
        bench.keeper.read_missing(bench.record(b"m"))
        await bench.idle()
        del bench.questions.configs[b"m"]
        bench.keeper.read(bench.record(b"m"), [(b"m", b"2")])
        assert (await bench.idle())[b"m"].is_stateful is None


async def test_models_that_nobody_lists_are_forgotten() -> None:
    async with keeping(m=Configured(STATELESS), n=Configured(STATELESS)) as bench:
        bench.keeper.read_missing(bench.record(b"m"))
        await bench.idle()
        bench.keeper.retain(frozenset({b"n"}), frozenset())
        bench.keeper.read_missing(bench.record(b"n"))
        assert await bench.idle() == {b"n": STATELESS}


async def test_versions_that_others_have_replaced_do_not_count_any_more() -> None:
    async with keeping(m=Configured(STATELESS), n=Configured(STATEFUL)) as bench:
        bench.keeper.read(bench.record(b"m"), [(b"m", b"1"), (b"lost", b"1"), (b"n", b"1")])
        await bench.idle()
        bench.questions.configs[b"lost"] = Configured(STATELESS)
        bench.keeper.read(bench.record(b"lost"), [(b"lost", b"2")])
        names = frozenset({b"m", b"n", b"lost"})
        bench.keeper.retain(names, frozenset({(b"m", b"1"), (b"lost", b"2")}))
        assert await bench.idle() == {b"m": STATELESS, b"n": STATEFUL, b"lost": STATELESS}


async def test_what_is_known_of_many_models_is_published_a_few_times() -> None:
    names = [f"m{at}" for at in range(3000)]
    async with keeping(**dict.fromkeys(names, Configured(STATELESS))) as bench:
        record = bench.record(*(name.encode() for name in names))
        bench.keeper.retain(record.models.names, record.models.ready)
        bench.keeper.read_missing(record)
        assert len(await bench.idle()) == 3000
        assert len(bench.published) < 25


async def test_names_that_are_replaced_again_and_again_are_read_a_few_each_second() -> None:
    async with keeping() as bench:
        keeper = bench.keeper

        def refresh(generation: int) -> None:
            """All models of the only backend have other names than before."""
            names = (f"m{generation}-{at}".encode() for at in range(2000))
            record = bench.record(*names)
            keeper.retain(record.models.names, record.models.ready)
            keeper.read_missing(record)

        async def asked(count: int) -> None:
            await eventually(lambda: len(bench.questions.asked) >= count)
            for _ in range(100):  # iterations in which readers without a limit would read on
                await asyncio.sleep(0)
            assert len(bench.questions.asked) == count

        refresh(0)
        await asked(2000)
        for generation in range(1, 6):
            bench.now += 2.0
            refresh(generation)
            # What was saved, then 20 for each second, and no names that nobody lists any more.
            await asked(2200 + 40 * (generation - 1))
        assert all(version[0].startswith(b"m5-") for version in keeper._wanted)
        assert len(keeper._wanted) <= 2000
