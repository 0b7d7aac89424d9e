from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.model_table import ModelTableSettings


def test_defaults_ask_every_five_seconds_and_restore() -> None:
    assert ModelTableSettings() == ModelTableSettings(refresh=5.0, restore=True)


def test_a_table_must_be_refreshed() -> None:
    with pytest.raises(ValidationError):
        ModelTableSettings(refresh=0)
