from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.models import ModelSettings
from lb.settings.scheduling import SchedulingSettings, read_concurrency


def test_nothing_is_refused_for_waiting_unless_somebody_says_so() -> None:
    settings = SchedulingSettings()
    assert settings.concurrency is None
    assert settings.max_wait == 0
    assert settings.queue >= 100_000
    assert (settings.deadline_header, settings.priority_header) == (None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("auto", "auto"), ("adaptive", "adaptive"), ("off", "off"), (4, 4), ("12", 12)],
)
def test_concurrency_is_a_word_or_a_number(value: object, expected: object) -> None:
    assert read_concurrency(value) == expected
    assert ModelSettings.model_validate({"concurrency": value}).concurrency == expected


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "many", None, 10**9, "9" * 40])
def test_anything_else_is_refused_with_what_was_expected(value: object) -> None:
    with pytest.raises(ValueError, match="expected auto, adaptive, off, or a number"):
        read_concurrency(value)


@pytest.mark.parametrize(
    "section",
    [
        {"reserved": 1},
        {"overload_status": 500},
        {"priority": 0},
        {"weights": [0]},
        {"shares": {"a": 0}},
        {"tenants": "address"},
        {"priority_header": "no spaces"},
        {"max_wait": "soon"},
    ],
)
def test_what_makes_no_sense_is_refused(section: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings.model_validate(section)
