from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.balancing.sequences import Affinity
from lb.settings.model import Settings
from lb.settings.retry import RetryMode
from lb.settings.scheduling import (
    AffinityName,
    ModelSettings,
    SchedulingSettings,
    SequenceSettings,
    read_concurrency,
)
from lb.settings.warnings import warnings_of


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"variants": [{"name": "a", "model": "m", "weight": 1}]}, "on a name with variants"),
        ({"retry": "never"}, "with retry: never"),
        ({}, ""),
    ],
)
def test_a_split_without_effect_is_doubted(own: dict[str, object], why: str) -> None:
    tree = {
        "listen": {"http": "127.0.0.1:0"},
        "backends": [{"http": "127.0.0.1:18010"}],
        "models": {"m": {"split": "auto", **own}},
    }
    settings = Settings.model_validate(tree)
    found = [str(each) for each in warnings_of(settings, settings.backends)]
    assert found == ([f"models.m.split: has no effect {why}"] if why else [])


def test_nothing_is_refused_for_waiting_unless_somebody_says_so() -> None:
    settings = SchedulingSettings()
    assert settings.max_requests_per_backend is None
    assert settings.max_wait == 0
    assert settings.max_queue_size >= 100_000
    assert (settings.deadline_header, settings.priority_header) == (None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("auto", "auto"), ("adaptive", "adaptive"), ("off", "off"), (4, 4), ("12", 12)],
)
def test_concurrency_is_a_word_or_a_number(value: object, expected: object) -> None:
    assert read_concurrency(value) == expected
    assert (
        ModelSettings.model_validate({"max_requests_per_backend": value}).max_requests_per_backend
        == expected
    )


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


@pytest.mark.parametrize("count", [0, -1, 10_000_001])
def test_some_sequences_must_be_remembered_but_not_more_than_memory_holds(count: int) -> None:
    with pytest.raises(ValidationError):
        SequenceSettings(max_open=count)


def test_every_affinity_is_one_of_the_table() -> None:
    assert [each.value for each in AffinityName] == [each.value for each in Affinity]


def test_requests_of_a_model_can_be_kept_from_running_twice() -> None:
    assert ModelSettings().retry is RetryMode.AUTO
    assert ModelSettings.model_validate({"retry": "never"}).retry is RetryMode.NEVER


@pytest.mark.parametrize("own", [{"retry": "always"}, {"retry": None}, {"retries": "never"}])
def test_other_words_for_a_model_are_refused(own: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate(own)
