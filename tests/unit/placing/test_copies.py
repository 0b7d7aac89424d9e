"""How many copies of a model its load needs."""

from __future__ import annotations

import pytest

from lb.domain.model import ModelUse
from lb.placing.copies import DOWN, HOLD_S, UP, CopyDemand, Sample
from lb.placing.planner import Host, ModelPlanner, ModelRules, PlannerRules, Step

M, N, P = b"m", b"n", b"p"
ALL = frozenset({M, N, P})


def unused(_backend: str, _model: bytes) -> ModelUse:
    return ModelUse(0, 0)


def busy(demand: CopyDemand, sample: Sample, begin: float, seconds: float) -> float:
    """A model is used alike for a time; returns its end."""
    for second in range(int(seconds)):
        demand.observe({M: sample}, begin + second)
    return begin + seconds


def test_the_load_is_what_part_of_their_time_copies_are_busy() -> None:
    demand = CopyDemand()
    now = busy(demand, Sample(running=3, limit=4.0, copies=1), 0.0, 300.0)
    assert demand.load(M, 1) == pytest.approx(0.75, abs=0.01)
    assert demand.load(M, 2) == pytest.approx(0.375, abs=0.01)
    assert demand.lacking({M: 1}) == [M]
    assert demand.lacking({M: 2}) == []
    assert not demand.is_surplus(M, now)


def test_a_burst_loads_no_copy() -> None:
    demand = CopyDemand()
    busy(demand, Sample(running=4, limit=4.0, copies=1), 0.0, 20.0)
    assert demand.lacking({M: 1}) == []


def test_copies_stay_for_a_while_after_the_load_has_gone_down() -> None:
    demand = CopyDemand()
    now = busy(demand, Sample(running=7, limit=4.0, copies=2), 0.0, 300.0)
    now = busy(demand, Sample(running=0, limit=4.0, copies=2), now, HOLD_S)
    assert not demand.is_surplus(M, now), "its mean has just come down"
    now = busy(demand, Sample(running=0, limit=4.0, copies=2), now, HOLD_S)
    assert demand.is_surplus(M, now)
    busy(demand, Sample(running=0, limit=4.0, copies=2), now, 300.0)
    assert demand.followed == frozenset()


def test_a_copy_that_is_too_many_does_not_come_back_at_once() -> None:
    """The share below which two copies are too many is below what one copy may have."""
    assert 2 * DOWN < UP


def test_a_model_without_a_limit_gets_no_copies() -> None:
    demand = CopyDemand()
    busy(demand, Sample(running=50, limit=0.0, copies=1), 0.0, 300.0)
    assert demand.lacking({M: 1}) == []
    assert demand.load(M, 0) == 0.0


def host(name: str, *ready: bytes) -> Host:
    taken = frozenset(ready)
    return Host(name=name, catalogue=ALL, taken=taken, ready=taken)


def planner(**rules: object) -> ModelPlanner:
    found = ModelPlanner(PlannerRules(max_models=2, models={M: ModelRules(**rules)}))  # type: ignore[arg-type]
    busy(found.demand, Sample(running=4, limit=4.0, copies=1), 0.0, 300.0)
    found.used([M], 299.0)
    return found


def steps(found: ModelPlanner, *hosts: Host) -> list[Step]:
    found.follow(hosts, 300.0)
    return found.plan({}, hosts, unused, 300.0)


def test_a_busy_model_gets_another_copy_where_there_is_room() -> None:
    assert steps(planner(), host("a", M), host("b", N)) == [Step(M, "b", ())]
    assert steps(planner(), host("a", M), host("b", M)) == []
    assert steps(planner(max_copies=1), host("a", M), host("b", N)) == []
    # One change of its copies at a time.
    loading = Host(name="c", catalogue=ALL, taken=frozenset({M}), is_busy=True)
    assert steps(planner(), host("a", M), host("b", N), loading) == []


def test_a_copy_takes_the_place_of_what_is_worth_less() -> None:
    found = planner()
    assert steps(found, host("a", M), host("b", N, P)) == [Step(M, "b", (N,))]
    for second in range(20):
        found.used([N, P], 280.0 + second)
    assert steps(found, host("a", M), host("b", N, P)) == []


def test_a_copy_that_is_needed_is_worth_its_share() -> None:
    found = planner()
    found.used([N], 299.0)
    assert found.value(M, 2, 300.0) == pytest.approx(found.value(M, 1, 300.0) / 2)
    assert found.value(M, 2, 300.0 + HOLD_S + 1) == 0.0


def test_min_copies_come_by_themselves_and_stay() -> None:
    found = ModelPlanner(PlannerRules(max_models=1, models={M: ModelRules(min_copies=2)}))
    assert steps(found, host("a", M), host("b")) == [Step(M, "b", ())]
    both = host("a", M), host("b", M)
    found.follow(both, 300.0)
    assert found.plan({P: 1.0}, both, unused, 300.0) == []
    three = (*both, host("c", M))
    # One may go; when it does, no other one may, even in the same decision.
    found.follow(three, 300.0)
    plan = found.plan({P: 1.0, N: 2.0}, three, unused, 300.0)
    assert plan == [Step(P, "a", (M,))]


def test_a_pin_of_an_operator_counts_more_than_the_file() -> None:
    found = ModelPlanner(PlannerRules(max_models=1, models={M: ModelRules(is_pinned=True)}))
    found.pins = {M: False, N: True}
    assert steps(found, host("a")) == [Step(N, "a", ())]


def test_what_nobody_uses_is_unloaded_when_it_is_configured() -> None:
    found = ModelPlanner(PlannerRules(max_models=2, models={M: ModelRules(idle_unload_s=60.0)}))
    hosts = [host("a", M, N)]

    def plan(now: float) -> list[Step]:
        found.follow(hosts, now)
        return found.plan({}, hosts, unused, now)

    assert plan(1000.0) == []  # since when it is idle is not known
    assert plan(1059.0) == []
    found.used([M], 1030.0)
    assert plan(1061.0) == []
    assert plan(1090.0) == [Step(None, "a", (M,))]
    found.failed(M, "a", "no", 1090.0)
    assert plan(1090.0) == []
