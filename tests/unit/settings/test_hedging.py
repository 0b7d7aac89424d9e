"""Settings of second attempts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.hedging import HedgingSettings


def test_it_is_off_unless_it_is_wanted() -> None:
    assert not HedgingSettings().enabled


@pytest.mark.parametrize("own", [{"quantile": 0}, {"share": 0}, {"least": "0s"}, {"on": True}])
def test_other_values_are_refused(own: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HedgingSettings.model_validate(own)
