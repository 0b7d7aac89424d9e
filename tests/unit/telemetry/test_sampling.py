"""Which requests are drawn: as many as asked for, at any ratio that there is."""

from __future__ import annotations

from random import Random

import pytest

from lb.telemetry.sampling import TRACED, drawing


@pytest.mark.parametrize("ratio", [5e-324, 1e-300, 1e-19, 0.0])
def test_of_a_share_next_to_nothing_nothing_is_drawn(ratio: float) -> None:
    draw = drawing(Random(1), ratio, TRACED)
    assert {draw() for _ in range(1000)} == {0}


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0])
def test_as_many_are_drawn_as_asked_for(ratio: float) -> None:
    draw = drawing(Random(1), ratio, TRACED)
    drawn = [draw() for _ in range(100_000)].count(TRACED)
    assert drawn == pytest.approx(100_000 * ratio, rel=0.1)
