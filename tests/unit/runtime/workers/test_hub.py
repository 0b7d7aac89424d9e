"""What workers know that the control process does not, since it was started again."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from lb.control.backend_registry import ENDED_AT_ONCE
from lb.domain.backend import AdminState, Backend, Histogram
from lb.runtime.logs import Logs
from lb.runtime.predecessor import line
from lb.runtime.sequence_news import Questions
from lb.runtime.wiring import LoadBalancer
from lb.runtime.workers import hub as hub_module
from lb.runtime.workers.hub import Hub
from lb.runtime.workers.seat import CONTROL, Seat
from lb.settings.backends import BackendSettings
from lb.settings.model import Settings
from tests.wire.waiting import WAIT_S, eventually

_VARIANTS = [{"name": name, "model": name, "weight": 50} for name in ("stable", "canary")]
_SETTINGS = Settings.model_validate(
    {
        "listen": {"http": "127.0.0.1:0"},
        "backends": [{"name": "a", "http": "127.0.0.1:1"}],
        "models": {
            "m": {
                "variants": _VARIANTS,
                "ramp": {"to": 60, "over": "1h"},
                "rollback": {"errors": "2x", "min_requests": 1000},
            }
        },
    }
)
_RERUNS = ["reruns", "count"]


class Control:
    """A control process that is started again."""

    def __init__(self, counts: list[list[Any]]) -> None:
        self.logs = Logs(_SETTINGS)
        self.balancer = LoadBalancer(_SETTINGS, self.logs)
        self.listening, self.channel = (socket.socket(socket.AF_UNIX) for _ in range(2))
        self.listening.bind("")
        self.listening.listen()
        self.address = self.listening.getsockname().decode()
        self.seat = Seat(
            role=CONTROL, index=-1, count=2, start=2, settings=_SETTINGS, digest="", identity=b"a",
            hub="", token="token", operator={}, is_next=False, gave_way=False, counts=counts,
            listeners=(), board=-1, hub_socket=self.listening, channel=self.channel,
        )  # fmt: skip
        self.kept: list[list[Any]] = []
        """What the supervisor keeps for the next one."""
        self.hub = Hub(self.seat, self.balancer, self._keep)

    @property
    def backend(self) -> Backend:
        """Its record of the only backend."""
        return self.balancer.control.directory.find("a").backend

    def _keep(self) -> None:
        self.kept = json.loads(json.dumps(self.hub.absent_counts()))

    @property
    def reruns(self) -> int:
        """One of the counters that it shows."""
        return self.balancer.relay.dispatcher.reruns.count

    async def meet(self, index: int, start: int = 1) -> Worker:
        """A worker connects, and is told what there is."""
        reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 20)
        hello = {"token": "token", "index": index, "start": start, "pid": os.getpid()}
        writer.write(line("hello", hello))
        worker = Worker(reader, writer)
        await worker.hears("pool")
        return worker

    async def aclose(self) -> None:
        self.hub.close()
        await self.balancer.aclose()
        self.logs.close()
        self.channel.close()
        self.listening.close()


class Worker:
    """The worker's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def hears(self, event: str) -> Any:
        """The value of the next message of a kind."""
        while event not in (message := await self.hears_next()):
            pass
        return message[event]

    async def hears_next(self) -> dict[str, Any]:
        """The next message."""
        message: dict[str, Any] = json.loads(await self._reader.readline())
        return message

    def say(self, event: str, value: Any) -> None:
        self._writer.write(line(event, value))

    def tell(self, rows: list[list[Any]]) -> None:
        """Tell counts, and that the first snapshot is followed."""
        self._writer.write(line("counts", rows) + line("follows", 1))

    def leave(self) -> None:
        self._writer.close()


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    made = Control([])
    yield made
    await made.aclose()


async def test_counts_are_complete_when_all_workers_have_told_theirs(control: Control) -> None:
    await control.hub.start()
    asked = asyncio.create_task(control.hub.counts_told())
    workers = [await control.meet(0), await control.meet(1)]
    workers[0].tell([[_RERUNS, 3]])
    await eventually(lambda: control.reruns == 3)
    assert not asked.done()
    workers[1].tell([[_RERUNS, 4]])
    assert await asked
    assert control.reruns == 7
    for worker in workers:
        worker.leave()


async def test_workers_that_never_come_are_not_waited_for(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_TOLD_S", 0.01)
    assert not await control.hub.counts_told()  # none is let in yet
    await control.hub.start()
    async with asyncio.timeout(30):
        while not await control.hub.counts_told():
            pass


async def test_the_first_control_process_waits_for_no_counts(control: Control) -> None:
    seat = replace(control.seat, start=1)
    assert await Hub(seat, control.balancer, lambda: None).counts_told()


async def test_counts_of_workers_that_have_ended_outlive_the_control_process(
    control: Control,
) -> None:
    await control.hub.start()
    for start in (1, 2, 3):  # the last one dies too, and its next process is met only later
        worker = await control.meet(0, start)
        worker.tell([[_RERUNS, start], [["backend", 0, "lost_requests"], 2], [["held"], 5]])
        await eventually(lambda: control.balancer.relay.memory_budget.held == 5)
        worker.leave()
        await eventually(lambda: control.balancer.relay.memory_budget.held == 0)
    following = Control(control.kept)
    try:
        await following.hub.start()
        assert following.reruns == 6
        assert following.backend.lost_requests == 6
        assert following.balancer.relay.memory_budget.held == 0
        (await following.meet(0, 3)).leave()  # it lives after all
        worker = await following.meet(0, 4)
        worker.tell([[_RERUNS, 1]])
        await eventually(lambda: following.reruns == 7)
        worker.leave()
    finally:
        await following.aclose()


_OPEN = ["m", 1, "a", 60.0]
_OVER = ["m", 1, "", 0.0]


def used(seconds_ago: float, row: list[Any] = _OPEN) -> list[Any]:
    """A row of a sequence that had its last step so long ago."""
    return [*row, time.monotonic() - seconds_ago]


async def test_open_sequences_that_workers_know_are_known_to_all_and_count(
    control: Control,
) -> None:
    await control.hub.start()
    one, other = await control.meet(0), await control.meet(1)
    known = [used(1.0), used(1.0, ["m", 2, "gone", 60.0])]
    one.say("open_sequences", known)
    assert await other.hears("sequences") == known
    assert control.backend.open_sequences == 1
    other.say("open_sequences", [used(2.0)])  # it has heard of it, and tells all that it knows
    one.say("news", [["sequences", [["m", 3, "a", 60.0]]]])
    assert await other.hears("sequences") == [["m", 3, "a", 60.0]]
    other.say("news", [["sequences", [_OVER]]])
    assert await one.hears("sequences") == [_OVER]
    assert control.backend.open_sequences == 1
    for worker in (one, other):
        worker.leave()


async def test_a_sequence_that_has_ended_is_not_opened_again_by_who_has_not_heard_of_it(
    control: Control,
) -> None:
    await control.hub.start()
    one, other = await control.meet(0), await control.meet(1)
    one.say("news", [["sequences", [_OVER]]])
    assert await other.hears("sequences") == [_OVER]
    other.say("open_sequences", [used(1.0)])
    assert await other.hears("sequences") == [_OVER]
    assert control.backend.open_sequences == 0
    one.say("news", [["sequences", [_OPEN]]])  # it begins anew
    assert await other.hears("sequences") == [_OPEN]
    other.say("open_sequences", [used(2.0)])
    one.say("follows", 1)
    other.say("follows", 1)
    assert await control.hub.counts_told()
    assert control.backend.open_sequences == 1
    for worker in (one, other):
        worker.leave()


async def test_an_end_that_a_dead_control_process_has_not_passed_on_is_heard_of(
    control: Control,
) -> None:
    await control.hub.start()
    one, other = await control.meet(0), await control.meet(1)
    known = [used(2.0)]
    one.say("open_sequences", known)
    assert await other.hears("sequences") == known
    ended = used(1.0, ["m", 1])
    other.say("ended", [ended])
    over = [[*_OVER, ended[-1]]]
    assert await one.hears("sequences") == over
    assert await other.hears("sequences") == over  # it was told that the sequence is open
    assert control.backend.open_sequences == 0
    for worker in (one, other):
        worker.leave()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_sequence_that_began_again_after_its_end_goes_on(
    control: Control, is_first: bool
) -> None:
    await control.hub.start()
    one, other = await control.meet(0), await control.meet(1)
    ended, known = [used(2.0, ["m", 1])], [used(1.0)]
    if is_first:
        other.say("ended", ended)
        assert await other.hears("sequences") == [[*_OVER, ended[0][-1]]]
    one.say("open_sequences", known)
    assert await other.hears("sequences") == known
    if not is_first:
        other.say("ended", ended)
    other.say("news", [["sequences", [["m", 2, "", 0.0]]]])
    while await one.hears("sequences") != [["m", 2, "", 0.0]]:
        pass
    assert control.backend.open_sequences == 1
    for worker in (one, other):
        worker.leave()


async def test_a_question_is_answered_behind_what_other_workers_had_told(
    control: Control,
) -> None:
    """However much of that was not read yet."""
    await control.hub.start()
    one, other = await control.meet(0), await control.meet(1)
    for worker in (one, other):
        worker.say("follows", 1)
    other.say("news", [["sequences_asked", 7]])
    number = await one.hears("sequences_asked")
    one.say("news", [["sequences", [_OPEN]], ["sequences_answered", number]])
    assert await other.hears("sequences") == [_OPEN]
    assert await other.hears("sequences_answered") == 7

    other.say("news", [["sequences_asked", 8]])
    await one.hears("sequences_asked")
    one.leave()  # who has gone is not waited for
    assert await other.hears("sequences_answered") == 8
    other.say("news", [["sequences_asked", 9]])
    assert await other.hears("sequences_answered") == 9  # there is nobody else
    other.leave()


async def test_a_question_waits_for_workers_that_have_not_come_back(control: Control) -> None:
    await control.hub.start()
    asking = await control.meet(1)
    asking.say("follows", 1)
    asking.say("news", [["sequences_asked", 7]])
    late = await control.meet(0)
    known = [used(1.0)]
    late.say("open_sequences", known)
    late.say("follows", 1)
    late.say("news", [["sequences_answered", await late.hears("sequences_asked")]])
    assert await asking.hears("sequences") == known
    assert await asking.hears("sequences_answered") == 7
    for worker in (asking, late):
        worker.leave()


async def test_other_services_are_asked_once_they_can_answer(control: Control) -> None:
    before: list[tuple[str, Any]] = []
    following: list[tuple[str, Any]] = []
    hub = control.hub
    hub.tell_service("before", lambda *message: before.append(message))
    starting = asyncio.create_task(hub.start())
    await eventually(lambda: before == [("sequences_asked", 1)])
    assert not starting.done(), "nobody is served before all is known"
    hub.hear_service("before", "sequences", [_OPEN])
    hub.hear_service("before", "sequences_answered", 1)
    await starting
    assert control.backend.open_sequences == 1

    hub.tell_service("next", lambda *message: following.append(message))
    assert following == [("sequences_asked", 1)]
    worker, other = await control.meet(0), await control.meet(1)
    for each in (worker, other):
        each.say("follows", 1)
    assert await control.hub.counts_told()
    other.leave()
    await eventually(lambda: control.hub.connected == 1)
    worker.say("news", [["sequences_asked", 1]])
    await eventually(lambda: before[1:] == [("sequences_asked", 2)])
    hub.hear_service("before", "sequences_answered", 2)
    assert await worker.hears("sequences_answered") == 1  # the next one still starts

    hub.hear_service("next", "sequences_asked", 5)
    assert before[2:] == [("sequences_asked", 3)]
    hub.hear_service("before", "sequences_answered", 3)
    number = await worker.hears("sequences_asked")
    assert following[1:] == []
    worker.say("news", [["sequences_answered", number]])
    await eventually(lambda: following[1:] == [("sequences_answered", 5)])
    worker.leave()


async def test_one_question_is_under_way_at_a_time() -> None:
    sent: list[int] = []
    questions = Questions(sent.append)
    first, second, third = (questions.ask() for _ in range(3))
    assert sent == [1]
    assert second is third is not first
    questions.answered(1)
    assert (first.is_over, second.is_over, sent) == (True, False, [1, 2])
    questions.answered(1)
    assert not second.is_over
    questions.answered(2)
    assert second.is_over
    fourth, fifth = questions.ask(), questions.ask()
    questions.close()
    assert fourth.is_over
    assert fifth.is_over
    assert sent == [1, 2, 3]


async def test_answers_to_what_of_a_model_runs_are_forgotten_when_nobody_asks_any_more(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.hub.start()
    worker = await control.meet(0)
    control.hub.model_use(control.backend, b"m")
    worker.say("news", [["use", [[*each, 4] for each in await worker.hears("use")]]])
    link = control.hub._links[0]
    await eventually(lambda: link.used == {(0, "m"): (4, ANY)})
    monkeypatch.setattr(hub_module, "_ASKED_S", 0.0)
    await eventually(lambda: link.used == {})
    worker.leave()


_DUE = 3
"""Where a row of the states of backends says how many good answers are to be told of."""


async def test_good_answers_are_asked_for_again_when_a_worker_has_told_of_all(
    control: Control,
) -> None:
    await control.hub.start()
    worker = await control.meet(0)
    passive, backend = control.balancer.control.directory.passive, control.backend
    async with asyncio.timeout(WAIT_S):
        for _ in range(5):
            passive.judge([backend], time.monotonic())
            while (due := (await worker.hears("states"))[0][_DUE]) == 0:
                pass
            report = ["report", ["answered", 0, "m", 0.01, time.monotonic()]]
            worker.say("news", [report] * due)
            await eventually(lambda: backend.reports_due == 0)
    worker.leave()


async def test_all_backends_that_are_removed_at_once_are_cut_before_workers_forget_them(
    control: Control,
) -> None:
    role = control.balancer.control
    role.directory.put_off = asyncio.get_running_loop().call_soon
    more = [
        BackendSettings.model_validate({"name": f"b{port}", "http": f"127.0.0.1:{port}"})
        for port in range(2, 2 * ENDED_AT_ONCE)
    ]
    role.membership.configure([*_SETTINGS.backends, *more], _SETTINGS.health)
    await control.hub.start()
    worker = await control.meet(0)
    numbers = {each.name: number for number, each in control.hub._numbers.items()}
    role.membership.configure(_SETTINGS.backends, _SETTINGS.health)
    cut = set()
    async with asyncio.timeout(WAIT_S):
        while "pool" not in (message := await worker.hears_next()):
            cut |= {message[event] for event in message if event == "cut"}
    assert [number for number, _ in message["pool"]["backends"]] == [numbers.pop("a")]
    assert cut == set(numbers.values())
    worker.leave()


async def test_what_a_draining_backend_does_not_finish_in_time_is_cut_in_workers(
    control: Control,
) -> None:
    await control.hub.start()
    worker, directory = await control.meet(0), control.balancer.control.directory
    now = time.monotonic()
    control.backend.in_flight += 1
    directory.set_admin("a", AdminState.DRAINING, now, limit_s=1.0)
    directory.check(now + 1.1)
    async with asyncio.timeout(WAIT_S):
        assert await worker.hears("cut") == 0
    worker.leave()


def shares(message: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """What has changed shares, and which they are."""
    return message["m"]["changed"], message["m"]["percents"]


async def test_variants_are_judged_by_the_requests_of_all_workers(control: Control) -> None:
    await control.hub.start()
    workers = [await control.meet(0), await control.meet(1)]
    book = control.balancer.relay.dispatcher.variants
    for _ in range(12):  # none of the two has had enough requests
        for worker in workers:
            recent = {"stable": [40, 0, [0.01] * 40, []], "canary": [40, 40, [], []]}
            worker.say("news", [["variants", {"m": recent}]])
            worker.say("queue", {"queues": [], "backends": [], "unplaced": 1})
        await eventually(lambda: control.hub.queued() == 2)
        for worker in workers:
            worker.say("queue", {"queues": [], "backends": [], "unplaced": 0})
        await eventually(lambda: control.hub.queued() == 0)
        book.check()
    rolled_back = ("rollback", {"stable": 100.0, "canary": 0.0})
    for worker in workers:
        while shares(await worker.hears("variants")) != rolled_back:
            pass
    (canary,) = [each for each in book.statuses() if each.variant == "canary"]
    assert canary.rollbacks == {"errors": 1}
    assert canary.why.startswith("canary: ")
    workers[0].say("applied", "digest")  # its shares were those of the file for a moment
    assert shares(await workers[0].hears("variants")) == rolled_back
    book.reset("m")
    for worker in workers:
        assert shares(await worker.hears("variants"))[1]["canary"] == pytest.approx(50, abs=0.1)
        worker.leave()


async def test_answers_of_variants_are_added_up(control: Control) -> None:
    await control.hub.start()
    workers = [await control.meet(0), await control.meet(1)]
    at = ["variants", "m", "canary"]
    times = [0.5, *[0] * len(Histogram().counts)]
    times[3] = 2
    for worker in workers:
        worker.say(
            "counts", [[[*at, "answers"], 3], [[*at, "errors"], 1], [[*at, "durations"], times]]
        )
    book = control.balancer.relay.dispatcher.variants

    def canary() -> Any:
        return next(each for each in book.statuses() if each.variant == "canary")

    await eventually(lambda: canary().answers == 6)
    assert (canary().errors, canary().durations.sum) == (2, 1.0)
    workers[0].say("counts", [[[*at, "answers"], 1]])  # a reload has made the variant anew there
    await eventually(lambda: canary().answers == 7)
    for worker in workers:
        worker.leave()
