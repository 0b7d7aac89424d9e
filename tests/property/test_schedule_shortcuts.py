"""What is written out for speed where requests are scheduled does what the plain versions do."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.cost import MIN_SAMPLES, Cost
from lb.balancing.eligible_set import EligibleSet
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_queue import ModelQueue
from lb.balancing.model_stats import ModelStats
from lb.balancing.ranking import IdleRanking
from lb.balancing.scheduler import Scheduler
from lb.domain.backend import Backend
from lb.domain.schedule import (
    NO_DEADLINE,
    Capacity,
    Ending,
    QueuePlan,
    QueueRules,
    RequestClass,
    Ticket,
)
from lb.kserve import inference_pb2 as pb
from lb.kserve.inspect import inspect, inspect_quickly
from tests.fakes.backends import make_backend
from tests.reference import scheduling as plain

TIMES_S = st.sampled_from((0.0, 1e-6, 0.0004, 0.002, 0.005, 0.0051, 0.04, 1.5, 12.0))
ROWS = st.sampled_from((1, 1, 1, 2, 8, 64))
SIZES = st.sampled_from((0, 0, 100, 5000))


_ATTRIBUTES = (GetSetDescriptorType, MemberDescriptorType)


def state(value: Any) -> dict[str, Any]:
    """All numbers that an object holds."""
    kind = type(value)
    # Compiled classes have descriptors, and no list of slots.
    slots = [name for name in dir(kind) if isinstance(getattr(kind, name), _ATTRIBUTES)]
    found: dict[str, Any] = {}
    for slot in slots:
        each = getattr(value, slot, None)
        if isinstance(each, list):
            found |= {f"{slot} {at}": one for at, one in enumerate(each)}
        elif isinstance(each, int | float):
            found[slot] = each
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(TIMES_S, ROWS, SIZES, TIMES_S), max_size=80))
def test_costs_are_learnt_as_plainly(samples: list[tuple[float, int, int, float]]) -> None:
    quick, slow = Cost(), Cost()
    now = 1.0
    for took_s, rows, size, later_s in samples:
        now += later_s
        quick.learn(took_s, rows, size, now)
        plain.learn(slow, took_s, rows, size, now)
        assert state(quick) == pytest.approx(state(slow), rel=1e-9, abs=1e-12)


LIMITS = st.sampled_from(
    [
        Capacity(1, is_auto=True),
        Capacity(3, instances=3),
        Capacity(2, instances=2, is_adaptive=True),
        Capacity(0, instances=4),
    ]
)
STEPS = st.lists(
    st.tuples(st.sampled_from(("begin", "uncompared", "end")), ROWS, SIZES, TIMES_S,
              st.sampled_from((*[Ending.GOOD] * 4, Ending.FAILED, Ending.NEITHER)),
              st.integers(0, 5)),
    max_size=80,
)  # fmt: skip


@settings(deadline=None)
@given(LIMITS, STEPS)
def test_lanes_keep_the_same_accounts(limit: Capacity, steps: list[Any]) -> None:
    backend = make_backend()
    quick, slow = (ModelBackend(BackendPenalty(backend), limit, ModelStats()) for _ in range(2))
    in_flight_by_model: list[tuple[Ticket, Ticket]] = []
    now = 1.0
    for what, rows, size, later_s, ending, which in steps:
        now += later_s
        if what != "end":
            pair = (ticket(rows, size, now), ticket(rows, size, now))
            if what == "begin":
                quick.begin(pair[0], quick.estimate(rows, size, now), now)
            else:
                quick.begin_uncompared(pair[0], now)
            plain.begin(slow, pair[1], slow.estimate(rows, size, now), now)
            in_flight_by_model.append(pair)
        elif in_flight_by_model:
            pair = in_flight_by_model.pop(which % len(in_flight_by_model))
            quick.end(pair[0], now, ending)
            plain.end(slow, pair[1], now, ending)
        for one, other in ((quick, slow), (quick.load, slow.load), (quick.cost, slow.cost),
                           (quick.penalty, slow.penalty),
                           (quick.stats.usual, slow.stats.usual)):  # fmt: skip
            assert state(one) == pytest.approx(state(other), rel=1e-9, abs=1e-12)
        for one, other in in_flight_by_model:
            assert state(one) == pytest.approx(state(other), rel=1e-9, abs=1e-12)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[EligibleSet, float]:
    """Model backends that have learnt, and have requests in flight."""
    stats = ModelStats()
    kinds = [Capacity(1, is_auto=True), Capacity(4, is_auto=True, instances=4), Capacity(3)]
    limit = draw(st.sampled_from(kinds))
    row_s = draw(st.sampled_from((0.0, 0.0, 0.002)))
    is_odd = draw(st.integers(0, 4)) == 4
    model_backends = []
    for number in range(draw(st.integers(1, 5))):
        backend = make_backend(f"b{number}")
        each = draw(st.sampled_from(kinds)) if is_odd else limit
        model_backend = ModelBackend(BackendPenalty(backend), each, stats)
        took_s = draw(st.sampled_from((0.01, 0.01, 0.0101, 0.0104, 0.012, 0.0131, 0.016, 0.04)))
        spread = draw(st.sampled_from((0.0, 0.02, 0.2)))
        for sample in range(draw(st.sampled_from((0, 1, 20))) if is_odd else 20):
            rows = 1 + sample % 2 * 3
            wide = 1.0 + spread * (sample % 3 - 1)
            model_backend.learn(took_s * wide + row_s * rows, rows, 0, 99.0 + sample / 20)
        model_backend.last_pick = draw(st.integers(0, 100)) * 10 + number
        model_backend.lateness_s = draw(st.sampled_from((0.0, 0.001, 0.1)))
        if is_odd and draw(st.booleans()):
            model_backend.penalty.on_failure(99.5)
        if is_odd and draw(st.booleans()):
            backend.set_share(0.5)
        model_backends.append(model_backend)
    stats.tail_s = draw(st.sampled_from((0.0, 0.005, 0.012, 0.1)))
    now = 100.0
    for _ in range(draw(st.integers(0, 8))):
        now += draw(st.sampled_from((0.0, 0.001, 0.004)))
        model_backend = draw(st.sampled_from(model_backends))
        estimate = model_backend.estimate(1, 0, now)
        if estimate.may_begin:
            model_backend.begin(ticket(1, 0, now), estimate, now)
    now += draw(st.sampled_from((0.0, 0.002, 0.009, 3.0)))
    return EligibleSet(tuple(model_backends), QueueRules(), stats), now


@settings(deadline=None, max_examples=150)
@given(fleets(), st.sampled_from((1, 1, 4)), st.sampled_from((1, 1, 4)),
       st.sampled_from((NO_DEADLINE, NO_DEADLINE, 0.5, 0.02)))  # fmt: skip
def test_a_ranking_picks_what_a_comparison_chooses(
    fleet: tuple[EligibleSet, float], ranked_rows: int, rows: int, due_s: float
) -> None:
    eligible_set, now = fleet
    made = ticket(rows, 0, now)
    made.deadline = now + due_s
    model_backends, stats = eligible_set.model_backends, eligible_set.stats
    picked = IdleRanking(model_backends, stats, ranked_rows, now).pick(made, now)
    if picked is None:
        return
    decision = eligible_set.decide(made, now)
    if made.deadline != NO_DEADLINE:
        assert eligible_set.without_doubt(decision, made, now) is decision
        assert not eligible_set.seems_late(decision, made)
    assert decision.chosen is picked
    assert decision.is_best(now)
    assert decision.estimate is not None
    assert decision.estimate.begins_at == now


@settings(deadline=None)
@given(fleets(), ROWS, SIZES)
def test_a_request_that_begins_where_it_is_idle_is_counted_as_plainly(
    fleet: tuple[EligibleSet, float], rows: int, size: int
) -> None:
    eligible_set, now = fleet
    for model_backend in eligible_set.model_backends:
        if not model_backend.is_idle or model_backend.cost.count < MIN_SAMPLES:
            continue
        quick, slow = ticket(rows, size, now), ticket(rows, size, now)
        before = state(model_backend.load)
        estimate = model_backend.estimate(rows, size, now)
        model_backend.begin_idle(quick, now)
        counted = state(model_backend), state(model_backend.load), state(quick)
        model_backend.load.in_flight, model_backend.load.work_s = (
            int(before["in_flight"]),
            before["work_s"],
        )
        del model_backend.unanswered.tickets[quick]
        if model_backend.instances > 1:
            model_backend.load.expected_ends.remove(now + quick.expected_s)
        model_backend.begin(slow, estimate, now)
        assert (state(model_backend), state(model_backend.load), state(slow)) == counted


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from((0.004, 0.01, 0.01, 0.0102, 0.0104, 0.012, 0.02, 0.04)), min_size=1,
             max_size=4),
    st.sampled_from((1, 1, 2)),
    st.sampled_from((0.0, 0.0, 0.002)),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_the_next_request_after_an_end_is_the_one_that_a_comparison_chooses(
    times_s: list[float], instances: int, row_s: float, seed: int
) -> None:
    rng = Random(seed)
    backends = [make_backend(f"b{number}") for number in range(len(times_s))]
    plan = QueuePlan(limits={}, default=Capacity(1, is_auto=True, instances=instances))
    request_class = RequestClass(b"m", b"", plan, tuple(backends))
    scheduler = Scheduler()
    ends: list[tuple[float, int, Ticket]] = []
    free_at = {backend: [0.0] * instances for backend in backends}
    now = 0.0

    def begin(found: Ticket, backend: Backend) -> None:
        free = free_at[backend]
        took_s = times_s[backends.index(backend)] + row_s * found.rows
        free[0] = max(free[0], now) + took_s * rng.uniform(0.9, 1.1)
        heappush(ends, (free[0], found.number, found))
        free.sort()
        backend.in_flight += 1

    for _ in range(400):
        while len(ends) + sum(view.waiting.get(0, 0) for view in scheduler.model_queues(now)) < 60:
            made = Ticket(request_class, now, rng.choice((1, 1, 4)))
            backend = scheduler.offer(made, now)
            if backend is not None:
                begin(made, backend)
        now, _, ended = heappop(ends)
        assert ended.backend is not None
        ended.backend.in_flight -= 1
        scheduler.complete(ended, now, Ending.GOOD)
        eligible_set: EligibleSet = request_class.eligible_set
        model_queue: ModelQueue = request_class.model_queue
        before = eligible_set.is_closed, eligible_set.wake_at
        if eligible_set.is_closed and eligible_set.freed == 1 and eligible_set.wake_at > now:
            quick = model_queue.due_after_end(eligible_set, now)
            if quick is not None:
                eligible_set.is_closed, eligible_set.wake_at = before
                slow = model_queue.due(eligible_set, now)
                assert slow is not None
                assert slow[:2] == quick[:2]
                assert slow[2].begins_at == quick[2].begins_at
            eligible_set.is_closed, eligible_set.wake_at = before
        while (found := scheduler.next_due(now)) is not None:
            assert found.backend is not None
            begin(found, found.backend)


def ticket(rows: int, size: int, now: float) -> Ticket:
    made = Ticket(RequestClass(b"m", b"", QueuePlan(limits={}), ()), now)
    made.rows = rows
    made.size = size
    made.began_at = now
    return made


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    message = pb.ModelInferRequest(model_name="simple")
    message.model_version = draw(st.sampled_from(("", "", "1", "v" * 130)))
    message.id = draw(st.sampled_from(("", "7", "x" * 127, "x" * 300)))
    names = st.sampled_from(("priority", "priority", "timeout", "p" * 126))
    for name in draw(st.lists(names, max_size=3)):
        kind, value = draw(
            st.sampled_from(
                [("uint64_param", 3), ("int64_param", 0), ("int64_param", 200), ("int64_param", -1),
                 ("string_param", "3"), ("string_param", "s" * 200), ("bool_param", True)]
            )
        )  # fmt: skip
        setattr(message.parameters[name], kind, value)
    for shape in draw(st.lists(st.sampled_from(((), (1, 3), (0,), (130,), (2**14,), (-1,))),
                               max_size=2)):  # fmt: skip
        name = draw(st.sampled_from(("", "IN", "n" * 140)))
        one = message.inputs.add(name=name, datatype="FP32", shape=shape)
        one.contents.fp32_contents.extend([1.0] * draw(st.sampled_from((0, 0, 40, 5000))))
    if draw(st.booleans()):
        message.outputs.add(name="OUT")
        message.raw_input_contents.append(bytes(draw(st.sampled_from((0, 64, 300)))))
    return message.SerializeToString()


@settings(deadline=None)
@given(messages(), st.none() | st.integers(0, 400))
def test_the_quick_look_finds_what_the_thorough_one_finds(message: bytes, cut: int | None) -> None:
    whole = message if cut is None else message[:cut]
    prefixed = b"\0" + len(whole).to_bytes(4, "big") + whole
    found = inspect_quickly(prefixed, 5 + len(b"\x0a\x06simple"))
    if found is None:
        return
    thorough = inspect(whole, len(message), with_rows=True)
    if not thorough.is_complete:
        return
    assert found[:3] == (thorough.version, thorough.rows, thorough.priority)
    assert inspect_quickly(prefixed[: found[3]] + b"\0" * 100, 13) == found


def test_the_quick_look_suffices_for_usual_messages() -> None:
    message = pb.ModelInferRequest(model_name="simple", model_version="2", id="42")
    message.parameters["priority"].uint64_param = 3
    message.parameters["timeout"].int64_param = 1000
    message.inputs.add(name="IN", datatype="FP32", shape=(200, 3)).contents.fp32_contents.extend(
        [1.0] * 600
    )
    found = inspect_quickly(message.SerializeToString(), 8)
    assert found is not None
    assert found[:3] == (b"2", 200, 3)
