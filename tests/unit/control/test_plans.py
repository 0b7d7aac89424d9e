from __future__ import annotations

from lb.control.plans import LimitBy, LineRule, Planner, PlanRules
from lb.domain.backend import Backend, BackendSpec, parse_address
from lb.domain.model import NO_FACTS, ModelFacts
from lb.domain.schedule import Capacity, QueueRules

STATELESS = ModelFacts(is_stateful=False, is_decoupled=False)
MIXED = ModelFacts(is_stateful=False, is_decoupled=False, is_mixed=True)
TWO = ModelFacts(is_stateful=False, is_decoupled=False, instances=2)
BATCHING = ModelFacts(is_stateful=False, is_decoupled=False, instances=2, max_batch=8)
STATEFUL = ModelFacts(is_stateful=True, is_decoupled=False)
DECOUPLED = ModelFacts(is_stateful=False, is_decoupled=True)
AUTO = PlanRules(usual=LineRule(by=LimitBy.CONFIGURATION))


def backend(name: str, concurrency: int) -> Backend:
    address = parse_address("127.0.0.1:1")
    return Backend(BackendSpec(name=name, http=address, concurrency=concurrency))


def usual(planner: Planner, facts: ModelFacts) -> Capacity | None:
    plan = planner.plan(b"m", facts)
    return plan and plan.default


def test_without_rules_nothing_is_scheduled() -> None:
    assert Planner().plan(b"m", BATCHING) is None


def test_auto_schedules_what_runs_one_by_one() -> None:
    planner = Planner(AUTO)
    assert usual(planner, TWO) == Capacity(2, is_auto=True, instances=2)
    assert usual(planner, BATCHING) == Capacity(16, is_auto=True, instances=2, max_batch=8)
    for facts in (NO_FACTS, STATELESS, STATEFUL, DECOUPLED):
        assert planner.plan(b"m", facts) is None


def test_auto_limits_nothing_where_nobody_tells_what_keeps_a_backend_busy() -> None:
    assert usual(Planner(AUTO), MIXED) == Capacity(is_shared=True)


def test_a_number_holds_for_all_models_but_those_of_sequences() -> None:
    planner = Planner(PlanRules(usual=LineRule(by=LimitBy.NUMBER, concurrency=5)))
    for facts in (NO_FACTS, STATELESS, DECOUPLED):
        assert usual(planner, facts) == Capacity(5, instances=5)
    assert planner.plan(b"m", STATEFUL) is None


def test_measuring_begins_with_what_the_configuration_says() -> None:
    planner = Planner(PlanRules(usual=LineRule(by=LimitBy.MEASUREMENT)))
    assert usual(planner, BATCHING) == Capacity(16, is_adaptive=True, instances=2, max_batch=8)
    assert usual(planner, STATELESS) == Capacity(8, is_adaptive=True, instances=8)
    assert planner.plan(b"m", DECOUPLED) is None


def test_a_backend_may_have_a_limit_of_its_own() -> None:
    planner = Planner(AUTO)
    big, small = backend("big", 16), backend("small", 0)
    planner.follow([big, small])
    plan = planner.plan(b"m", TWO)
    assert plan is not None
    assert plan.limit(big) == Capacity(16, instances=16)
    assert plan.limit(small) == Capacity(2, is_auto=True, instances=2)
    unknown = planner.plan(b"n", STATELESS)
    assert unknown is not None
    assert unknown.limit(small).is_shared


def test_a_model_may_have_rules_of_its_own() -> None:
    mine = LineRule(by=LimitBy.NUMBER, concurrency=1, queue=QueueRules(max_waiting=2))
    planner = Planner(PlanRules(usual=AUTO.usual, models={b"m": mine, b"off": LineRule()}))
    plan = planner.plan(b"m", TWO)
    assert plan is not None
    assert plan.default.concurrency == 1
    assert plan.rules.max_waiting == 2
    assert planner.plan(b"off", TWO) is None
    other = planner.plan(b"other", TWO)
    assert other is not None
    assert other.default.concurrency == 2


def test_a_plan_stays_the_same_while_the_same_holds() -> None:
    planner = Planner(AUTO)
    big = backend("big", 16)
    planner.follow([big])
    plan = planner.plan(b"m", TWO)
    planner.follow([big])
    assert planner.plan(b"n", TWO) is plan
    planner.follow([])
    assert planner.plan(b"m", TWO) is not plan
