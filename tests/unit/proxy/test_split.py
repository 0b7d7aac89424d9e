"""Which batches are cut, into which parts, and how many of these run at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, PoolRef, PoolSnapshot
from lb.domain.schedule import QueuePlan
from lb.kserve.operations import MODEL_INFER
from lb.net.iteration import ROOM, IterationBudget
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.split import (
    PARTS_PER_ITERATION,
    HeldBytes,
    Parts,
    SplitPlan,
    SplitRule,
    Splits,
    even_parts,
    longest_batch,
    part_hints,
    rows_text,
    split_rules,
    unequal_parts,
)
from lb.proxy.split_memory import BatchMemory
from lb.settings.model import Settings
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.live import FakeClock

RULE = SplitRule(at_once=2, max_bytes=1000)
AUTO = SplitRule(at_once=2, max_bytes=1000, is_auto=True)
FACTS = ModelFacts(is_stateful=False, is_decoupled=False, max_rows=8)


class Divided:
    """Divides every batch the same way."""

    def __init__(self, *parts: int) -> None:
        self.parts = parts
        self.is_possible = True

    def divide(self, *_: object) -> tuple[int, ...]:
        return self.parts

    def may_divide(self, *_: object) -> bool:
        return self.is_possible


def exchange(model: bytes = b"m") -> Exchange:
    made = Exchange(AppProtocol.GRPC, MODEL_INFER, "-", 0.0)
    made.model = model
    return made


def splits(
    facts: ModelFacts = FACTS,
    rule: SplitRule = RULE,
    parts: tuple[int, ...] = (),
    clock: FakeClock | None = None,
    divider: Divided | None = None,
) -> Splits:
    nowhere = Placement((), None, None)  # type: ignore[arg-type]
    plan = QueuePlan(limits={}) if parts or divider is not None else None
    routes = {b"m": ModelRoute(facts=facts, plan=plan)}
    pool = PoolRef(PoolSnapshot(1, (), (nowhere, nowhere), routes))
    made = Splits(pool, divider or Divided(*parts), clock or FakeClock(100.0), MemoryBudget(2**30))
    made.configure({b"m": rule})
    return made


def parts_of(made: Splits, rows: int, model: bytes = b"m") -> tuple[int, ...] | None:
    plan = made.plan(exchange(model), rows, 100)
    return None if plan is None else plan.parts


@pytest.mark.parametrize(
    ("rows", "limit", "parts"),
    [(9, 8, (5, 4)), (16, 8, (8, 8)), (20, 8, (7, 7, 6)), (3, 1, (1, 1, 1)), (8, 8, (8,))],
)
def test_parts_are_few_and_of_about_the_same_size(
    rows: int, limit: int, parts: tuple[int, ...]
) -> None:
    assert even_parts(rows, limit) == parts


@pytest.mark.parametrize(
    ("parts", "limit", "unequal"),
    [
        ((8, 8), 8, (8, 7, 1)),
        ((7, 7), 8, (8, 6)),
        ((5, 4), 8, (5, 4)),
        ((1, 1, 1), 1, (1, 1, 1)),
        ((8,), 8, (8,)),
        ((4, 4, 4), 9, (5, 4, 3)),
    ],
)
def test_parts_can_be_told_apart(
    parts: tuple[int, ...], limit: int, unequal: tuple[int, ...]
) -> None:
    assert unequal_parts(parts, limit) == unequal


def test_only_batches_above_the_limit_of_their_model_are_cut() -> None:
    made = splits()
    assert parts_of(made, 8) is None
    plan = made.plan(exchange(), 9, 100)
    assert plan is not None
    assert (plan.parts, plan.rows, plan.is_scheduled, plan.must) == ((5, 4), 9, False, True)
    assert parts_of(made, 9, b"other") is None
    assert [made.may_cut(b"m", rows) for rows in (8, 9)] == [False, True]


def test_auto_also_cuts_what_is_answered_sooner_so() -> None:
    assert parts_of(splits(parts=(4, 2), rule=AUTO), 6) == (4, 2)
    assert parts_of(splits(parts=(4, 2)), 6) is None
    assert parts_of(splits(rule=AUTO), 6) is None
    assert parts_of(splits(parts=(4, 2), rule=AUTO), 1) is None
    assert [splits(rule=AUTO).may_cut(b"m", rows) for rows in (1, 2)] == [False, True]


def test_as_many_parts_as_help_are_made_of_what_must_be_cut() -> None:
    assert parts_of(splits(parts=(3, 3, 3)), 9) == (4, 3, 2)
    assert parts_of(splits(), 9) == (5, 4)


def test_the_first_parts_of_a_model_differ() -> None:
    made = splits()
    assert parts_of(made, 16) == (8, 7, 1)
    plan = made.plan(exchange(), 16, 100)
    assert plan is not None
    made.fit(b"m", plan)
    assert parts_of(made, 16) == (8, 8)


def test_batches_without_rows_are_not_cut() -> None:
    assert parts_of(splits(ModelFacts(max_rows=0)), 9) is None


def test_a_model_that_turned_out_unfit_is_left_whole_for_longer_each_time() -> None:
    clock = FakeClock(100.0)
    made = splits(clock=clock)
    for times, pause_s in enumerate([60, 120, 240, 480, 960, 1920, 3600, 3600], 1):
        plan = made.plan(exchange(), 9, 100)
        assert plan is not None
        made.unfit(b"m", plan, "output 'y' has no batch dimension")
        assert made.counts.unfit == times
        clock.now += pause_s - 1
        assert parts_of(made, 9) is None
        assert not made.may_cut(b"m", 9)
        clock.now += 1
    made.configure({b"m": RULE})
    assert parts_of(made, 9) is not None


def test_one_wrong_answer_keeps_no_batch_of_a_model_whole_whose_answers_could_be_joined() -> None:
    made = splits()
    plan = made.plan(exchange(), 9, 100)
    assert plan is not None
    made.fit(b"m", plan)
    made.unfit(b"m", plan, "output 'y' has no batch dimension")
    assert parts_of(made, 9) is not None
    assert made.counts.unfit == 0


def test_the_settings_name_models_whose_batches_are_cut() -> None:
    settings = Settings.model_validate(
        {
            "listen": {"http": "127.0.0.1:8000"},
            "models": {
                "on": {"split": "oversize", "split_max": 3, "split_max_bytes": "1KiB"},
                "auto": {"split": "auto"},
                "off": {},
                "once": {"split": "oversize", "retry": "never"},
            },
        }
    )
    assert split_rules(settings) == {
        b"on": SplitRule(at_once=3, max_bytes=1024),
        b"auto": SplitRule(at_once=8, max_bytes=64 << 20, is_auto=True),
    }
    assert longest_batch(settings) == 64 << 20


def test_a_part_is_as_urgent_as_its_whole_and_has_its_own_rows() -> None:
    plan = SplitPlan(RULE, FACTS, (5, 4), is_scheduled=True)
    part = part_hints(RoutingHints(b"2", 9, 3), plan, 5, 100)
    assert part is not None
    assert (part.version, part.rows, part.priority, part.size) == (b"2", 5, 3, 100)
    unscheduled = SplitPlan(RULE, FACTS, (5, 4), is_scheduled=False)
    assert part_hints(None, unscheduled, 5, 100) is None


def test_rows_are_named_from_zero() -> None:
    assert rows_text(8, 4, 20) == "rows 8 to 11 of 20"


class Piece:
    """A part that notes what becomes of it."""

    def __init__(self) -> None:
        self.state = "new"

    def begin(self) -> None:
        self.state = "begun"

    def cancel(self) -> None:
        self.state = "cancelled"


class Unmade(Piece):
    """A part that cannot be made."""

    def begin(self) -> None:
        raise ArithmeticError


def raised(error: Exception) -> None:
    """No part fails but where a test says so."""
    raise error


class Turns:
    """An event loop that stands still between turns."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def turn(self) -> bool:
        """Whether anything was to be done."""
        due, self._due = self._due, []
        for call in due:
            call()
        return bool(due)


def test_a_thousand_parts_begin_over_many_turns_and_others_have_theirs_between() -> None:
    loop: Any = Turns()
    budget = IterationBudget(loop)
    pieces = [Piece() for _ in range(1000)]
    others: list[int] = []
    begun = lambda: sum(each.state == "begun" for each in pieces)  # noqa: E731
    parts = Parts(pieces, 1000, budget, raised)
    parts.begin()
    counts = [begun()]
    budget.later(lambda: others.append(begun()))
    while begun() < 1000:
        assert loop.turn()
        counts.append(begun())
    steps = [after - before for before, after in pairwise([0, *counts])]
    assert max(steps) == PARTS_PER_ITERATION
    assert others == [counts[1]]


def test_parts_that_cost_much_to_make_begin_in_iterations_of_their_own() -> None:
    loop: Any = Turns()
    pieces = [Piece() for _ in range(10)]
    parts = Parts(pieces, 10, IterationBudget(loop), raised, ROOM)
    parts.begin()
    for count in range(1, 10):
        assert sum(each.state == "begun" for each in pieces) == count
        loop.turn()


def test_answers_that_come_while_parts_begin_begin_no_more_at_once() -> None:
    loop: Any = Turns()
    pieces = [Piece() for _ in range(100)]
    parts = Parts(pieces, 50, IterationBudget(loop), raised)
    parts.begin()
    for _ in range(PARTS_PER_ITERATION):
        parts.one_done()
    assert sum(each.state == "begun" for each in pieces) == PARTS_PER_ITERATION
    while loop.turn():
        pass
    assert sum(each.state == "begun" for each in pieces) == 50 + PARTS_PER_ITERATION


def test_parts_that_are_cancelled_between_turns_begin_no_more() -> None:
    loop: Any = Turns()
    pieces = [Piece() for _ in range(100)]
    parts = Parts(pieces, 50, IterationBudget(loop), raised)
    parts.begin()
    parts.cancel()
    while loop.turn():
        pass
    assert {each.state for each in pieces} == {"cancelled", "new"}


def test_a_part_that_cannot_be_made_in_a_later_turn_spoils_nothing_of_others() -> None:
    loop: Any = Turns()
    budget = IterationBudget(loop)
    errors: list[Exception] = []
    others: list[str] = []
    parts = Parts(
        [*(Piece() for _ in range(PARTS_PER_ITERATION)), Unmade()], 50, budget, errors.append
    )
    parts.begin()
    budget.later(lambda: others.append("had its turn"))
    while loop.turn():
        pass
    assert [type(error) for error in errors] == [ArithmeticError]
    assert others == ["had its turn"]


def test_parts_begin_as_others_end() -> None:
    pieces = [Piece() for _ in range(4)]
    parts = Parts(pieces, 2, IterationBudget(cast(Any, Turns())), raised)
    parts.begin()
    assert [each.state for each in pieces] == ["begun", "begun", "new", "new"]
    assert not parts.one_done()
    assert [each.state for each in pieces] == ["begun", "begun", "begun", "new"]
    assert [parts.one_done() for _ in range(3)] == [False, False, True]


def test_cancelled_parts_are_those_that_have_begun() -> None:
    pieces = [Piece() for _ in range(3)]
    parts = Parts(pieces, 2, IterationBudget(cast(Any, Turns())), raised)
    parts.begin()
    parts.cancel()
    assert [each.state for each in pieces] == ["cancelled", "cancelled", "new"]
    parts.begin()
    assert pieces[2].state == "new"


class Owner:
    """Gives way when it is asked to."""

    held: HeldBytes

    def evict(self) -> None:
        self.held.drop()


def test_held_bytes_are_on_the_memory_budget() -> None:
    memory_budget = MemoryBudget(100)
    owner = Owner()
    owner.held = held = HeldBytes(BatchMemory(memory_budget, owner))
    assert held.add(b"")
    assert not len(memory_budget)
    assert held.add(b"x" * 60)
    assert (memory_budget.held, held.rope().joined()) == (60, b"x" * 60)
    assert not held.add(b"y" * 60)
    assert (memory_budget.held, len(memory_budget), held.size) == (0, 0, 0)


def held_bytes() -> HeldBytes:
    owner = Owner()
    owner.held = HeldBytes(BatchMemory(MemoryBudget(2**30), owner))
    return owner.held


def buffers(held: HeldBytes) -> list[object]:
    return [view.obj for view in held.rope().views(0, held.size)]


def test_long_payload_is_held_as_it_was_read() -> None:
    held = held_bytes()
    read = bytes(100_000)
    for at in range(0, 96_000, 16_000):
        held.add(memoryview(read)[at : at + 16_000])
    assert all(buffer is read for buffer in buffers(held))


def test_what_is_held_keeps_no_other_bytes_of_the_same_read() -> None:
    held = held_bytes()
    read, other = bytes(100_000), bytes(10_000)
    held.add(memoryview(read)[:16_000])
    held.add(memoryview(read)[16_000:32_000])
    held.add(other)
    first, second = buffers(held)
    assert first is not read
    assert isinstance(first, bytes)
    assert (len(first), second) == (32_000, other)


def test_short_payload_is_held_in_few_pieces() -> None:
    held = held_bytes()
    text = bytes(range(256)) * 400
    for at in range(len(text)):
        held.add(text[at : at + 1])
    assert held.rope().joined() == text
    assert len(buffers(held)) == 2


def test_batches_that_stay_whole_for_long_are_not_planned_again() -> None:
    clock = FakeClock(100.0)
    divider = Divided()
    made = splits(rule=AUTO, clock=clock, divider=divider)
    assert parts_of(made, 6) is None
    assert not made.stays_whole(b"m", 6), "backends are busy, so it may be cut the next time"
    divider.is_possible = False
    assert parts_of(made, 6) is None
    assert [made.stays_whole(b"m", rows) for rows in (1, 2, 6, 7)] == [True, True, True, False]
    assert not made.stays_whole(b"other", 6)
    clock.now += 1.0
    assert not made.stays_whole(b"m", 6), "what executions take may be different by now"


@pytest.mark.parametrize("rule", [RULE, AUTO])
def test_batches_of_models_whose_parts_nobody_divides_are_not_planned_again(
    rule: SplitRule,
) -> None:
    made = splits(rule=rule)  # not scheduled
    assert parts_of(made, 2) is None
    assert [made.stays_whole(b"m", rows) for rows in (2, 8, 9)] == [True, True, False]


def test_what_holds_for_one_version_of_a_model_is_not_noted_for_others() -> None:
    divider = Divided()
    divider.is_possible = False
    made = splits(rule=AUTO, divider=divider)
    asked = exchange()
    asked.hints = RoutingHints(b"2")
    assert made.plan(asked, 6, 100) is None
    assert not made.stays_whole(b"m", 6)


@pytest.mark.parametrize(
    ("rows", "size", "is_cut"),
    [(1000, 150, True), (1024, 150, True), (1025, 150, False), (8000, 170, False),
     (8 * 1024, 2**20, True), (8 * 1024 + 1, 2**30, False)],
)  # fmt: skip
def test_short_requests_do_not_become_very_many(rows: int, size: int, is_cut: bool) -> None:
    assert (splits().plan(exchange(), rows, size) is not None) is is_cut
