"""Settings of which models are loaded where."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.choices import PlacementMode
from lb.settings.placement import PlacementSettings
from lb.settings.scheduling import ModelSettings


def test_placement_is_off_by_default() -> None:
    assert PlacementSettings().mode is PlacementMode.OFF
    assert PlacementSettings.model_validate({"max_models": 3}).max_models == 3


@pytest.mark.parametrize("mode", ["observe", "on_demand"])
def test_it_has_to_know_how_many_models_fit(mode: str) -> None:
    by_memory = PlacementSettings.model_validate({"mode": mode, "memory": "70GiB"})
    assert (by_memory.memory, by_memory.max_models) == (70 << 30, None)
    with pytest.raises(ValidationError, match=f"or memory is required with mode: {mode}"):
        PlacementSettings.model_validate({"mode": mode})
    found = PlacementSettings.model_validate({"mode": mode, "max_models": 1, "wait": "5m"})
    assert (found.mode.value, found.wait, found.min_age) == (mode, 300.0, 30.0)


def test_a_model_may_not_have_fewer_copies_than_it_has_to_have() -> None:
    with pytest.raises(ValidationError, match="is less than min_copies, which is 3"):
        ModelSettings.model_validate({"min_copies": 3, "max_copies": 2})
    assert ModelSettings.model_validate({"min_copies": 2, "max_copies": 2}).max_copies == 2
