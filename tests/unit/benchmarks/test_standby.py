"""Days of slices that stand by; `make standby` plays a thousand."""

from __future__ import annotations

import pytest

from benchmarks.standby import ALWAYS, SLICES, day


@pytest.mark.parametrize("shape", ["bursts", "steps", "sine"])
def test_slices_come_and_go_without_flapping_and_keep_the_budget(shape: str) -> None:
    ours, all_on = day(3, shape=shape), day(3, SLICES, 0, shape=shape)
    assert ours.too_soon == 0
    assert 0 < ours.activations < 24 * (SLICES - ALWAYS)
    assert ours.late < all_on.late + 0.05
    assert ours.active < 0.45
