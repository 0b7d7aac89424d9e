from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise

import pytest

from lb.discovery.follow import NEW_AT_ONCE, Followers
from lb.discovery.source import Entries, SourceError
from lb.settings.backends import BackendSettings
from tests.wire.waiting import eventually


def entries(*names: str) -> Entries:
    return tuple(
        BackendSettings.model_validate({"name": name, "http": "10.0.0.1:1"}) for name in names
    )


class Told:
    """A source that says what a test tells it."""

    def __init__(self, name: str, config: object = 1) -> None:
        self.name = name
        self.config = config
        self.news: asyncio.Queue[Entries | Exception] = asyncio.Queue()
        self.ended = False

    async def next(self) -> Entries:
        try:
            news = await self.news.get()
        except asyncio.CancelledError:
            self.ended = True
            raise
        if isinstance(news, Exception):
            raise news
        return news


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.found: dict[str, list[str]] = {}
        self.more_follow: list[bool] = []
        self.sizes: list[int] = []
        self.times: list[float] = []
        """When something was found, by the event loop's clock."""
        self.took_s = 0.0
        """What it takes to hear of that."""
        self.followers = Followers(self._found, clock=lambda: self.now)

    def _found(self, source: str, found: Entries, more_follow: bool) -> None:
        self.more_follow.append(more_follow)
        self.sizes.append(len(found))
        self.found[source] = [entry.spec().name for entry in found]
        self.times.append(asyncio.get_running_loop().time())
        self.now += self.took_s

    async def say(self, source: Told, news: Entries | Exception) -> None:
        """Let a source say something and wait until that was heard."""
        source.news.put_nowait(news)
        for _ in range(10):
            await asyncio.sleep(0)
        assert source.news.empty()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.followers.aclose()


async def test_every_set_is_handed_on_with_the_name_of_its_source(bench: Bench) -> None:
    one, two = Told("one"), Told("two")
    bench.followers.use([one, two])
    await bench.say(one, entries("a"))
    await bench.say(two, entries("b", "c"))
    assert bench.found == {"one": ["a"], "two": ["b", "c"]}
    await bench.say(one, entries())
    assert bench.found["one"] == []


async def test_very_many_new_backends_join_over_several_turns_of_the_loop(bench: Bench) -> None:
    source = Told("dns")
    bench.followers.use([source])
    turns: list[int] = []
    many = entries(*(f"b{number}" for number in range(1000)))
    source.news.put_nowait(many)
    while len(bench.found.get("dns", ())) < 1000:
        await asyncio.sleep(0)
        turns.append(len(bench.found.get("dns", ())))
    grown = [after - before for before, after in pairwise(turns)]
    assert max(grown) == NEW_AT_ONCE
    assert bench.found["dns"] == [f"b{number}" for number in range(1000)]
    # Those that stay are in every set, and what is left over joins at the end.
    bench.followers.most = 150
    source.news.put_nowait((*entries(*(f"c{number}" for number in range(1000))), *many[:10]))
    sizes = set()
    while len(bench.found["dns"]) != 1010:
        await asyncio.sleep(0)
        assert set(bench.found["dns"]) >= {f"b{number}" for number in range(10)}
        sizes.add(len(bench.found["dns"]))
    assert sizes - {1000} == {*range(10 + NEW_AT_ONCE, 160, NEW_AT_ONCE), 1010}


async def test_what_is_told_in_steps_says_so(bench: Bench) -> None:
    source = Told("dns")
    bench.followers.use([source])
    source.news.put_nowait(entries(*(f"b{number}" for number in range(2 * NEW_AT_ONCE + 1))))
    await eventually(lambda: len(bench.more_follow) == 3)
    assert bench.more_follow == [True, True, False]


async def test_a_source_with_other_settings_takes_nobody_out_that_it_still_finds(
    bench: Bench,
) -> None:
    many = entries(*(f"b{number}" for number in range(4 * NEW_AT_ONCE)))
    first, second = Told("dns"), Told("dns", config="other")
    bench.followers.use([first])
    await bench.say(first, many)
    bench.more_follow.clear()
    bench.followers.use([second])
    await bench.say(second, many)
    assert bench.more_follow == [False]
    assert len(bench.found["dns"]) == len(many)


async def test_a_source_that_was_replaced_amid_its_steps_is_followed_from_there(
    bench: Bench,
) -> None:
    many = entries(*(f"b{number}" for number in range(4 * NEW_AT_ONCE)))
    first, second = Told("dns"), Told("dns", config="other")
    bench.followers.use([first])
    await bench.say(first, many[: 2 * NEW_AT_ONCE])
    bench.took_s = 60.0  # so it does not come to its second step
    await bench.say(first, many)
    told = len(bench.found["dns"])
    assert told == 3 * NEW_AT_ONCE
    bench.sizes.clear()
    bench.followers.use([second])
    await bench.say(second, many)
    assert bench.sizes == [len(many)]


async def test_backends_that_join_later_leave_most_of_the_time_to_others(bench: Bench) -> None:
    source = Told("dns")
    bench.followers.use([source])
    await bench.say(source, entries("a"))
    bench.took_s = 0.02
    bench.times.clear()
    source.news.put_nowait(entries(*(f"b{number}" for number in range(2 * NEW_AT_ONCE + 1))))
    await eventually(lambda: len(bench.times) == 3)
    pauses = [later - earlier for earlier, later in pairwise(bench.times)]
    assert min(pauses) > 3.9 * bench.took_s


async def test_a_source_that_loses_its_cancellation_ends_with_its_answer(bench: Bench) -> None:
    class Deaf(Told):
        async def next(self) -> Entries:
            with suppress(asyncio.CancelledError):
                await super().next()
            return entries("late")

    one = Deaf("one")
    bench.followers.use([one])
    await asyncio.sleep(0)
    async with asyncio.timeout(4.0):
        await bench.followers.aclose()
    assert one.ended


async def test_a_failure_changes_nothing_and_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lb.discovery.follow")
    one = Told("one")
    bench.followers.use([one])
    await bench.say(one, entries("a"))
    for why in ("down", "down", "away"):
        await bench.say(one, SourceError(why))
    assert bench.found == {"one": ["a"]}
    (status,) = bench.followers.statuses()
    assert (status.failures, status.error, status.backends, status.age_s) == (3, "away", 1, 0.0)
    await bench.say(one, entries("a"))
    (status,) = bench.followers.statuses()
    assert (status.updates, status.error) == (2, "")
    assert [record.message for record in caplog.records] == [
        "source has found backends",
        "source does not say which backends there are",
        "source does not say which backends there are",
        "source says again which backends there are",
    ]


async def test_the_age_of_a_set_tells_how_long_a_source_has_failed(bench: Bench) -> None:
    one = Told("one")
    bench.followers.use([one])
    assert [status.age_s for status in bench.followers.statuses()] == [None]
    await bench.say(one, entries("a"))
    bench.now += 7
    await bench.say(one, SourceError("down"))
    assert [status.age_s for status in bench.followers.statuses()] == [7.0]


async def test_other_settings_disturb_only_the_sources_that_differ(bench: Bench) -> None:
    same, other, gone = Told("same"), Told("other"), Told("gone")
    bench.followers.use([same, other, gone])
    await bench.say(same, entries("a"))
    again, changed, new = Told("same"), Told("other", config=2), Told("new")
    bench.followers.use([new, again, changed])
    await asyncio.sleep(0)
    assert (same.ended, other.ended, gone.ended) == (False, True, True)
    await bench.say(same, entries("b"))
    await bench.say(changed, entries("c"))
    assert bench.found == {"same": ["b"], "other": ["c"]}
    assert [status.name for status in bench.followers.statuses()] == ["new", "same", "other"]


async def test_the_first_round_ends_when_all_have_answered_or_failed(bench: Bench) -> None:
    one, two = Told("one"), Told("two")
    bench.followers.use([one, two])
    one.news.put_nowait(entries("a"))
    two.news.put_nowait(SourceError("down"))
    await bench.followers.first_round(30.0)
    assert bench.found == {"one": ["a"]}


async def test_the_first_round_does_not_wait_for_ever(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Told("one"), Told("two")
    bench.followers.use([one, two])
    one.news.put_nowait(entries("a"))
    await bench.followers.first_round(0.01)
    (line,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert (line.message, vars(line)["sources"]) == ("not every source has answered", "two")


async def test_a_source_that_crashes_has_failed(bench: Bench) -> None:
    one = Told("one")
    bench.followers.use([one])
    await bench.say(one, RuntimeError("a bug"))
    (status,) = bench.followers.statuses()
    assert (status.failures, status.error) == (1, "internal error")


async def test_nothing_is_left_when_it_closes(bench: Bench) -> None:
    one = Told("one")
    bench.followers.use([one])
    await asyncio.sleep(0)
    await bench.followers.aclose()
    assert one.ended
    assert list(bench.followers.statuses()) == []
