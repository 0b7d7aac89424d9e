"""What of passive health, slow start and the model table is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.passive import (
    ModelTableSettings,
    OutlierDetectionSettings,
    SlowStartSettings,
    WarmUpSettings,
)
from lb.settings.section import Section


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (OutlierDetectionSettings, {"consecutive_failures": 0}),
        (OutlierDetectionSettings, {"latency_factor": 1.2}),
        (OutlierDetectionSettings, {"base_ejection_time": 0}),
        (SlowStartSettings, {"window": "-1s"}),
        (WarmUpSettings, {"timeout": 0}),
        (ModelTableSettings, {"refresh": 0}),
    ],
)
def test_what_makes_no_sense_is_refused(section: type[Section], values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(values)
