"""Replicas that do not know each other."""

from __future__ import annotations

import pytest

from benchmarks.replicas import play, spread


@pytest.mark.parametrize(("replicas", "backends"), [(1, 4), (3, 16), (12, 64)])
def test_least_loaded_serves_replicas_no_worse_than_two_choices(
    replicas: int, backends: int
) -> None:
    ours = play("least_loaded", replicas=replicas, backends=backends, requests=6000)
    theirs = play("two_choices", replicas=replicas, backends=backends, requests=6000)
    assert ours.median <= 1.2 * theirs.median
    assert ours.late <= 1.3 * theirs.late
    assert ours.late < 8.0


@pytest.mark.parametrize(
    ("replicas", "backends", "sequences"), [(3, 4, 240), (12, 16, 800), (24, 64, 2600)]
)
def test_sequences_lie_evenly_over_many_replicas(
    replicas: int, backends: int, sequences: int
) -> None:
    assert spread(replicas=replicas, backends=backends, sequences=sequences) <= 1.35
