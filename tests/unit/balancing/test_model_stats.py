"""What model backends know together."""

from __future__ import annotations

from lb.balancing.backend_penalty import BackendPenalty
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_stats import ModelStats
from lb.domain.schedule import Capacity
from tests.fakes.backends import make_backend


def test_what_few_requests_exceed_is_learnt_and_forgotten_in_a_pause() -> None:
    stats = ModelStats()
    for number in range(400):
        stats.on_arrival(0.01 if number % 2 else 0.03, number / 100)
    assert 0.03 < stats.tail_s < 0.06
    stats.on_arrival(0.01, 10.0)
    assert stats.tail_s == 0.0


def test_a_rare_connection_limiter_is_remembered_for_hundreds_of_requests() -> None:
    stats = ModelStats()
    for number in range(400):
        stats.on_arrival(0.01, number / 100)
    for number in range(400, 450):
        stats.on_arrival(0.1, number / 100)
    crowded_s = stats.tail_s
    assert crowded_s > 0.05
    for number in range(450, 500):
        stats.on_arrival(0.01, number / 100)
    assert stats.tail_s > 0.7 * crowded_s


def lane_of(stats: ModelStats, *took_s: float) -> ModelBackend:
    model_backend = ModelBackend(BackendPenalty(make_backend()), Capacity(2), stats)
    for each_s in took_s:
        model_backend.learn(each_s, 1, 0, 1.0)
    return model_backend


def test_the_fastest_is_found_anew_when_it_is_gone_or_not_known_any_more() -> None:
    stats = ModelStats()
    fast, slow = (lane_of(stats, each_s, each_s) for each_s in (0.005, 0.04))
    slower, hardly_known = lane_of(stats, 0.05, 0.05), lane_of(stats, 0.001)
    stats.lost((fast, slow, slower, hardly_known))
    assert (stats.best, stats.best_s) == (fast, 0.005)
    fast.forget()
    stats.lost((fast, slow, slower, hardly_known))
    assert (stats.best, stats.best_s) == (slow, 0.04)
    stats.lost((slower, hardly_known))
    assert (stats.best, stats.best_s) == (slower, 0.05)


def test_where_nothing_is_known_any_more_the_first_that_ends_tells() -> None:
    stats = ModelStats()
    fast, slow = lane_of(stats, 0.005, 0.005), lane_of(stats)
    fast.forget()
    stats.lost((fast, slow))
    assert not stats.best
    for _ in range(2):
        slow.learn(0.04, 1, 0, 2.0)
    assert stats.best is slow
    assert stats.best_s == 0.04
