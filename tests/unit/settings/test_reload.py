"""How the process takes over other configurations and versions."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.reload import ReloadSettings, UpgradeSettings


def test_nothing_happens_by_itself_unless_asked_for() -> None:
    assert not ReloadSettings().watch
    assert UpgradeSettings().timeout == 60.0


def test_a_new_process_needs_some_time() -> None:
    with pytest.raises(ValidationError):
        UpgradeSettings.model_validate({"timeout": 0})
