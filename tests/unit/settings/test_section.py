"""What holds for every section."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.settings.model import Settings


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_settings_cannot_be_changed() -> None:
    settings = make()
    with pytest.raises(ValidationError, match="frozen"):
        settings.retry.attempts = 5  # type: ignore[misc]


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="retires"):
        make(retires={})
