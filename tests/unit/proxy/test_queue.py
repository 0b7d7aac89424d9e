"""Exchanges of scheduled models wait for their turn, and others for a backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from random import Random

import pytest

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.model import ModelFacts
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute, PoolRef
from lb.domain.schedule import Capacity, QueuePlan, QueueRules
from lb.domain.sequence import Question
from lb.proxy.dispatch import Dispatcher
from lb.proxy.exchange import Attempt, Exchange, RoutingHints
from lb.proxy.queue import Queue, QueueOptions
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.backends import make_backend
from tests.fakes.clock import FakeLoop
from tests.fakes.records import INFER
from tests.fakes.relay import Finished, Outcomes, snapshot_of

pytestmark = pytest.mark.interpreted("a class of its own")
"""Compiled, tests/integration/test_queue.py tries the same."""

GRPC = AppProtocol.GRPC
FACTS = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)


class Waiting(Exchange):
    """An exchange that may wait, and notes what becomes of it."""

    def __init__(self, bench: Bench, model: bytes = b"m") -> None:
        super().__init__(GRPC, INFER, "10.0.0.9:4711", bench.loop.time())
        self.bench = bench
        self.model = model
        self.refused: RequestRefused | None = None
        self.until = inf
        self.fields: dict[bytes, bytes] = {}
        if model == b"m":
            self.hints = RoutingHints(rows=1)

    @property
    def deadline(self) -> float:
        return self.until

    def hint(self, name: bytes) -> bytes:
        return self.fields.get(name, b"")

    def go_on(self) -> None:
        try:
            self.bench.dispatcher.placer.place(self, Attempt, None, self)
        except RequestRefused as refused:
            self.refuse(refused)

    def refuse(self, refusal: RequestRefused) -> None:
        self.refused = refusal
        self.leave()

    def end(self, code: int = 0, outcome: Outcome = Outcome.ANSWERED) -> None:
        assert self.attempt is not None
        self.bench.dispatcher.accounts.attempt_ended(self.attempt, outcome, code)

    def leave(self) -> None:
        self.bench.dispatcher.accounts.stop(self, Outcome.CANCELLED)
        self.bench.dispatcher.accounts.finish(self)

    @property
    def at(self) -> str:
        return self.attempt.backend.name if self.attempt and self.is_under_way else ""


class CallsMade:
    """How many functions were called."""

    count = 0


@contextmanager
def calls_made() -> Iterator[CallsMade]:
    """Counts the calls within."""
    made = CallsMade()

    def note(_frame: object, event: str, _arg: object) -> None:
        made.count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(None)


class Bench:
    """A dispatcher whose clock is turned by hand, with one model that is scheduled."""

    def __init__(self, count: int = 1, concurrency: int = 1, **rules: object) -> None:
        self.loop = FakeLoop()
        self.backends = tuple(make_backend(f"b{n}") for n in range(count))
        self.plan = QueuePlan(
            limits={},
            default=Capacity(concurrency, instances=concurrency),
            rules=QueueRules(**rules),
        )
        self.ref = PoolRef(self.snapshot(self.backends))
        self.memory_budget = MemoryBudget(1 << 22)
        self.queue = Queue(
            Scheduler(), self.ref, self.loop.time, self.memory_budget, later=self.loop.call_later
        )
        self.dispatcher = Dispatcher(
            self.ref, Outcomes(), Finished(), clock=self.loop.time,
            memory_budget=self.memory_budget, queue=self.queue,
        )  # fmt: skip

    def snapshot(self, backends: tuple[Backend, ...]) -> object:
        route = ModelRoute(facts=FACTS, plan=self.plan, is_uniform=True)
        return replace(snapshot_of(backends), routes={b"m": route})

    def publish(self, *backends: Backend) -> None:
        self.ref.publish(self.snapshot(backends))

    def come(self, model: bytes = b"m", **slots: object) -> Waiting:
        one = Waiting(self, model)
        for name, value in slots.items():
            setattr(one.hints if name in ("rows", "size", "priority") else one, name, value)
        one.go_on()
        return one

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.advance(seconds)

    def assert_idle(self) -> None:
        assert len(self.queue) == 0
        assert self.queue._held == 0
        assert [backend.in_flight for backend in self.backends] == [0] * len(self.backends)
        assert not any(lane.in_flight for lane in self.queue.scheduler.model_backends())
        assert not any(
            sum(line.waiting.values())
            for line in self.queue.scheduler.model_queues(self.loop.time())
        )


def test_what_a_backend_cannot_take_waits_for_its_turn() -> None:
    bench = Bench()
    first, second, third = bench.come(), bench.come(), bench.come()
    assert (first.at, second.at, third.at) == ("b0", "", "")
    assert len(bench.queue) == 2
    bench.turn(0.25)
    first.end()
    assert second.at == ""  # nothing begins while something else is under way
    bench.turn()
    assert (second.at, third.at) == ("b0", "")
    assert second.placed_at - second.started_at == pytest.approx(0.25)
    assert (first.queue_position, second.queue_position, third.queue_position) == (None, 0, 1)
    assert second.queue_why
    second.end()
    bench.turn()
    third.end()
    bench.turn()
    bench.assert_idle()
    assert sum(bench.queue.waits[b"m"].counts) == 3
    assert sum(bench.queue.wait_reasons.values()) == 2


def test_one_that_cannot_make_its_deadline_is_refused() -> None:
    bench = Bench()
    first = bench.come()
    late = bench.come(until=bench.loop.time() + 0.5)
    bench.turn(0.6)
    bench.turn()
    assert late.refused is not None
    assert late.refused.reason is Reason.DEADLINE
    assert late.refused.retry_after_s == 0
    first.end()
    bench.assert_idle()


@pytest.mark.parametrize(("rules", "deadline_s"), [({}, 0.5), ({"max_wait_s": 0.5}, inf)])
def test_those_that_expire_together_leave_others_their_turn_of_the_loop(
    rules: dict[str, float], deadline_s: float
) -> None:
    bench = Bench(max_waiting=5000, **rules)
    first = bench.come()
    late = [bench.come(until=bench.loop.time() + deadline_s) for _ in range(2000)]
    bench.turn()
    assert len(bench.queue) == 2000
    most = 0
    for stall_s in (0.49, 0.02):  # soon before their time an idle backend would take them
        bench.loop.stall(stall_s)
        for _ in range(1000):
            with calls_made() as made:
                bench.loop.turn()
            most = max(most, made.count)
    assert most < 10_000  # all at once: 50 a request and more
    assert [one for one in late if one.refused is None] == []
    first.end()
    bench.assert_idle()


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    bench = Bench(max_waiting=1)
    bench.queue.configure(QueueOptions(overload_status=429))
    first, second, third = bench.come(), bench.come(), bench.come()
    assert third.refused is not None
    assert third.refused.reason is Reason.QUEUE_FULL
    assert third.refused.retry_after_s > 0
    assert third.refused.status == 429
    second.leave()
    first.end()
    bench.assert_idle()


def test_nobody_waits_longer_than_the_limit() -> None:
    bench = Bench(max_wait_s=0.9)
    first, second = bench.come(), bench.come()
    bench.turn(0.8)
    assert second.refused is None
    bench.turn(0.2)
    assert second.refused is not None
    assert second.refused.reason is Reason.QUEUE_TIMEOUT
    first.end()
    bench.assert_idle()


def test_a_header_outweighs_the_parameter_and_that_the_setting() -> None:
    bench = Bench()
    bench.queue.configure(
        QueueOptions(priority_header=b"x-p", priority=5, priorities={b"m": 4}, tenant_header=b"x-t")
    )
    first = bench.come()
    plain, said = bench.come(), bench.come(priority=3)
    both = bench.come(priority=3, fields={b"x-p": b"2", b"x-t": b"blue"})
    wrong = bench.come(fields={b"x-p": b"high"})
    tickets = [each.ticket for each in (plain, said, both, wrong)]
    assert [ticket.priority for ticket in tickets] == [3, 2, 1, 3]
    assert [ticket.tenant for ticket in tickets] == ["", "", "blue", ""]
    for each in (plain, said, both, wrong, first):
        each.leave()
    bench.turn()
    bench.assert_idle()


def test_tenants_can_be_tokens() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(by_token=True))
    one = bench.come(token="blue")
    assert one.ticket is not None
    assert one.ticket.tenant == "blue"


def test_a_failed_attempt_goes_through_the_queue_again_elsewhere() -> None:
    bench = Bench(2)
    one = bench.come()
    here = one.at
    other = bench.come()
    newcomer = bench.come()
    one.end(outcome=Outcome.LOST)
    one.go_on()
    assert one.at == ""
    bench.turn()
    other.end()
    bench.turn()
    assert one.at not in ("", here)
    one.end()
    newcomer.leave()
    bench.turn()
    bench.assert_idle()


def test_what_a_gone_backend_still_ends_leaves_nothing_of_it() -> None:
    bench = Bench()
    bench.publish(*bench.backends)
    first = bench.come()
    bench.publish(make_backend("b9"))
    first.end()
    bench.publish(make_backend("b9"))
    assert [lane.backend.name for lane in bench.queue.scheduler.model_backends()] == []
    bench.assert_idle()


def test_what_nobody_would_go_on_with_does_not_wait() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.come()
    full = Waiting(bench)
    assert bench.dispatcher.placer.place(full, Attempt) is not None, "the backend is busy"
    bench.publish()
    for one in (Waiting(bench, b"other"), Waiting(bench)):
        with pytest.raises(RequestRefused) as caught:
            bench.dispatcher.placer.place(one, Attempt)
        assert caught.value.reason is Reason.NO_BACKEND
    assert len(bench.queue) == 0


def test_those_that_wait_in_vain_are_given_up_together() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.publish()
    some = []
    for _ in range(100):
        some.append(bench.come(b"other"))
        bench.turn(0.001)
    bench.turn(4.9 - 0.001)
    assert not any(each.refused for each in some)
    for _ in range(200):
        bench.turn(0.001)
    assert all(each.refused for each in some)
    assert len({each.ended_at for each in some}) <= 4
    bench.assert_idle()


def test_one_that_waits_in_vain_is_given_up_though_its_timer_comes_early() -> None:
    bench = Bench()

    def rounded(delay_s: float, call: Callable[[], None]) -> object:
        """As uvloop does, whose timers count milliseconds."""
        return bench.loop.call_later(delay_s - 0.0004 if delay_s > 0.001 else delay_s, call)

    bench.queue._later = rounded
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.publish()
    one = bench.come(b"other")
    bench.turn(4.9)
    assert one.refused is None
    bench.turn(0.2)
    assert one.refused is not None
    bench.assert_idle()


@pytest.mark.parametrize("model", [b"m", b"other"])
def test_one_that_no_backend_would_take_waits_a_moment_and_goes_again(model: bytes) -> None:
    bench = Bench(2)
    bench.queue.configure(QueueOptions(wait_for_backend_s=2.0))
    one = bench.come(model)
    attempts, outcome = 0, Outcome.CONNECT_REFUSED
    while attempts < 100:
        if not one.at:
            bench.turn(0.05)
            continue
        attempts += 1
        one.end(outcome=outcome)
        if not bench.dispatcher.retry.take_retry(
            one, outcome, body_retained=True, response_begun=False
        ):
            break
        one.go_on()
    assert 20 <= attempts <= 60
    assert 2.0 <= bench.loop.time() - one.started_at < 2.3
    bench.dispatcher.accounts.finish(one)
    bench.turn()
    bench.assert_idle()


def test_what_would_hold_too_much_goes_on_instead_of_waiting() -> None:
    bench = Bench()
    first = bench.come()
    waiting = [bench.come(size=1 << 20) for _ in range(2)]
    large = bench.come(size=1 << 30)
    assert [each.at for each in waiting] == ["", ""]
    assert large.at == "b0"
    for each in (large, first, *waiting):
        each.leave()
    bench.turn()
    bench.assert_idle()


def test_one_whose_turn_comes_goes_on_though_memory_is_short() -> None:
    bench = Bench()
    first, second = bench.come(), bench.come()
    bench.memory_budget.held = bench.memory_budget.ceiling
    first.end()
    bench.turn()
    assert second.at == "b0"
    refused = bench.come()
    assert refused.refused is not None
    assert refused.refused.reason is Reason.MEMORY
    second.end()
    bench.assert_idle()


def test_very_many_turns_are_given_some_at_a_time() -> None:
    bench = Bench(concurrency=100)
    first = [bench.come() for _ in range(100)]
    rest = [bench.come() for _ in range(100)]
    for each in first:
        each.end()
    bench.turn()
    for _ in range(3):
        bench.turn()
    assert all(each.at == "b0" for each in rest)
    for each in rest:
        each.end()
    bench.turn()
    bench.assert_idle()


# A second attempt beside the first


def beside(bench: Bench, one: Waiting) -> Attempt:
    return bench.dispatcher.placer.place_beside(one, Attempt, bench.loop.time())


def in_flight(bench: Bench) -> dict[str, int]:
    """Requests that the scheduler counts, by backend."""
    return {lane.backend.name: lane.in_flight for lane in bench.queue.scheduler.model_backends()}


def test_the_ticket_of_a_second_attempt_is_beside_that_of_the_first() -> None:
    bench = Bench(2)
    one = bench.come(rows=3, priority=1)
    first = one.attempt
    hedge = beside(bench, one)
    assert first is not None
    assert first.ticket is one.ticket
    tickets = first.ticket, hedge.ticket
    assert tickets[0] is not None
    assert tickets[1] is not None
    assert tickets[0] is not tickets[1]
    assert tickets[1].backend is hedge.backend is not first.backend
    assert (tickets[1].rows, tickets[1].priority) == (3, tickets[0].priority)
    assert tickets[1].tried == (first.backend,)
    assert in_flight(bench) == {"b0": 1, "b1": 1}
    bench.dispatcher.accounts.attempt_ended(hedge, Outcome.CANCELLED)
    assert in_flight(bench) == {first.backend.name: 1, hedge.backend.name: 0}
    one.end()
    bench.assert_idle()


def test_a_second_attempt_fails_and_its_request_goes_again() -> None:
    """It has the place of the first when it does, and the ticket of the first is used again."""
    bench = Bench(3)
    one = bench.come()
    first = one.attempt
    hedge = beside(bench, one)
    assert first is not None
    bench.dispatcher.accounts.overtake(one)
    bench.dispatcher.accounts.attempt_ended(first, Outcome.OVERTAKEN)
    one.end(outcome=Outcome.RESET)
    one.go_on()
    assert one.at not in ("", first.backend.name, hedge.backend.name)
    one.end()
    bench.assert_idle()


def test_a_second_attempt_has_no_ticket_where_its_model_is_not_scheduled_any_more() -> None:
    bench = Bench(2)
    one = bench.come()
    bench.ref.publish(not_scheduled(bench))
    hedge = beside(bench, one)
    assert hedge.ticket is None
    assert hedge.backend is not one.backend
    bench.dispatcher.accounts.attempt_ended(hedge, Outcome.CANCELLED)
    one.end()
    bench.assert_idle()


# Many at once

MANY = 300
MOST_PER_TURN = 64


class Noting(Waiting):
    """Counts how often it was told to go on, or refused."""

    goes = 0
    refusals = 0

    def go_on(self) -> None:
        self.goes += 1
        super().go_on()

    def refuse(self, refusal: RequestRefused) -> None:
        self.refusals += 1
        super().refuse(refusal)


def many(bench: Bench, model: bytes = b"m", count: int = MANY) -> list[Noting]:
    """So many that wait, for they cannot begin."""
    some = [Noting(bench, model) for _ in range(count)]
    for each in some:
        each.hints = each.hints or RoutingHints()
        each.go_on()
        assert not each.at
        each.goes = 0
    return some


def turns_until_nobody_waits(bench: Bench, some: list[Noting]) -> int:
    """Turns of the loop, in none of which too many went on."""
    for turns in range(1000):
        if not len(bench.queue):
            return turns
        before = sum(each.goes + each.refusals for each in some)
        bench.loop.turn()
        after = sum(each.goes + each.refusals for each in some)
        assert after - before <= 2 * MOST_PER_TURN  # who goes on may be refused
    raise AssertionError("some wait for ever")


def not_scheduled(bench: Bench) -> object:
    return replace(snapshot_of(bench.backends), routes={})


def test_all_whose_last_backend_leaves_are_refused_some_at_a_time() -> None:
    bench = Bench()
    first = bench.come()
    some = many(bench)
    first.end(outcome=Outcome.LOST)
    bench.publish()
    assert turns_until_nobody_waits(bench, some) >= MANY / MOST_PER_TURN
    assert [each.refusals for each in some] == [1] * MANY
    assert {each.refused.reason for each in some if each.refused} == {Reason.NO_BACKEND}
    bench.assert_idle()


def test_all_whose_model_is_not_scheduled_any_more_begin_some_at_a_time() -> None:
    bench = Bench()
    first = bench.come()
    some = many(bench)
    bench.ref.publish(not_scheduled(bench))
    assert turns_until_nobody_waits(bench, some) >= MANY / MOST_PER_TURN
    assert [(each.goes, each.attempts) for each in some] == [(1, 1)] * MANY
    for each in (first, *some):
        each.end()
    bench.assert_idle()


def test_those_that_are_found_unscheduled_in_a_later_turn_are_placed_in_that_turn() -> None:
    bench = Bench()
    both = bench.snapshot(bench.backends)
    bench.ref.publish(replace(both, routes={**both.routes, b"other": both.routes[b"m"]}))
    first = bench.come()
    # More than are looked at in a turn stand before the other ones.
    some = many(bench, count=1000)
    others = [Noting(bench, b"other") for _ in range(3)]
    for each in others:
        each.hints = RoutingHints(rows=1)
        each.go_on()
    [begun, *waiting] = others
    assert (bool(begun.at), [each.at for each in waiting]) == (True, ["", ""])
    bench.publish(*bench.backends)
    bench.turn()
    assert [each.at for each in waiting] == ["b0", "b0"]
    for each in (first, *others):
        each.end()
    for each in some:
        each.leave()
    bench.turn()
    bench.assert_idle()


def test_all_that_are_left_between_the_turns_can_be_refused_at_once() -> None:
    bench = Bench()
    first = bench.come()
    some = many(bench)
    bench.ref.publish(not_scheduled(bench))
    bench.loop.turn()
    bench.queue.refuse_all(RequestRefused(Reason.DRAINING, "it exits"))
    assert len(bench.queue) == 0
    bench.turn()
    assert {(each.goes, each.refusals) for each in some} == {(1, 0), (0, 1)}
    for each in (first, *(each for each in some if each.at)):
        each.end()
    bench.turn(2.0)  # when some of them would have been looked at
    assert bench.loop.pending == 0
    bench.assert_idle()


def test_steps_that_wait_for_news_of_their_sequences_can_be_refused_as_well() -> None:
    bench = Bench()
    question = Question()
    some = [Noting(bench) for _ in range(3)]
    for each in some:
        bench.queue.hold_for_news(each, each, question)
    bench.queue.refuse_all(RequestRefused(Reason.DRAINING, "it exits"))
    assert len(bench.queue) == 0
    question.end()
    bench.turn()
    assert [(each.goes, each.refusals) for each in some] == [(0, 1)] * 3
    assert bench.loop.pending == 0


def test_those_that_wait_for_a_backend_begin_some_at_a_time_when_it_is_there() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.publish()
    some = many(bench, b"other")
    bench.publish(*bench.backends)
    assert turns_until_nobody_waits(bench, some) >= MANY / MOST_PER_TURN
    assert [(each.goes, each.attempts) for each in some] == [(1, 1)] * MANY
    for each in some:
        each.end()
    bench.assert_idle()


def test_those_that_wait_in_vain_are_refused_some_at_a_time() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.publish()
    some = many(bench, b"other")
    bench.loop.stall(6.0)
    assert turns_until_nobody_waits(bench, some) >= MANY / MOST_PER_TURN
    assert [(each.goes, each.refusals) for each in some] == [(0, 1)] * MANY
    bench.assert_idle()


def with_other(bench: Bench, *backends: Backend, has: tuple[Backend, ...] = ()) -> object:
    """A pool of which only some may get requests for the other model."""
    pool = bench.snapshot(backends)
    route = ModelRoute(facts=FACTS, placements=snapshot_of(has).placements)
    return replace(pool, routes={**pool.routes, b"other": route})


def test_frequent_news_keep_nobody_from_being_looked_at() -> None:
    bench = Bench()
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.publish()
    in_vain, last = many(bench), many(bench, b"other", 10)
    for _ in range(MANY // 16):
        bench.ref.publish(with_other(bench, has=bench.backends))
        bench.loop.turn()
    assert [each.at for each in last] == ["b0"] * 10
    assert not any(each.at or each.refused for each in in_vain)
    for each in (*in_vain, *last):
        each.leave()
    bench.turn(10.0)
    bench.assert_idle()


def test_those_whose_turn_has_come_need_not_wait_for_all_that_are_placed_anew() -> None:
    bench = Bench(concurrency=10)
    bench.queue.configure(QueueOptions(wait_for_backend_s=5.0))
    bench.ref.publish(with_other(bench, *bench.backends))
    first = [bench.come() for _ in range(10)]
    second, others = many(bench, count=10), many(bench, b"other")
    bench.turn()
    bench.ref.publish(with_other(bench, *bench.backends, has=bench.backends))
    for each in first:
        each.end()
    bench.loop.turn()
    assert all(each.at for each in second)
    assert 0 < sum(bool(each.at) for each in others) < MOST_PER_TURN
    bench.turn()
    for each in (*second, *others):
        each.end()
    bench.assert_idle()


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_lost_or_doubled_whatever_happens_between_the_turns(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(2, concurrency=3)
    bench.queue.configure(QueueOptions(wait_for_backend_s=1.0))
    pools = [
        bench.snapshot(bench.backends), bench.snapshot(bench.backends[:1]), bench.snapshot(()),
        not_scheduled(bench), with_other(bench, *bench.backends),
    ]  # fmt: skip
    came: list[Noting] = []
    for _ in range(100):
        what = rng.random()
        if what < 0.3:
            for _ in range(rng.randrange(60)):
                one = Noting(bench, rng.choice((b"m", b"other")))
                one.hints = one.hints or RoutingHints()
                came.append(one)
                one.go_on()
        elif what < 0.5:
            bench.ref.publish(rng.choice(pools))
        elif what < 0.7:
            for each in [each for each in came if not each.finished and rng.random() < 0.2]:
                each.leave()
        elif what < 0.72:
            bench.queue.refuse_all(RequestRefused(Reason.DRAINING, "it exits"))
        else:
            bench.loop.stall(rng.choice((0.0, 0.0, 0.02, 0.2)))
            for each in [each for each in came if each.at and rng.random() < 0.5]:
                each.leave()
            bench.loop.turn()
        for each in came:
            assert [each.finished, bool(each.at), bench.queue.has(each)].count(True) == 1
            assert each.attempts <= 1
            assert each.refusals <= 1
    bench.ref.publish(pools[0])
    bench.turn(5.0)
    while under_way := [each for each in came if each.at]:
        for each in under_way:
            each.leave()
        bench.turn()
    assert all(each.finished for each in came)
    bench.turn(60.0)
    assert bench.loop.pending == 0
    bench.assert_idle()
