"""When standby backends are activated and released."""

from __future__ import annotations

from random import Random

import pytest

from lb.control.standby_plan import Load, StandbyBackend, StandbyPlanner, Wanted
from lb.domain.backend import AppProtocol
from lb.domain.standby import ActivationCause, StandbyPhase

STANDBY, ACTIVATING = StandbyPhase.STANDBY, StandbyPhase.ACTIVATING
ACTIVE, RELEASING = StandbyPhase.ACTIVE, StandbyPhase.RELEASING
CALM = Load(latency=0.5, needed=0.5, serving=2.0)
LATE = Load(latency=1.01, needed=2.5, serving=2.0)
BERT: Wanted = (b"bert", AppProtocol.HTTP)


def backend(name: str, rank: int, phase: StandbyPhase = STANDBY, **other: object) -> StandbyBackend:
    return StandbyBackend(name, rank, 1.0, phase, 0.0)._replace(**other)  # type: ignore[arg-type]


def anything(_name: str, _wanted: Wanted) -> bool:
    return True


class Planning:
    """Asks a planner again and again."""

    def __init__(self, *backends: StandbyBackend) -> None:
        self.planner = StandbyPlanner(for_s=10.0, cooldown_s=600.0)
        self.backends = list(backends)

    def at(self, now: float, load: Load, *wanted: Wanted) -> tuple[list[str], str]:
        plan = self.planner.plan(self.backends, load, wanted, anything, now)
        return [name for name, _ in plan.activate], plan.release


def test_a_request_without_a_backend_activates_the_first_rank_at_once() -> None:
    planning = Planning(backend("b", 2), backend("a", 1))
    assert planning.at(0.0, CALM, BERT, (b"gpt", AppProtocol.GRPC)) == (["a"], "")
    planning.backends[1] = backend("a", 1, ACTIVATING)
    assert planning.at(1.0, CALM, BERT) == ([], "")


def test_a_backend_that_may_serve_the_model_goes_before_the_rank() -> None:
    planner = StandbyPlanner()
    plan = planner.plan(
        [backend("a", 1), backend("b", 2)], CALM, [BERT], lambda name, _: name == "b", 0.0
    )
    assert plan.activate == (("b", ActivationCause.NO_BACKEND),)


def test_one_that_failed_is_passed_over_until_it_is_due() -> None:
    planning = Planning(backend("a", 1, retry_at=10.0), backend("b", 2))
    assert planning.at(0.0, CALM, BERT) == (["b"], "")
    planning.backends.pop()
    assert planning.at(1.0, CALM, BERT) == ([], "")
    assert planning.at(10.0, CALM, BERT) == (["a"], "")


def test_a_released_one_is_taken_back_unless_it_is_being_stopped() -> None:
    planning = Planning(backend("a", 1, RELEASING))
    assert planning.at(0.0, CALM, BERT) == (["a"], "")
    planning.backends = [backend("a", 1, RELEASING, is_stopping=True)]
    assert planning.at(0.0, CALM, BERT) == ([], "")


def test_a_latency_above_the_budget_counts_after_a_time_without_a_break() -> None:
    planning = Planning(backend("a", 1), backend("b", 2))
    assert planning.at(0.0, LATE) == ([], "")
    assert planning.at(9.0, LATE) == ([], "")
    assert planning.at(9.5, CALM) == ([], "")
    assert planning.at(10.0, LATE) == ([], "")
    assert planning.at(20.0, LATE) == (["a"], "")


def test_backends_are_activated_one_after_the_other() -> None:
    planning = Planning(backend("a", 1), backend("b", 2))
    planning.at(0.0, LATE)
    assert planning.at(10.0, LATE) == (["a"], "")
    planning.backends[0] = backend("a", 1, ACTIVATING)
    assert planning.at(20.0, LATE) == ([], "")
    planning.backends[0] = backend("a", 1, ACTIVE, since=25.0)
    assert planning.at(30.0, LATE._replace(serving=3.0)) == ([], ""), "it needs time to be felt"
    assert planning.at(35.0, LATE._replace(serving=3.0)) == (["b"], "")


def test_a_larger_need_activates_several() -> None:
    planning = Planning(*(backend(f"b{rank}", rank) for rank in range(1, 6)))
    planning.at(0.0, LATE._replace(needed=4.5))
    assert planning.at(10.0, LATE._replace(needed=4.5)) == (["b1", "b2", "b3"], "")


def test_the_last_rank_is_released_after_the_cooldown() -> None:
    planning = Planning(backend("a", 1, ACTIVE), backend("b", 2, ACTIVE))
    spare = Load(latency=0.5, needed=2.0, serving=4.0)
    assert planning.at(1000.0, spare) == ([], "")
    assert planning.at(1599.0, spare) == ([], "")
    assert planning.at(1600.0, spare) == ([], "b")


def test_one_is_released_in_each_cooldown() -> None:
    planning = Planning(backend("a", 1, ACTIVE), backend("b", 2, ACTIVE))
    idle = Load(latency=0.5, needed=0.0, serving=2.0)
    assert planning.at(1000.0, idle) == ([], "")
    assert planning.at(1600.0, idle) == ([], "b")
    planning.backends.pop()
    fewer = idle._replace(serving=1.0)
    assert planning.at(1601.0, fewer) == ([], "")
    assert planning.at(2199.0, fewer) == ([], "")
    assert planning.at(2200.0, fewer) == ([], "a")


@pytest.mark.parametrize(
    "break_", [LATE._replace(serving=4.0), Load(latency=0.5, needed=3.0, serving=4.0)]
)
def test_a_need_in_between_begins_the_cooldown_anew(break_: Load) -> None:
    planning = Planning(backend("a", 1, ACTIVE), backend("b", 2, ACTIVE))
    spare = Load(latency=0.5, needed=2.0, serving=4.0)
    planning.at(1000.0, spare)
    planning.at(1500.0, break_)
    assert planning.at(1600.0, spare) == ([], "")
    assert planning.at(2200.0, spare) == ([], "b")


def test_a_slow_start_makes_the_cooldown_longer() -> None:
    planning = Planning(backend("a", 1, ACTIVE, cold_start_s=300.0))
    idle = Load(latency=0.5, needed=0.0, serving=1.0)
    planning.at(0.0, idle)
    assert planning.at(1499.0, idle) == ([], "")
    assert planning.at(1500.0, idle) == ([], "a")


def test_open_sequences_keep_a_backend() -> None:
    planning = Planning(backend("a", 1, ACTIVE, has_sequences=True))
    idle = Load(latency=0.5, needed=0.0, serving=1.0)
    planning.at(0.0, idle)
    assert planning.at(600.0, idle) == ([], "")
    planning.backends = [backend("a", 1, ACTIVE)]
    assert planning.at(601.0, idle) == ([], "a")


def test_nothing_is_released_before_anything_is_known_of_the_load() -> None:
    planning = Planning(backend("a", 1, ACTIVE))
    unknown = Load(latency=0.5, needed=None, serving=1.0)
    planning.at(0.0, unknown)
    assert planning.at(5000.0, unknown) == ([], "")


@pytest.mark.parametrize("seed", range(5))
def test_no_backend_is_activated_twice_within_a_cooldown(seed: int) -> None:
    """Four days of a load by chance."""
    rng = Random(seed)
    planning = Planning(*(backend(f"b{rank}", rank) for rank in range(5)))
    activated_at = dict[str, float]()
    for now in range(0, 4 * 86_400, 30):
        for at, each in enumerate(planning.backends):
            if each.phase is ACTIVATING and now - each.since >= 60.0:
                planning.backends[at] = each._replace(phase=ACTIVE, since=now)
        serving = 2.0 + sum(each.phase is ACTIVE for each in planning.backends)
        # Calm for as long as a cool-down now and then, otherwise wild.
        wild = rng.random() if now // 900 % 2 else 0.0
        load = Load(wild * 2.0, wild * 9.0, serving)
        wanted = [BERT] if rng.random() < 0.01 else []
        activate, release = planning.at(now, load, *wanted)
        for at, each in enumerate(planning.backends):
            if each.name in activate:
                assert now - activated_at.get(each.name, -1e9) > planning.planner.cooldown_s
                activated_at[each.name] = now
                planning.backends[at] = each._replace(phase=ACTIVATING, since=now)
            elif each.name == release:
                planning.backends[at] = each._replace(phase=STANDBY, since=now)
    assert activated_at.keys() == {each.name for each in planning.backends}
