"""Settings of retries, hedges and calls to all backends."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.retry import FanOutSettings, HedgingSettings, RetrySettings
from lb.settings.section import Section


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (RetrySettings, {"attempts": 0}),
        (RetrySettings, {"budget": 1.5}),
        (HedgingSettings, {"quantile": 0}),
        (HedgingSettings, {"max_ratio": 0}),
        (FanOutSettings, {"deadline": 0}),
        (FanOutSettings, {"read_timeout": "0s"}),
    ],
)
def test_what_makes_no_sense_is_refused(section: type[Section], values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(values)
