"""Logs and metrics: their defaults are those of the design."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.settings.model import Settings
from lb.settings.reporting import AccessLogMode, LogFormat, LogLevel


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_defaults_are_those_of_the_design() -> None:
    dump = {name: section.model_dump() for name, section in make() if name in DEFAULTS}
    assert dump == DEFAULTS


@pytest.mark.parametrize("sample", [-0.1, 1.1])
def test_a_share_is_between_none_and_all(sample: float) -> None:
    with pytest.raises(ValidationError):
        make(access_log={"sample": sample})


DEFAULTS: dict[str, dict[str, Any]] = {
    "access_log": {"mode": AccessLogMode.ERRORS, "sample": 0.01, "path": "-"},
    "log": {"level": LogLevel.INFO, "format": LogFormat.TEXT},
    "metrics": {"backends": True, "model_labels": 100},
}
