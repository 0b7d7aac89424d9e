from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.passive import OutlierSettings, SlowStartSettings, WarmUpSettings


def test_backends_are_judged_unless_told_otherwise() -> None:
    settings = OutlierSettings()
    assert (settings.enabled, settings.consecutive, settings.share) == (True, 5, 0.2)
    assert (settings.base, settings.max, settings.min_left) == (5.0, 300.0, 0.3)
    assert settings.latency_factor == 5.0


def test_a_backend_that_joins_has_its_share_after_ten_seconds() -> None:
    settings = SlowStartSettings()
    assert (settings.window, settings.aggression, settings.min_share) == (10.0, 1.0, 0.1)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (OutlierSettings, {"share": 0}),
        (OutlierSettings, {"min_left": 1.1}),
        (OutlierSettings, {"consecutive": 0}),
        (OutlierSettings, {"latency_factor": 1.2}),
        (SlowStartSettings, {"min_share": 0}),
        (SlowStartSettings, {"aggression": 0}),
        (SlowStartSettings, {"window": "-1s"}),
    ],
)
def test_what_makes_no_sense_is_refused(
    section: type[OutlierSettings | SlowStartSettings], values: dict[str, object]
) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(values)


def test_nothing_is_warmed_up_unless_it_is_wanted() -> None:
    assert (WarmUpSettings().enabled, WarmUpSettings().timeout) == (False, 60.0)
