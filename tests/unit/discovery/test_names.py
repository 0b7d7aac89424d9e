from __future__ import annotations

import asyncio

from lb.discovery.names import NameWatch, resolve_by_system
from lb.net.tasks import TaskOwner


class Bench:
    """Two names whose addresses a test sets."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.found: dict[str, frozenset[str] | None] = {"a": frozenset("1"), "b": frozenset("2")}
        self.hosts = {"a", "b"}
        self.changed: list[str] = []
        self.asked: list[str] = []
        self.watch = NameWatch(
            lambda: self.hosts, self.changed.append, interval_s=interval_s, resolve=self._resolve
        )

    async def _resolve(self, host: str) -> frozenset[str] | None:
        self.asked.append(host)
        return self.found[host]

    async def resolve(self) -> list[str]:
        await self.watch.resolve()
        told, self.changed[:] = list(self.changed), []
        return told


async def test_a_name_that_leads_elsewhere_is_told_once() -> None:
    bench = Bench()
    assert await bench.resolve() == []
    bench.found["a"] = frozenset("13")
    assert await bench.resolve() == ["a"]
    assert await bench.resolve() == []


async def test_a_name_that_cannot_be_resolved_is_where_it_was() -> None:
    bench = Bench()
    await bench.resolve()
    for found, told in ((None, []), (frozenset("1"), []), (None, []), (frozenset("4"), ["a"])):
        bench.found["a"] = found
        assert await bench.resolve() == told


async def test_names_that_are_of_no_use_any_more_are_forgotten() -> None:
    bench = Bench()
    await bench.resolve()
    bench.hosts = {"b"}
    await bench.resolve()
    bench.hosts = {"a", "b"}
    bench.found["a"] = frozenset("5")
    assert await bench.resolve() == []
    assert bench.asked == ["a", "b", "b", "a", "b"]


async def test_nothing_is_looked_up_where_that_is_off() -> None:
    bench = Bench(interval_s=0.0)
    assert await bench.resolve() == []
    assert bench.asked == []


async def test_it_goes_on_looking() -> None:
    rounds = asyncio.Semaphore(0)

    def hosts() -> list[str]:
        rounds.release()
        return []

    owner = TaskOwner()
    owner.spawn(NameWatch(hosts, print, interval_s=0.001).run(), name="names")
    async with asyncio.timeout(30):
        for _ in range(3):
            await rounds.acquire()
    await owner.aclose()


async def test_the_system_knows_this_host_and_not_all_names() -> None:
    found = await resolve_by_system("localhost")
    assert found is not None
    assert found & {"127.0.0.1", "::1"}
    assert await resolve_by_system("a..b") is None
