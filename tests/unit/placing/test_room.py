"""Room by memory, and models that must be on the same backend."""

from __future__ import annotations

from lb.domain.model import ModelUse
from lb.placing.planner import Host, ModelPlanner, ModelRules, PlannerRules, Step
from lb.placing.sizes import ModelSizes

M, N, P, Q = b"m", b"n", b"p", b"q"
ALL = frozenset({M, N, P, Q})
SIZES = {M: 4, N: 2, P: 3, Q: 6}


def unused(_backend: str, _model: bytes) -> ModelUse:
    return ModelUse(0, 0)


def host(*ready: bytes, used: int | None = None, name: str = "a") -> Host:
    taken = frozenset(ready)
    return Host(name=name, catalogue=ALL, taken=taken, ready=taken, memory_used=used)


def planner(**rules: object) -> ModelPlanner:
    found = ModelPlanner(PlannerRules(memory=10, **rules))  # type: ignore[arg-type]
    found.sizes.configured = SIZES
    return found


def load(found: ModelPlanner, model: bytes, *hosts: Host) -> list[Step]:
    found.follow(hosts, 100.0)
    return found.plan({model: 99.0}, hosts, unused, 100.0)


def test_models_make_room_by_their_size() -> None:
    found = planner()
    assert load(found, P, host(M, N)) == [Step(P, "a", ())]
    assert load(found, Q, host(M, N)) == [Step(Q, "a", (M,))]
    found.used([M], 99.0)
    assert load(found, Q, host(M, N)) == [Step(Q, "a", (N,))]
    # The one that is used less does not suffice alone; then it may stay.
    assert load(found, Q, host(M, N, used=8)) == [Step(Q, "a", (M,))]
    assert load(found, Q, host(M, P)) == [Step(Q, "a", (P,))]
    both = ModelPlanner(PlannerRules(memory=10, max_models=1))
    both.sizes.configured = SIZES
    assert load(both, N, host(M)) == [Step(N, "a", (M,))]


def test_a_model_that_is_too_large_is_loaded_nowhere() -> None:
    found = planner()
    found.sizes.configured = {**SIZES, Q: 11}
    assert load(found, Q, host(M, N)) == []


def test_memory_that_others_use_counts() -> None:
    found = planner()
    assert load(found, P, host(M, used=9)) == [Step(P, "a", (M,))]
    assert load(found, P, host(M, used=4)) == [Step(P, "a", ())]


def test_memory_that_did_not_come_back_evicts_nothing_in_vain() -> None:
    found = planner()
    assert found.sizes.unloaded(M, "a", shrunk=0) == 4
    assert load(found, P, host(N, used=6)) == [Step(P, "a", ())]
    # Triton has used it for the next model: it is not missing any more.
    found.sizes.loaded(M, "a", grown=0)
    assert found.sizes.unreturned == {}
    found.sizes.unloaded(M, "a", shrunk=1)
    found.sizes.restarted("a")
    assert found.sizes.unreturned == {}


def test_sizes_are_configured_or_measured_or_told_or_guessed() -> None:
    sizes = ModelSizes(configured={M: 4})
    assert (sizes.of(N), sizes.source(N)) == (4, "guessed")
    sizes.told[N] = 10
    assert (sizes.of(N), sizes.source(N)) == (10, "statistics")
    sizes.loaded(N, "a", grown=6)
    sizes.loaded(N, "a", grown=5)
    assert (sizes.of(N), sizes.source(N)) == (6, "measured")
    sizes.loaded(M, "a", grown=100)
    assert (sizes.of(M), sizes.source(M)) == (4, "configured")
    assert sizes.of(P) == (4 + 6) // 2
    sizes.forget(set(), set())
    assert sizes.measured == sizes.told == {}
    assert ModelSizes().of(M) == 0


def test_an_ensemble_brings_its_steps_and_takes_them_along() -> None:
    found = ModelPlanner(PlannerRules(max_models=3))
    found.steps = {M: frozenset({N, P})}
    assert load(found, M, host()) == [Step(M, "a", (), (N, P))]
    assert load(found, M, host(N)) == [Step(M, "a", (), (P,))]
    # A step of a model that is about to be loaded makes no room for it.
    assert load(found, M, host(N, Q)) == [Step(M, "a", (Q,), (P,))]
    # The ensemble makes room before its steps may.
    found.used([Q], 99.0)
    assert load(found, Q, host(M, N, P)) == [Step(Q, "a", (M,))]
    small = ModelPlanner(PlannerRules(max_models=1))
    small.steps = {M: frozenset({N})}
    assert load(small, Q, host(M, N)) == [Step(Q, "a", (M, N))]


def test_models_that_a_model_calls_are_loaded_before_it_in_their_order() -> None:
    calls = {M: ModelRules(calls=frozenset({N})), N: ModelRules(calls=frozenset({P}))}
    found = ModelPlanner(PlannerRules(max_models=4, models=calls))
    assert load(found, M, host()) == [Step(M, "a", (), (P, N))]
    missing = Host(name="b", catalogue=ALL - {P})
    assert load(found, M, missing) == []
    assert load(found, Q, host(M, N, P, name="c")) == [Step(Q, "c", ())]
    circle = {M: ModelRules(calls=frozenset({N})), N: ModelRules(calls=frozenset({M}))}
    found = ModelPlanner(PlannerRules(max_models=4, models=circle))
    assert load(found, M, host()) == [Step(M, "a", (), (N,))]
