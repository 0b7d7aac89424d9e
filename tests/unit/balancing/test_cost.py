"""What an execution costs, learnt from samples."""

from __future__ import annotations

from random import Random

import pytest

from lb.balancing.cost import WINDOW, Cost
from lb.domain.load import Measured


def learnt(*samples: float) -> Cost:
    cost = Cost()
    for number, sample in enumerate(samples):
        cost.learn(sample, 1, 100, float(number) / 10)
    return cost


def test_first_sample_is_believed() -> None:
    assert learnt(0.02).predict(1, 100) == pytest.approx(0.02)


def test_one_outlier_hardly_counts() -> None:
    cost = learnt(*[0.01] * 30, 5.0)
    assert cost.predict(1, 100) < 0.0105


def test_lasting_change_is_followed_within_a_window() -> None:
    cost = learnt(*[0.01] * 50, *[0.1] * WINDOW)
    assert cost.predict(1, 100) > 0.08
    cost = learnt(*[0.1] * 50, *[0.01] * WINDOW)
    assert cost.predict(1, 100) < 0.02


def test_old_estimate_gives_way() -> None:
    cost = learnt(*[0.1] * 50)
    for number in range(4):
        cost.learn(0.08, 1, 100, 100.0 + number / 10)
    assert cost.predict(1, 100) == pytest.approx(0.08, abs=0.007)


def test_rows_are_told_from_what_every_execution_takes() -> None:
    rng = Random(1)
    cost = Cost()
    for number in range(300):
        rows = rng.choice((1, 4, 16, 64))
        cost.learn((0.002 + 0.0005 * rows) * rng.uniform(0.95, 1.05), rows, 100, number / 10)
    assert cost.predict(1, 100) == pytest.approx(0.0025, abs=0.001)
    assert cost.predict(64, 100) == pytest.approx(0.034, rel=0.1)


def test_bytes_explain_where_rows_are_not_known() -> None:
    rng = Random(1)
    cost = Cost()
    for number in range(300):
        size = rng.choice((1_000, 50_000, 200_000))
        cost.learn(0.001 + 1e-7 * size, 1, size, number / 10)
    assert cost.predict(1, 200_000) == pytest.approx(0.021, rel=0.1)
    assert cost.predict(1, 1_000) == pytest.approx(0.0011, abs=0.001)


@pytest.mark.parametrize(("instances", "kept"), [(1, 2), (4, 5)])
def test_executions_that_ran_side_by_side_are_no_change(instances: int, kept: int) -> None:
    cost = Cost(instances)
    for number in range(50):
        cost.learn(0.002, 1, 100, number / 100)
    for _ in range(kept):
        cost.learn(0.5, 1, 100, 0.5)
    assert cost.mean_s < 0.02
    cost.learn(0.5, 1, 100, 0.5)
    assert cost.mean_s > 0.2


def test_estimate_is_never_negative() -> None:
    rng = Random(3)
    cost = Cost()
    for number in range(500):
        cost.learn(rng.expovariate(100), rng.randint(1, 64), rng.randint(0, 10**6), number / 50)
        assert cost.predict(1, 0) >= 0.0
        assert cost.predict(64, 10**6) >= 0.0


def test_what_somebody_else_has_measured_is_what_it_begins_with() -> None:
    cost = Cost()
    cost.assume(Measured(base_s=0.004, row_s=0.001, rows=3.0, rows_variance=8.0), 0.0)
    assert cost.predict(1, 10**6) == pytest.approx(0.005)
    assert cost.predict(8, 0) == pytest.approx(0.012)
    assert (cost.count - cost.assumed, cost.weight) == (0, 1)


def test_own_samples_outweigh_it_after_a_few() -> None:
    cost = Cost()
    cost.assume(Measured(base_s=0.04), 0.0)
    for number in range(6):
        cost.learn(0.005, 1, 600_000, number / 10)
    assert cost.predict(1, 600_000) < 0.0125
    assert cost.count - cost.assumed == 6


def test_it_holds_for_rows_while_own_samples_are_alike() -> None:
    cost = Cost()
    cost.assume(Measured(base_s=0.004, row_s=0.001, rows=3.0, rows_variance=8.0), 0.0)
    for number in range(3):
        cost.learn(0.005, 1, 100, number / 10)
    assert cost.predict(8, 100) == pytest.approx(0.012, rel=0.1)


def test_one_slow_first_execution_hardly_counts_against_it() -> None:
    cost = Cost()
    cost.assume(Measured(base_s=0.005), 0.0)
    cost.learn(3.0, 1, 100, 0.1)
    assert cost.predict(1, 100) < 0.01
