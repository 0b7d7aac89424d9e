"""Re-runs have a budget, and models that kill have none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.rerun import DeathGrants, FairRerunBudget, PoisonModels, RerunBudget


def spend(budget: RerunBudget, attempts: int, now: float, most: int = 10_000) -> int:
    """How many it gives at once."""
    return next((n for n in range(most) if not budget.take(attempts, now)), most)


def test_a_few_are_always_there() -> None:
    budget = RerunBudget(0.2, 10.0, 0.0)
    assert spend(budget, 0, 0.5) == 100
    assert spend(budget, 0, 2.0) == 20


def test_what_other_rules_saved_up_is_forgotten() -> None:
    budget = RerunBudget(0.2, 10.0, 0.0)
    budget.configure(0.0, 0.0)
    assert not budget.take(0, 0.0)
    budget.configure(0.0, 10.0)
    assert budget.take(0, 0.0)


def test_what_was_of_no_use_is_given_back() -> None:
    budget = RerunBudget(0.2, 10.0, 0.0)
    for _ in range(50):
        assert budget.take(0, 0.5)
        budget.give_back()
    assert spend(budget, 0, 0.5) == 100


def test_a_client_whose_requests_always_fail_leaves_the_reserve_to_others() -> None:
    budget = FairRerunBudget(0.2, 10.0, 0.0)
    assert sum(budget.take("hostile", 0, 0.5) for _ in range(1000)) == 100
    assert sum(budget.take("other", 0, 0.5) for _ in range(1000)) == 50
    assert sum(budget.take("third", 0, 0.5) for _ in range(1000)) == 25
    assert not budget.take("hostile", 0, 0.9)


@given(st.lists(st.integers(1, 40), min_size=20, max_size=60))
def test_whatever_a_client_does_something_is_there_for_another(tries: list[int]) -> None:
    budget = FairRerunBudget(0.0, 10.0, 0.0)
    for second, count in enumerate(tries):
        for _ in range(count):
            budget.take("hostile", 0, float(second))
    assert sum(budget.take("other", 0, float(len(tries))) for _ in range(1000)) >= 50


def test_clients_that_came_long_ago_keep_nobody_from_being_remembered() -> None:
    """A thousand are remembered. Those of ten seconds ago make room for others."""
    budget = FairRerunBudget(0.0, 200.0, 0.0)
    assert all(budget.take(number, 0, 0.0) for number in range(1100))
    assert sum(budget.take("hostile", 0, 20.0) for _ in range(5000)) == 2000
    assert sum(budget.take("other", 0, 20.0) for _ in range(5000)) == 1000


def test_a_client_that_is_alone_has_all_that_is_earned() -> None:
    budget = FairRerunBudget(0.0, 10.0, 0.0)
    taken = [sum(budget.take("alone", 0, float(at)) for _ in range(1000)) for at in range(100)]
    assert sum(taken) == 1090


def test_a_share_of_all_requests_may_go_again() -> None:
    budget = RerunBudget(0.2, 0.0, 0.0)
    assert spend(budget, 1000, 10.0) == 200
    assert spend(budget, 1200, 10.5) == 0
    assert spend(budget, 2200, 20.0) == 200, "1,000 requests and 200 re-runs since"


def test_what_was_saved_up_is_that_of_ten_seconds() -> None:
    budget = RerunBudget(0.2, 0.0, 0.0)
    assert spend(budget, 100_000, 1000.0) == 200


def test_backends_that_left_earn_nothing() -> None:
    budget = RerunBudget(0.2, 0.0, 0.0)
    spend(budget, 1000, 10.0)
    assert spend(budget, 500, 20.0) == 0
    assert spend(budget, 600, 30.0) == 20


def test_a_connection_lost_before_takes_one_place_of_a_death() -> None:
    grants = DeathGrants()
    assert grants.take("a", 1, 0.0)
    assert not grants.take("a", 1, 1.0)
    taken = [grants.take("a", in_flight, 5.0) for in_flight in range(40, 0, -1)]
    assert taken == [True] * 39 + [False]


def test_a_stream_is_granted_a_run_for_each_of_its_requests_if_it_is_lost_with_the_first() -> None:
    grants = DeathGrants()
    assert grants.take("a", 2, 0.0, count=8)
    assert grants.take("a", 1, 0.5, count=4)
    assert not grants.take("a", 1, 0.6, count=2), "of two streams there were two"
    assert not grants.take("a", 1, 5.0, count=8), "it died again"


def test_all_requests_of_a_stream_are_spent_or_none() -> None:
    budget = RerunBudget(0.2, 10.0, 0.0)
    assert budget.take(0, 0.5, count=98)
    assert not budget.take(0, 0.5, count=3)
    assert budget.take(0, 0.5, count=2)
    assert not budget.take(0, 0.5)


def test_each_backend_has_a_grant_of_its_own() -> None:
    grants = DeathGrants()
    for backend in ("a", "b", "a", "b"):
        assert grants.take(backend, 2, 0.0)
    assert not grants.take("a", 2, 9.9)
    assert grants.take("a", 2, 10.0)


def test_model_is_blocked_for_a_while_after_a_second_death() -> None:
    deadly = PoisonModels()
    assert not deadly.is_blocked(b"m", 10.0, 9.0)
    deadly.suspect(b"m", 10.0)
    assert deadly.is_blocked(b"m", 11.0, 10.5)
    assert not deadly.is_blocked(b"other", 11.0, 10.5)
    assert not deadly.is_blocked(b"m", 41.0, 40.5)
    assert deadly.blocked(11.0) == [b"m"]
    assert deadly.blocked(41.0) == []


def test_what_was_under_way_when_it_happened_is_a_victim() -> None:
    deadly = PoisonModels()
    deadly.suspect(b"m", 10.0)
    assert not deadly.is_blocked(b"m", 10.1, 9.9)
    assert not deadly.is_blocked(b"m", 10.1, 10.05), "nobody knew that the server was dead"
    assert deadly.is_blocked(b"m", 10.3, 10.2)


def test_suspicions_are_counted_once_while_they_last() -> None:
    deadly = PoisonModels()
    for at in (10.0, 11.0, 60.0):
        deadly.suspect(b"m", at)
    assert deadly.seen == 2


def test_few_models_are_remembered() -> None:
    deadly = PoisonModels()
    for number in range(1500):
        deadly.suspect(b"%d" % number, 1.0)
    assert len(deadly.blocked(2.0)) == 1000
    deadly.suspect(b"late", 100.0)
    assert deadly.blocked(101.0) == [b"late"]
