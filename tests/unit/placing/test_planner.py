"""Which model is loaded where, and what makes room for it."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random

import pytest

from lb.domain.model import ModelUse
from lb.placing.planner import (
    GONE_PAUSE_S,
    IN_USE_S,
    MAX_PLACES,
    MAX_RETRY_AFTER_S,
    MIN_OVERDUE_S,
    MIN_OVERDUE_UNLOAD_S,
    OVERDUE_LOADS,
    OVERDUE_UNLOADS,
    RETRY_AFTER_S,
    FailureKind,
    Host,
    ModelPlanner,
    ModelRules,
    PlannerRules,
    Step,
)
from tests.fakes.model_store import SimulatedStores, belady_hits, lru_hits, zipf

M, N, P, Q = b"m", b"n", b"p", b"q"
COLD = [b"c%d" % number for number in range(8)]
ALL = frozenset({M, N, Q, P})
RULES = PlannerRules(max_models=2)


def host(name: str = "a", *ready: bytes, **facts: object) -> Host:
    found = {"catalogue": ALL, "taken": frozenset(ready), "ready": frozenset(ready), **facts}
    return Host(name=name, **found)  # type: ignore[arg-type]


def unused(_backend: str, _model: bytes) -> ModelUse:
    return ModelUse(0, 0)


def steps(
    planner: ModelPlanner, *hosts: Host, wanted: tuple[bytes, ...] = (P,), now: float = 1e4
) -> list[Step]:
    """What is planned for models that are wanted in that order."""
    planner.follow(hosts, now)
    since = {model: now - 1 + at / 100 for at, model in enumerate(wanted)}
    return planner.plan(since, hosts, unused, now)


def test_a_wanted_model_goes_where_there_is_room_and_least_to_do() -> None:
    planner = ModelPlanner(RULES)
    full, busy = host("a", M, N), host("b", is_busy=True)
    assert steps(planner, full, busy, host("c", M, in_flight=3), host("d", Q, in_flight=1)) == [
        Step(P, "d", ())
    ]
    assert steps(planner, host("c", M), host("d")) == [Step(P, "d", ())]
    assert steps(planner, host("c", catalogue=frozenset({M}))) == []


def test_one_load_for_each_model_and_each_backend() -> None:
    planner = ModelPlanner(RULES)
    assert steps(planner, host("a"), host("b"), wanted=(M, N, Q)) == [
        Step(M, "a", ()), Step(N, "b", ()),
    ]  # fmt: skip
    loading = host("a", taken=frozenset({P}), is_busy=True)
    assert steps(planner, loading, host("b")) == []


def test_what_is_used_least_for_what_it_costs_makes_room() -> None:
    planner = ModelPlanner(RULES)
    planner.used([M, N], 100.0)
    planner.used([M], 101.0)
    assert steps(planner, host("a", M, N), now=200.0) == [Step(P, "a", (N,))]
    planner.loaded(N, "a", took_s=60.0)
    planner.loaded(M, "a", took_s=2.0)
    assert steps(planner, host("a", M, N), now=200.0) == [Step(P, "a", (M,))]


def test_old_use_fades() -> None:
    """The popularity of models is turned upside down: the planner follows within some loads."""
    stores = SimulatedStores(count=1, models=[M, N, P], rules=PlannerRules(max_models=2))
    for popular, until in (([M, N], 300), ([P, N], 600)):
        loads = len(stores.loads)
        while len(stores.loads) + stores.hits < until:
            for each in popular:
                stores.advance(stores.now + 1.0)
                stores.ask(each)
        assert len(stores.loads) - loads <= 4


def test_it_is_said_when_time_changes_what_is_decided() -> None:
    planner = ModelPlanner(PlannerRules(max_models=1, min_age_s=30.0))
    steps(planner, host("a"), wanted=(), now=90.0)
    planner.used([M], 100.0)
    planner.follow([host("a", M)], 100.0)
    assert planner.due_at({}, 100.0) == inf
    assert planner.due_at({P: 100.0}, 100.0) == 101.0, "then requests in flight do not matter"
    assert planner.due_at({P: 100.0}, 101.0) == 130.0, "then it is old enough"
    planner.failed(P, "a", "no", 101.0)
    assert planner.due_at({P: 100.0}, 101.0) == 116.0, "then it may be tried again"
    planner.stayed_in_use(M, "a", 110.0)
    assert planner.due_at({P: 100.0}, 130.0) == 140.0
    assert planner.due_at({P: 100.0}, 140.0) == inf


def test_a_second_copy_goes_first() -> None:
    planner = ModelPlanner(RULES)
    planner.used([M, N], 100.0)
    for _ in range(5):
        planner.used([M], 100.0)
    hosts = host("a", M, N), host("b", M, Q, is_busy=True)
    assert steps(planner, *hosts, now=101.0) == [Step(P, "a", (M,))]


def test_what_is_pinned_kept_needed_used_young_or_wanted_stays() -> None:
    rules = PlannerRules(max_models=2, min_age_s=30.0, models={M: ModelRules(is_pinned=True)})
    planner = ModelPlanner(rules)
    assert steps(planner, host("a", M, N)) == [Step(P, "a", (N,))]
    planner.steps = {M: frozenset({N})}
    assert steps(planner, host("a", M, N)) == []
    planner.steps = {}
    assert steps(planner, host("a", M, N), wanted=(N, P)) == []
    assert (
        planner.plan(
            {P: 0.0}, [host("a", M, N)], lambda *which: ModelUse(0, which == ("a", N)), 1e4
        )
        == []
    )
    planner.kept.add(N)
    assert steps(planner, host("a", M, N)) == []
    planner.kept.clear()
    steps(planner, host("a", M), wanted=(), now=100.0)
    planner.used([N], 110.0)
    assert steps(planner, host("a", M, N), now=110.0) == []
    assert steps(planner, host("a", M, N), now=139.9) == []
    assert steps(planner, host("a", M, N), now=140.0) == [Step(P, "a", (N,))]


def test_a_model_that_nobody_has_used_is_soon_old_enough() -> None:
    planner = ModelPlanner(PlannerRules(max_models=1, min_age_s=30.0))
    steps(planner, host("a"), wanted=(), now=90.0)
    planner.follow([host("a", M)], 100.0)
    assert planner.due_at({P: 99.5}, 100.5) == 100.0 + IN_USE_S
    assert steps(planner, host("a", M), now=100.9) == []
    assert steps(planner, host("a", M), now=101.0) == [Step(P, "a", (M,))]
    planner.used([M], 101.0)
    assert steps(planner, host("a", M), now=129.9) == []


@pytest.mark.parametrize(
    ("stores", "room", "min_age_s", "patience_s"),
    [(1, 2, 0.0, 1.5), (1, 2, 3.0, 1.5), (1, 2, 30.0, 20.0), (2, 1, 3.0, 1.5), (2, 1, 30.0, 20.0)],
)
def test_a_model_that_is_used_does_not_wait_for_a_crowd_that_asks_for_others(
    stores: int, room: int, min_age_s: float, patience_s: float
) -> None:
    """Eight clients, each of which asks for one model after the other, and leaves it after some
    time, served or not. They take turns in the place that is left."""
    pool = SimulatedStores(
        count=stores,
        models=[M, *COLD],
        rules=PlannerRules(max_models=room, min_age_s=min_age_s),
        load_s=0.5,
        unload_s=1.2,
        request_s=0.02,
    )
    rng = Random(3)
    pool.ask(M)
    pool.advance(pool.now + 10.0)
    asked = {client: (pool.now - rng.random() * patience_s, M) for client in range(8)}
    loads = len(pool.loads)
    for _ in range(1200):
        pool.advance(pool.now + 0.05)
        hits = pool.hits
        pool.ask(M)
        assert pool.hits == hits + 1, "it is loaded"
        for client, (since, model) in asked.items():
            if pool.now >= since + patience_s:
                pool.leave(model, since)
                asked[client] = pool.now, rng.choice(COLD)
                pool.ask(asked[client][1])
    assert len(pool.loads) > loads, "the others are not left out"


def test_models_that_were_there_at_the_start_are_old_enough() -> None:
    planner = ModelPlanner(PlannerRules(max_models=1, min_age_s=30.0))
    assert steps(planner, host("a", M), now=5.0) == [Step(P, "a", (M,))]
    assert planner.loaded_at == {(M, "a"): -inf}


def test_pinned_models_are_loaded_without_being_asked_for() -> None:
    pinned = ModelRules(is_pinned=True)
    planner = ModelPlanner(PlannerRules(max_models=2, models={M: pinned, N: pinned}))
    assert steps(planner, host("a", Q), wanted=()) == [Step(M, "a", ())]
    assert steps(planner, host("a", M, Q), wanted=()) == [Step(N, "a", (Q,))]
    assert steps(planner, host("a", M, N), wanted=()) == []


def test_what_clients_unloaded_is_not_loaded_for_requests() -> None:
    planner = ModelPlanner(RULES)
    planner.withdrawn.add(P)
    assert steps(planner, host("a")) == []


def test_a_backend_that_has_too_much_gets_room_for_one_more() -> None:
    assert steps(ModelPlanner(RULES), host("a", M, N, Q)) == [Step(P, "a", (M, N))]


def test_a_failed_load_is_tried_elsewhere_and_later_again() -> None:
    planner = ModelPlanner(RULES)
    hosts = host("a"), host("b")
    planner.failed(P, "a", "out of memory", 100.0)
    assert planner.refusal(P, hosts, 100.0) == ""
    assert steps(planner, *hosts, now=100.0) == [Step(P, "b", ())]
    planner.failed(P, "b", "no such file", 101.0)
    assert planner.refusal(P, hosts, 101.0) == "no such file"
    assert steps(planner, *hosts, now=101.0) == []
    later = 100.0 + RETRY_AFTER_S
    assert planner.refusal(P, hosts, later) == ""
    assert steps(planner, *hosts, now=later) == [Step(P, "a", ())]
    planner.failed(P, "a", "out of memory", later)
    assert steps(planner, host("a"), now=later + RETRY_AFTER_S) == []
    assert steps(planner, host("a"), now=later + 2 * RETRY_AFTER_S) == [Step(P, "a", ())]
    planner.forget_failures(P)
    assert planner.refusal(P, hosts, later) == ""


def test_a_model_that_fails_on_three_backends_ends_no_fourth() -> None:
    planner = ModelPlanner(RULES)
    hosts = [host(name) for name in "abcd"]
    for name in "abcd"[:MAX_PLACES]:
        assert len(steps(planner, *hosts, now=100.0)) == 1
        planner.failed(P, name, f"{name} says no", 100.0)
    assert steps(planner, *hosts, now=100.0) == []
    assert planner.refusal(P, hosts, 100.0) == "a says no"


def test_a_load_is_overdue_by_what_it_took_before_and_made_on_three_backends() -> None:
    planner = ModelPlanner(RULES)
    assert planner.overdue_s(P) == MIN_OVERDUE_S
    planner.loaded(P, "a", 1.0)
    assert planner.overdue_s(P) == MIN_OVERDUE_S
    planner.loaded(P, "a", 100.0)
    assert planner.overdue_s(P) == 100.0 * OVERDUE_LOADS
    hanging = [
        host(name, taken=frozenset({P}), overdue=frozenset({P}), is_busy=True) for name in "abc"
    ]
    assert steps(planner, hanging[0], host("b"), host("c")) == [Step(P, "b", ())]
    assert steps(planner, *hanging[:2], host("c")) == [Step(P, "c", ())]
    assert steps(planner, *hanging, host("d")) == []
    assert planner.refusal(P, hanging, 1e4) == ""


def test_a_backend_on_which_a_load_hung_is_left_alone_for_as_long() -> None:
    planner = ModelPlanner(RULES)
    planner.failed(P, "a", "time-out", 700.0, took_s=600.0)
    assert steps(planner, host("a"), now=1299.0) == []
    assert steps(planner, host("a"), now=1300.0) == [Step(P, "a", ())]


def test_backends_that_are_not_there_say_nothing_of_a_model() -> None:
    planner = ModelPlanner(RULES)
    hosts = host("a"), host("b")
    planner.failed(P, "a", "out of memory", 100.0)
    planner.failed(P, "b", "refused the connection", 101.0, FailureKind.ABSENT)
    assert planner.refusal(P, hosts, 101.0) == ""
    assert steps(planner, *hosts, now=101.0) == []
    later = 101.0 + GONE_PAUSE_S
    assert planner.due_at({P: 100.0}, 101.0) == later
    assert steps(planner, *hosts, now=later) == [Step(P, "b", ())]
    planner.failed(P, "b", "no such file", later)
    assert planner.refusal(P, hosts, later) == "no such file"
    assert steps(planner, host("b"), now=later + RETRY_AFTER_S) == [Step(P, "b", ())]


def test_a_load_that_ends_backends_is_not_tried_on_a_third_one() -> None:
    planner = ModelPlanner(RULES)
    planner.failed(P, "a", "lost", 100.0, FailureKind.DIED)
    assert steps(planner, host("b"), host("c"), now=101.0) == [Step(P, "b", ())]
    planner.failed(P, "b", "lost again", 102.0, FailureKind.DIED)
    assert steps(planner, host("c"), now=103.0) == []
    assert planner.refusal(P, [host("c")], 103.0) == "lost again"
    assert steps(planner, host("c"), now=102.0 + MAX_RETRY_AFTER_S) == [Step(P, "c", ())]


def test_a_good_load_clears_a_model_of_the_deaths_before_it() -> None:
    planner = ModelPlanner(RULES)
    planner.failed(P, "a", "lost", 100.0, FailureKind.DIED)
    planner.loaded(P, "b", 1.0)
    planner.failed(P, "b", "lost again", 110.0, FailureKind.DIED)
    hosts = host("a", M), host("c")
    assert planner.refusal(P, hosts, 110.0) == ""
    assert steps(planner, *hosts, now=110.0) == [Step(P, "c", ())]
    planner.failed(P, "c", "lost as well", 111.0, FailureKind.DIED)
    assert planner.refusal(P, hosts, 111.0) == "lost as well"
    assert steps(planner, *hosts, now=111.0 + RETRY_AFTER_S) == []


def test_requests_wait_for_a_backend_that_died_before_the_last_good_load() -> None:
    planner = ModelPlanner(RULES)
    planner.failed(P, "a", "lost", 100.0, FailureKind.DIED)
    planner.loaded(P, "b", 1.0)
    planner.failed(P, "b", "lost again", 110.0, FailureKind.DIED)
    assert planner.refusal(P, [host("a"), host("b")], 110.0) == ""
    assert steps(planner, host("a"), host("b"), now=110.0) == []
    again = 100.0 + RETRY_AFTER_S
    assert planner.due_at({P: 110.0}, 111.0) == again
    assert steps(planner, host("a"), host("b"), now=again) == [Step(P, "a", ())]


def test_an_unload_that_is_overdue_holds_neither_its_model_nor_the_next_one() -> None:
    planner = ModelPlanner(RULES)
    hanging = host(
        "a", M, taken=frozenset({M, N, P}), overdue=frozenset({P}), leaving=frozenset({N}),
        is_busy=True,
    )  # fmt: skip
    other = host("b", M, Q)
    assert steps(planner, hanging, other, wanted=(P,)) == [Step(P, "b", (M,))]
    assert steps(planner, hanging, other, wanted=(N,)) == [Step(N, "b", (M,))]
    on_time = host("a", M, taken=frozenset({M, N, P}), is_busy=True)
    assert steps(planner, on_time, other, wanted=(N, P)) == []


def test_a_model_whose_unload_is_overdue_may_be_loaded_again_where_it_is() -> None:
    """It takes the room that it has. Another one needs room of its own."""
    planner = ModelPlanner(PlannerRules(max_models=1))
    leaving = host("a", taken=frozenset({N}), leaving=frozenset({N}))
    assert steps(planner, leaving, wanted=(P,)) == []
    assert steps(planner, leaving, wanted=(N,)) == [Step(N, "a", ())]


def test_an_unload_is_overdue_by_what_it_took_before() -> None:
    planner = ModelPlanner(RULES)
    assert planner.overdue_unload_s(P) == MIN_OVERDUE_UNLOAD_S
    planner.unload_s[P] = 4.0
    assert planner.overdue_unload_s(P) == 4.0 * OVERDUE_UNLOADS
    planner.unload_s[P] = 50.0  # somebody else kept it
    assert planner.overdue_unload_s(P) == MIN_OVERDUE_S


def test_what_leaves_the_repository_is_forgotten() -> None:
    planner = ModelPlanner(RULES)
    planner.used([M], 1.0)
    planner.loaded(M, "a", 1.0)
    planner.unload_s[M] = 1.0
    planner.failed(M, "a", "no", 1.0)
    planner.kept.add(M)
    planner.withdrawn.add(M)
    planner.follow([host("a", catalogue=frozenset({N}))], 2.0)
    assert planner.load_s == planner.unload_s == planner.failures == {}
    assert planner.kept == planner.withdrawn == set()


@pytest.mark.parametrize(("exponent", "gap"), [(0.8, 0.095), (1.0, 0.085), (1.2, 0.06)])
def test_hits_come_near_the_best_offline_order_and_beat_least_recently_used(
    exponent: float, gap: float
) -> None:
    """20 models, three backends of four, ten minutes with five requests a second."""
    requests = zipf(20, exponent, 3000, Random(7))
    stores = SimulatedStores(
        count=3,
        models=[b"%d" % each for each in range(20)],
        rules=PlannerRules(max_models=4),
    )
    for each in requests:
        stores.advance(stores.now + 0.2)
        stores.ask(b"%d" % each)
    hits, best = stores.hits / len(requests), belady_hits(requests, 12) / len(requests)
    least_recently_used = lru_hits(requests, 12) / len(requests)
    assert stores.served == len(requests)
    assert hits >= least_recently_used
    assert hits >= best - gap


def test_two_models_that_do_not_fit_take_turns() -> None:
    """At most one swap in `min_age`, and both make progress."""
    stores = SimulatedStores(
        count=1,
        models=[M, N],
        rules=PlannerRules(max_models=1, min_age_s=30.0),
        load_s=2.0,
        unload_s=1.0,
        request_s=0.01,
    )
    for _ in range(6000):
        stores.advance(stores.now + 0.1)
        stores.ask(M)
        stores.ask(N)
    swaps = [at for at, *_ in stores.evictions]
    assert len(swaps) >= 15
    assert min(after - before for before, after in pairwise(swaps)) >= 30.0
    # One that comes when its model is evicted waits for the other one to come, to stay for 30 s,
    # and to be replaced; somebody looks once a second.
    assert stores.longest_wait_s <= (1.0 + 2.0) + 30.0 + 1.0 + (1.0 + 2.0)


def test_two_models_whose_requests_never_pause_take_turns() -> None:
    stores = SimulatedStores(
        count=1,
        models=[M, N],
        rules=PlannerRules(max_models=1, min_age_s=30.0),
        load_s=2.0,
        unload_s=1.0,
        request_s=0.5,
    )
    for _ in range(6000):
        stores.advance(stores.now + 0.1)
        stores.ask(M)
        stores.ask(N)
    swaps = [at for at, *_ in stores.evictions]
    assert len(swaps) >= 14
    assert min(after - before for before, after in pairwise(swaps)) >= 30.0
    assert stores.longest_wait_s <= 45.0


def test_a_model_in_use_makes_room_after_a_second_and_one_with_sequences_never() -> None:
    planner = ModelPlanner(RULES)
    hosts = [host("a", M, N)]
    planner.follow(hosts, 1e4)

    def plan(now: float, *, sequences: int = 0) -> list[Step]:
        return planner.plan({P: 1e4}, hosts, lambda _, model: ModelUse(1, sequences), now)

    assert plan(1e4 + 0.9) == []
    assert plan(1e4 + 1.0) == [Step(P, "a", (M,))]
    assert plan(1e4 + 1.0, sequences=1) == []
    planner.stayed_in_use(M, "a", 1e4 + 6.0)
    assert plan(1e4 + 7.0) == [Step(P, "a", (N,))]
