"""Where new sequences go, in the simulation."""

from __future__ import annotations

import pytest

from benchmarks.study.simulate_sequences import SCENES, play

BY_NAME = {scene.name: scene for scene in SCENES}


@pytest.mark.parametrize("name", ["streams and stateless, 60 %", "slow and fast, 75 %"])
def test_unequal_backends_get_sequences_by_their_speed(name: str) -> None:
    found = play(BY_NAME[name], "triton-lb", 1, 60.0)
    counted = play(BY_NAME[name], "fewest open", 1, 60.0)
    assert found.step_p99 < 0.1 * counted.step_p99
    assert found.overload < 0.2 * counted.overload


def test_equal_backends_get_as_many_each() -> None:
    scene = BY_NAME["equal, streams and stateless, 75 %"]
    found, counted = (play(scene, variant, 1, 60.0) for variant in ("triton-lb", "fewest open"))
    assert found.step_p99 < 1.1 * counted.step_p99
    assert found.other_p99 < 1.1 * counted.other_p99
