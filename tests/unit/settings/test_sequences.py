from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.balancing.sequences import Affinity
from lb.settings.sequences import AffinityName, SequenceSettings


def test_a_million_sequences_go_to_the_fewest_open_ones() -> None:
    settings = SequenceSettings()
    assert (settings.affinity, settings.max_open) == (AffinityName.LEAST_LOADED, 1_000_000)


@pytest.mark.parametrize("count", [0, -1, 10_000_001])
def test_some_must_be_remembered_but_not_more_than_memory_holds(count: int) -> None:
    with pytest.raises(ValidationError):
        SequenceSettings(max_open=count)


@pytest.mark.parametrize("bound", [0, 0.99, 101])
def test_a_bound_leaves_everybody_a_share(bound: float) -> None:
    with pytest.raises(ValidationError):
        SequenceSettings(bound=bound)


def test_every_affinity_is_one_of_the_table() -> None:
    assert [each.value for each in AffinityName] == [each.value for each in Affinity]
