"""Several workers in simulated time: `make workers`, in short."""

from __future__ import annotations

import pytest

from benchmarks.study.simulate import Gpu
from benchmarks.workers import EQUAL, UNEQUAL, compare


@pytest.mark.parametrize("gpus", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_four_workers_that_share_a_board_are_nearly_as_good_as_one(gpus: tuple[Gpu, ...]) -> None:
    p50, p99 = compare(gpus, 0.9, 4, 2, shared=True, requests=1500)
    apart_p50, apart_p99 = compare(gpus, 0.9, 4, 2, shared=False, requests=1500)
    assert p50 < 1.1 < apart_p50
    assert p99 < 1.15
    assert p99 < apart_p99
