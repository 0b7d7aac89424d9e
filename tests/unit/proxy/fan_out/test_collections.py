"""Equal requests share a collection that has not begun."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address

import pytest

from lb.domain.client import key_of_client
from lb.net.tasks import TaskOwner
from lb.proxy.fan_out.collections import Collections
from lb.proxy.fan_out.question import Departure, FanOutReply, FanOutRequest
from tests.unit.proxy.fan_out.stage import http_question
from tests.wire.waiting import eventually

INDEX = http_question(b"POST", b"/v2/repository/index")
LIMIT = 10


class Bench:
    """Collections whose rounds end when the test says so."""

    def __init__(self) -> None:
        self.tasks = TaskOwner()
        self.collections = Collections(self.tasks, self._collect)
        self.begun: list[FanOutRequest] = []
        self.stopped = 0
        self._rounds: list[asyncio.Future[None]] = []

    async def _collect(self, question: FanOutRequest) -> FanOutReply:
        self.begun.append(question)
        number = len(self.begun)
        gate = asyncio.get_running_loop().create_future()
        self._rounds.append(gate)
        try:
            await gate
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return FanOutReply(status=200, body=b"%d" % number)

    def ask(self, question: FanOutRequest = INDEX) -> asyncio.Task[FanOutReply]:
        return asyncio.create_task(self.collections.ask(question, LIMIT))

    async def until_begun(self, count: int) -> None:
        await eventually(lambda: len(self.begun) == count)

    def end(self, number: int) -> None:
        """Have a round end, from 1."""
        self._rounds[number - 1].set_result(None)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        await made.tasks.aclose()
    assert len(made.collections) == 0


async def test_those_who_ask_at_once_share_one_round() -> None:
    async with bench() as at:
        asking = [at.ask() for _ in range(20)]
        await at.until_begun(1)
        at.end(1)
        assert {(await each).body for each in asking} == {b"1"}


@pytest.mark.parametrize(
    ("change", "is_shared"),
    [
        ({"target": b"/v2/repository/other"}, False),
        ({"body": b"{}"}, False),
        ({"fields": ((b"authorization", b"Bearer x"),)}, False),
        ({"fields": ((b"x-client", b"2"), (b"accept-encoding", b"gzip"))}, False),
        ({"fields": ((b"x-client", b"1"), (b"traceparent", b"00-1"), (b"user-agent", b"x"))}, True),
    ],
)
async def test_only_equal_requests_share(change: dict[str, object], is_shared: bool) -> None:
    async with bench() as at:
        asking = [at.ask(), at.ask(replace(INDEX, **change))]  # type: ignore[arg-type]
        count = 1 if is_shared else 2
        await at.until_begun(count)
        for number in range(count):
            at.end(number + 1)
        await asyncio.gather(*asking)


async def test_one_client_leaves_half_of_the_places_to_others() -> None:
    async with bench() as at:

        def asks(client: str, number: int) -> asyncio.Task[FanOutReply]:
            fields = ((b"x-number", b"%d" % number),)
            address = ip_address(client)
            return at.ask(replace(INDEX, fields=fields, client=key_of_client(address)))

        greedy = [asks("192.0.2.1", number) for number in range(LIMIT)]
        await at.until_begun(LIMIT // 2)
        others = [asks("192.0.2.2", 100), asks("2001:db8::1", 101)]
        await at.until_begun(LIMIT // 2 + 2)
        for number in range(LIMIT // 2 + 2):
            at.end(number + 1)
        statuses = [(await each).status for each in greedy]
        assert statuses == [200] * (LIMIT // 2) + [503] * (LIMIT // 2)
        assert [(await each).status for each in others] == [200, 200]


async def test_a_round_that_all_left_before_it_began_does_not_begin() -> None:
    async with bench() as at:
        first = at.ask()
        await at.until_begun(1)
        left = replace(INDEX, departure=Departure())
        waiting = at.ask(left)
        await asyncio.sleep(0)
        left.departure.happen()
        await waiting
        assert len(at.collections) == 1
        at.end(1)
        assert (await first).body == b"1"
        await asyncio.sleep(0)
        assert len(at.begun) == 1


async def test_who_asks_when_all_others_just_left_is_answered() -> None:
    async with bench() as at:
        for wait in (False, True):
            left = replace(INDEX, departure=Departure())
            gone = at.ask(left)
            if wait:
                await at.until_begun(2)
            else:
                await asyncio.sleep(0)
            left.departure.happen()
            await gone
            asking = at.ask()
            await eventually(lambda: len(at.begun) > 0 and not at._rounds[-1].done())
            at.end(len(at.begun))
            assert (await asking).status == 200


async def test_large_answers_are_given_to_one_client_in_each_loop_iteration() -> None:
    async def collect(_: FanOutRequest) -> FanOutReply:
        return FanOutReply(status=200, body=bytes(100_000))

    collections = Collections(TaskOwner(), collect)
    turns: list[int] = []
    turn = 0

    async def ask() -> None:
        await collections.ask(INDEX, LIMIT)
        turns.append(turn)

    asking = [asyncio.create_task(ask()) for _ in range(20)]
    while not all(each.done() for each in asking):
        await asyncio.sleep(0)
        turn += 1
    assert len(set(turns)) == 20


async def test_an_abandoned_round_leaves_nothing_to_the_garbage_collector() -> None:
    class Large(bytes):
        """What a backend said."""

    begun = asyncio.Event()

    async def collect(_: FanOutRequest) -> FanOutReply:
        answer = Large(10)
        begun.set()
        await asyncio.Event().wait()
        return FanOutReply(status=200, body=answer)

    tasks = TaskOwner()
    collections = Collections(tasks, collect)
    gc.collect()
    gc.disable()
    try:
        left = replace(INDEX, departure=Departure())
        asking = asyncio.create_task(collections.ask(left, LIMIT))
        await begun.wait()
        left.departure.happen()
        await asking
        await eventually(lambda: not len(tasks))
        await asyncio.sleep(0)
        assert Large not in [type(each) for each in gc.get_objects()]
    finally:
        gc.enable()
