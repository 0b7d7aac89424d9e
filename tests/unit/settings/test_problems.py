"""Problems read well: paths, values, and the text of the error."""

from __future__ import annotations

import pytest

from lb.settings.problems import Path, Problem, SettingsError, format_path, show


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("a",), "a"), (("a", 2, "b"), "a[2].b"), (("a", "b", 0, 1), "a.b[0][1]")],
)
def test_path_is_written_as_operators_read_it(path: Path, text: str) -> None:
    assert format_path(path) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (None, "nothing"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
        (5, "5"),
        ("x\n", "'x\\n'"),
        ("y" * 70, "'" + "y" * 56 + "..."),
    ],
)
def test_values_are_shown_short_and_on_one_line(value: object, text: str) -> None:
    assert show(value) == text


def test_the_error_lists_every_problem() -> None:
    error = SettingsError([Problem("a.b", "is required", 3), Problem("", "the file is empty")])
    assert str(error) == "a.b: is required\nthe file is empty"
    assert [problem.line for problem in error.problems] == [3, 0]
