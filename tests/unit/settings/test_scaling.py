from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.scaling import ScalingSettings


def test_the_budget_is_found_out_unless_it_is_given() -> None:
    assert ScalingSettings().latency == 0.0
    assert ScalingSettings.model_validate({"latency": "250ms"}).latency == 0.25


def test_no_budget_is_negative() -> None:
    with pytest.raises(ValidationError):
        ScalingSettings.model_validate({"latency": "-1s"})
