"""What cutting batches gains where backends are idle; under load it costs others nothing."""

from __future__ import annotations

import pytest

from benchmarks.split_study import FLEETS, ROWS, alone, best_s, quantile, under


def test_four_idle_backends_answer_a_batch_in_a_third_of_the_time() -> None:
    assert alone(FLEETS["four equal"], is_on=False) > 0.133
    assert alone(FLEETS["four equal"], is_on=True) <= 0.045


@pytest.mark.parametrize("fleet", FLEETS)
def test_parts_are_nearly_divided_as_well_as_they_can_be(fleet: str) -> None:
    gpus = FLEETS[fleet]
    assert alone(gpus, is_on=True) <= 1.15 * best_s(gpus, ROWS)


@pytest.mark.parametrize("utilization", [0.8, 1.2])
def test_others_are_served_as_well_under_load(utilization: float) -> None:
    off, on = (under(utilization, is_on=is_on, seeds=(1,)) for is_on in (False, True))
    assert quantile(on.small, 0.99) <= 1.05 * quantile(off.small, 0.99)
    assert sum(on.rates) >= 0.98 * sum(off.rates)


def test_nothing_is_cut_where_there_is_more_than_can_be_done() -> None:
    found = under(1.2, is_on=True, seeds=(1,))
    assert found.cut <= 0.01 * len(found.large)
