"""Settings of single models."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.models import ModelSettings, RetryMode


def test_a_model_without_settings_is_treated_like_others() -> None:
    assert ModelSettings().retry is RetryMode.AUTO


def test_requests_of_a_model_can_be_kept_from_running_twice() -> None:
    assert ModelSettings.model_validate({"retry": "never"}).retry is RetryMode.NEVER


@pytest.mark.parametrize("own", [{"retry": "always"}, {"retry": None}, {"retries": "never"}])
def test_other_words_are_refused(own: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate(own)
