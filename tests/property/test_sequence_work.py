"""Open sequences share the backends' time out fairly, and nothing of them is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.balancing.policies import make_policy
from lb.balancing.sequences import IDLE_FACTOR, SequenceTable
from lb.domain.backend import Backend
from lb.domain.pool import Placement
from lb.domain.sequence import SequenceKey, SequenceStep
from tests.fakes.backends import make_backends

IDLE_S = 5.0


class Fleet:
    """Backends of different speeds that run one step after the other."""

    def __init__(self, *step_s: float) -> None:
        self.step_s = step_s
        self.backends = make_backends(*[0] * len(step_s))
        self.table = SequenceTable(limit=100_000)
        self.busy_until = dict.fromkeys(self.backends, 0.0)
        self.busy_s = dict.fromkeys(self.backends, 0.0)
        policy = make_policy("least_loaded", Random(1))
        self.placement = Placement(self.backends, policy.build(self.backends), policy)

    def run(self, step: SequenceStep, now: float, slots: int = 0) -> Backend:
        """A step from its beginning to its end."""
        backend, pin = self.table.place(step, self.placement, IDLE_S, now, slots=slots)
        assert backend is not None
        assert pin is not None
        took_s = self.step_s[self.backends.index(backend)]
        end = max(now, self.busy_until[backend]) + took_s
        self.busy_until[backend] = end
        self.busy_s[backend] += took_s
        self.table.ended(step, pin, pin.starts, end, began_at=now)
        return backend


def play(
    fleet: Fleet, *, sequences: int, steps: int, pause_s: float, every_s: float, rng: Random
) -> None:
    """So many sequences begin one after the other, and have so many steps each."""
    events: list[tuple[float, int, int]] = []
    for number in range(sequences):
        heappush(events, (100.0 + number * every_s, number, 0))
    while events:
        now, number, done = heappop(events)
        last = done == steps - 1
        step = SequenceStep(SequenceKey(b"m", number + 1), done == 0, last)
        backend = fleet.run(step, now)
        if not last:
            again = max(fleet.busy_until[backend], now) + rng.expovariate(1.0 / pause_s)
            heappush(events, (again, number, done + 1))


@pytest.mark.parametrize("step_s", [(0.01, 0.02, 0.08), (0.08, 0.01, 0.02), (0.01, 0.01, 0.01)])
def test_backends_of_different_speed_are_equally_busy(step_s: tuple[float, ...]) -> None:
    fleet = Fleet(*step_s)
    rng = Random(3)
    play(fleet, sequences=300, steps=10, pause_s=0.5, every_s=0.05, rng=rng)  # it is learnt
    fleet.busy_s = dict.fromkeys(fleet.backends, 0.0)
    later = Random(4)
    events: list[tuple[float, int, int]] = []
    begin = max(fleet.busy_until.values()) + 60.0
    for number in range(400):
        heappush(events, (begin + number * 0.05, 1000 + number, 0))
    while events:
        now, number, done = heappop(events)
        last = done == 19
        backend = fleet.run(SequenceStep(SequenceKey(b"m", number), done == 0, last), now)
        if not last:
            again = fleet.busy_until[backend] + later.expovariate(2.0)
            heappush(events, (again, number, done + 1))
    busy = list(fleet.busy_s.values())
    assert max(busy) <= 1.2 * min(busy)


def test_expected_parts_are_equal_within_a_fifth_whatever_the_speeds() -> None:
    fleet = Fleet(0.01, 0.02, 0.08)
    play(fleet, sequences=300, steps=10, pause_s=0.5, every_s=0.05, rng=Random(3))
    begin = max(fleet.busy_until.values()) + 60.0
    for number in range(600):
        fleet.run(SequenceStep(SequenceKey(b"m", 5000 + number), is_start=True), begin)
    work = [
        backend.open_sequences * step_s
        for backend, step_s in zip(fleet.backends, fleet.step_s, strict=True)
    ]
    assert max(work) <= 1.2 * min(work)


def test_very_many_that_begin_at_once_are_spread_by_their_number() -> None:
    fleet = Fleet(0.01, 0.01, 0.01)
    now = 100.0
    for number in range(1, 13):  # some that had very many steps, and then none
        key = SequenceKey(b"m", number)
        for count in range(100):
            now += 0.0001
            fleet.run(SequenceStep(key, is_start=not count), now)
    now += 9.0
    for number in range(1, 13):
        fleet.run(SequenceStep(SequenceKey(b"m", number)), now)
    for number in range(1000):
        fleet.run(SequenceStep(SequenceKey(b"m", 100 + number), is_start=True), now)
    counts = [backend.open_sequences for backend in fleet.backends]
    assert max(counts) <= 1.1 * min(counts)


def test_sequences_that_are_quiet_still_count() -> None:
    fleet = Fleet(0.01, 0.01)
    first, second = fleet.backends
    fleet.placement = Placement((first,), fleet.placement.picker, fleet.placement.policy)
    for number in range(1, 11):
        fleet.run(SequenceStep(SequenceKey(b"m", number), is_start=True), 100.0)
    fleet.placement = Placement(fleet.backends, fleet.placement.picker, fleet.placement.policy)
    places = [
        fleet.run(SequenceStep(SequenceKey(b"m", 100 + number), is_start=True), 101.0)
        for number in range(8)
    ]
    assert places == [second] * 8


keys = st.integers(1, 6)
actions = st.lists(
    st.tuples(
        st.sampled_from(["start", "step", "end", "only", "die", "wait", "sweep", "hold", "free"]),
        keys,
        st.floats(0.0, 30.0),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(actions=actions)
def test_nothing_is_left_when_all_are_over(actions: Sequence[tuple[str, int, float]]) -> None:
    fleet = Fleet(0.01, 0.03)
    table, now = fleet.table, 100.0
    held: list[tuple[SequenceStep, object, int]] = []
    for action, key, seconds in actions:
        name = SequenceKey(b"m%d" % (key % 2), key)
        is_start, is_end = action in ("start", "only"), action in ("end", "only")
        if action == "wait":
            now += seconds
        elif action == "sweep":
            table.sweep(now, 100)
        elif action == "die":
            fleet.backends[key % 2].died()
        elif action == "free" and held:
            step, pin, starts = held.pop(key % len(held))
            table.ended(step, pin, starts, now, began_at=now)  # type: ignore[arg-type]
        else:
            step = SequenceStep(name, is_start or action == "hold", is_end)
            if table.is_lost(name) and not step.is_start:
                continue
            _, pin = table.place(step, fleet.placement, IDLE_S, now)
            if pin is None:
                continue
            if action == "hold":
                held.append((step, pin, pin.starts))
            else:
                table.ended(step, pin, pin.starts, now + 0.01)
    for step, pin, starts in held:
        table.ended(step, pin, starts, now)  # type: ignore[arg-type]
    now += IDLE_FACTOR * IDLE_S + 1.0
    for _ in range(3):
        table.sweep(now, 1000)
    assert len(table) == 0
    assert list(table.open_by_model(10)) == []
    assert [backend.open_sequences for backend in fleet.backends] == [0, 0]
