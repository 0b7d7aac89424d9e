"""What is written out for speed where requests are scheduled does what the plain versions do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.cost import Cost
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity, Ending, Plan, Ticket
from lb.kserve import inference_pb2 as pb
from lb.kserve.inspect import inspect, inspect_quickly
from tests.fakes.backends import make_backend
from tests.reference import scheduling as plain

TIMES_S = st.sampled_from((0.0, 1e-6, 0.0004, 0.002, 0.005, 0.0051, 0.04, 1.5, 12.0))
ROWS = st.sampled_from((1, 1, 1, 2, 8, 64))
SIZES = st.sampled_from((0, 0, 100, 5000))


def state(value: Any) -> dict[str, Any]:
    """All numbers that an object holds."""
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
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
    st.tuples(st.sampled_from(("begin", "begin", "end")), ROWS, SIZES, TIMES_S,
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
        if what == "begin":
            pair = (ticket(rows, size, now), ticket(rows, size, now))
            quick.estimate(rows, size, now)
            slow.estimate(rows, size, now)
            quick.begin(pair[0], now)
            plain.begin(slow, pair[1], now)
            in_flight_by_model.append(pair)
        elif in_flight_by_model:
            pair = in_flight_by_model.pop(which % len(in_flight_by_model))
            quick.end(pair[0], now, ending)
            plain.end(slow, pair[1], now, ending)
        for one, other in ((quick, slow), (quick.cost, slow.cost), (quick.penalty, slow.penalty),
                           (quick.stats.usual, slow.stats.usual)):  # fmt: skip
            assert state(one) == pytest.approx(state(other), rel=1e-9, abs=1e-12)
        for one, other in in_flight_by_model:
            assert state(one) == pytest.approx(state(other), rel=1e-9, abs=1e-12)


def ticket(rows: int, size: int, now: float) -> Ticket:
    made = Ticket(b"m", b"", Plan(limits={}), (), now)
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
