"""Into how many parts a batch is divided, and how large they are."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.balancing.division import BatchTime, divide

FAST = BatchTime(0.005, 0.002)
SLOW = BatchTime(0.020, 0.008)


def parts_of(
    times: list[BatchTime],
    rows: int = 64,
    *,
    limit: int = 64,
    whole_s: float | None = None,
    spare_s: float = inf,
    preferred: tuple[int, ...] = (),
    most: int = 100,
) -> tuple[int, ...]:
    whole_s = FAST.takes_s(rows) if whole_s is None else whole_s
    return divide(times, rows, limit, most, whole_s, spare_s, preferred)


def test_a_batch_is_divided_among_all_that_help() -> None:
    assert parts_of([FAST] * 4) == (16, 16, 16, 16)


def test_a_further_part_has_to_save_more_than_it_costs() -> None:
    assert parts_of([FAST] * 4, 8) == (4, 4)
    assert parts_of([FAST] * 4, 3) == ()


def test_parts_are_in_proportion_to_speed() -> None:
    assert parts_of([SLOW, FAST]) == (53, 11)


def test_one_that_is_too_slow_gets_nothing() -> None:
    assert parts_of([FAST, FAST, BatchTime(0.1, 0.1)]) == (32, 32)


def test_a_share_stays_idle_where_parts_take_long() -> None:
    assert parts_of([FAST] * 4, spare_s=0.02) == (22, 21, 21)
    assert parts_of([FAST] * 2, spare_s=0.02) == ()


def test_parts_are_no_larger_than_the_model_takes() -> None:
    assert parts_of([FAST] * 4, 30, limit=8, whole_s=inf) == (8, 8, 7, 7)
    assert parts_of([FAST] * 2, 30, limit=8, whole_s=inf) == ()
    assert parts_of([FAST] * 4, most=2) == (32, 32)


def test_preferred_sizes_are_kept() -> None:
    assert parts_of([FAST] * 4, 60, preferred=(8, 16)) == (16, 16, 16, 12)
    assert parts_of([FAST] * 4, preferred=(100,)) == (16, 16, 16, 16)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1)), max_size=6),
    st.integers(2, 80),
    st.integers(1, 80),
    st.booleans(),
    st.lists(st.integers(1, 80), max_size=3),
)
def test_every_row_is_in_one_part(
    speeds: list[tuple[float, float]], rows: int, limit: int, must: bool, preferred: list[int]
) -> None:
    times = [BatchTime(*each) for each in speeds]
    whole_s = inf if must else min((share.takes_s(rows) for share in times), default=1.0)
    parts = divide(times, rows, limit, 4, whole_s, inf, preferred)
    assert not parts or (sum(parts) == rows and 0 < min(parts) <= max(parts) <= limit)
    assert len(parts) <= min(4, len(times))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_shares_get_about_the_same(count: int) -> None:
    parts = parts_of([BatchTime(0.0, 0.01)] * count, 61, whole_s=1.0)
    assert max(parts) - min(parts) <= 1
