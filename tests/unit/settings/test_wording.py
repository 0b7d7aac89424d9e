"""Pydantic's errors in an operator's words; test_reading holds one case per message."""

from __future__ import annotations

from pydantic import ValidationError

from lb.settings.model import Settings
from lb.settings.problems import Path
from lb.settings.wording import describe


def described(data: object) -> list[tuple[Path, str]]:
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        return describe(error)
    return []


GOOD = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "a:1"}]}


def test_good_settings_have_nothing_to_describe() -> None:
    assert described(GOOD) == []


def test_an_error_in_a_key_stands_at_that_key() -> None:
    data = {**GOOD, "backends": [{"http": "a:1", "headers": {"a b": "x"}}]}
    assert described(data) == [(("backends", 0, "headers", "a b"), "not a valid header name")]


def test_the_value_of_a_header_is_never_shown() -> None:
    for headers in ({"authorization": ["secret"]}, {"authorization": "secret\n"}, "secret", 5):
        data = {**GOOD, "backends": [{"http": "a:1", "headers": headers}]}
        [(path, message)] = described(data)
        assert path[:3] == ("backends", 0, "headers")
        assert "secret" not in message


def test_an_error_without_words_of_ours_keeps_pydantics() -> None:
    # An environment variable that is not UTF-8 reaches us with lone surrogates.
    data = {**GOOD, "access_log": {"path": "\udcff"}}
    [(path, message)] = described(data)
    assert path == ("access_log", "path")
    assert "unicode" in message
