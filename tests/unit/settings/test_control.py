"""Settings of calls that concern all backends."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.backends import BackendSettings
from lb.settings.control import ControlSettings


def test_defaults_ask_all_at_once_and_wait_long_enough_for_a_load() -> None:
    settings = ControlSettings()
    assert not settings.rolling
    assert settings.deadline == 300.0
    assert settings.read_timeout == 5.0
    assert settings.concurrent == 64


@pytest.mark.parametrize("values", [{"deadline": 0}, {"read_timeout": "0s"}, {"concurrent": 0}])
def test_nothing_can_be_switched_off_by_zero(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ControlSettings.model_validate(values)


@pytest.mark.parametrize(
    ("given", "spec"),
    [({}, None), ("auto", None), (True, True), (False, False), ("true", True), ("false", False)],
)
def test_whether_a_backend_shares_memory_is_said_or_left_open(given: object, spec: object) -> None:
    values = {"http": "127.0.0.1:8000"} | ({} if given == {} else {"shared_memory": given})
    assert BackendSettings.model_validate(values).spec().shared_memory is spec


@pytest.mark.parametrize("given", ["maybe", 1, [], {}])
def test_other_words_for_it_are_refused(given: object) -> None:
    with pytest.raises(ValidationError, match="expected true, false or auto, got"):
        BackendSettings.model_validate({"http": "127.0.0.1:8000", "shared_memory": given})
