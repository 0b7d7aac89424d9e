"""What of standby is refused, and what is doubted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.settings.listed import read_backend
from lb.settings.model import Settings
from lb.settings.problems import SettingsError
from lb.settings.warnings import warnings_of

STANDBY: dict[str, Any] = {"http": "127.0.0.1:18010", "name": "spare", "standby": 1}
START = {"exec": ["/bin/start"]}
STOP = {"exec": ["/bin/stop"]}


def settings(backend: dict[str, Any], **sections: Any) -> Settings:
    tree = {"listen": {"http": "127.0.0.1:0"}, "backends": [backend], **sections}
    return Settings.model_validate(tree)


def doubts(backend: dict[str, Any], **sections: Any) -> list[str]:
    made = settings(backend, **sections)
    return [each.path for each in warnings_of(made, made.backends)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"standby": 0},
        {"standby": None, "activate": START},
        {"standby": None, "deactivate": STOP},
        {"activate": {}},
        {"activate": {"exec": ["/bin/start"], "load": ["bert"]}},
        {"activate": {"exec": [""]}},
        {"activate": {"load": ["bert"]}, "kind": "tfserving"},
        {"deactivate": {"exec": []}},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings({**STANDBY, **wrong})


def test_only_the_configuration_file_names_commands() -> None:
    with pytest.raises(SettingsError, match="only for backends in the configuration file"):
        read_backend({**STANDBY, "activate": START}, {})


def test_what_nearly_nobody_means_is_doubted() -> None:
    good = {**STANDBY, "activate": START, "deactivate": STOP}
    assert doubts(good) == []
    assert doubts({**STANDBY, "activate": START}) == ["backends[spare].activate.exec"]
    assert doubts(good, standby={"hold": "1m"}) == ["standby.hold"]
    assert doubts(good, standby={"cooldown": "1s"}) == ["standby.cooldown"]
    both = {"mode": "on_demand", "max_models": 2}
    path = "backends[spare].activate.load"
    assert path in doubts({**STANDBY, "activate": {"load": ["bert"]}}, placement=both)
