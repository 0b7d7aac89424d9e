"""YAML text to a plain tree: scalars as operators mean them, lines, and what is refused."""

# ruff: noqa: E501 - a case stands on one line
from __future__ import annotations

import pytest

from lb.settings.problems import Problem
from lb.settings.tree import MAX_CHARACTERS, MAX_VALUES, Tree, parse_tree


def parse(text: str) -> Tree:
    return parse_tree(text, lambda value: value)


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        (".inf", ".inf"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        ("''", ""),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("[1, a, ~]", [1, "a", None]),
        ("{}", {}),
    ],
)
def test_scalars_mean_what_they_look_like(scalar: str, value: object) -> None:
    tree = parse(f"key: {scalar}" if scalar != "-" else 'key: "-"')
    assert tree.problems == []
    assert tree.root == {"key": value}
    assert type(tree.root["key"]) is type(value)


@pytest.mark.parametrize("nothing", ["", " ~", " null", "  # only a comment"])
def test_a_key_without_a_value_is_left_out(nothing: str) -> None:
    tree = parse(f"a: 1\nkey:{nothing}\n")
    assert tree.root == {"a": 1}
    assert tree.line_of(("key",)) == 2


def test_keys_are_the_text_that_stands_there() -> None:
    assert parse("5: a\ntrue: b\n").root == {"5": "a", "true": "b"}


def test_a_character_that_json_escapes_as_two_is_one() -> None:
    smile = "\\ud83d\\ude00"
    assert parse(f'{{"a": "x{smile}", "{smile}": 1}}').root == {"a": "x\U0001f600", "\U0001f600": 1}
    assert parse(f"a: '{smile}'\n").root == {"a": smile}


def test_lines_are_known_for_every_value_and_fall_back_to_what_holds_it() -> None:
    tree = parse("a:\n  - b: 1\n    c: 2\n  - d\n")
    assert tree.line_of(("a", 0, "c")) == 3
    assert tree.line_of(("a", 1)) == 4
    assert tree.line_of(("a", 0, "missing", "deeper")) == 2
    assert tree.line_of(("missing",)) == 0


def test_substitution_sees_strings_only_and_its_failure_is_a_problem_at_the_value() -> None:
    seen = []

    def substitute(text: str) -> str:
        seen.append(text)
        if text == "bad":
            raise ValueError("no such thing")
        return text.upper()

    tree = parse_tree("a: [x, 1, true]\nb:\n  c: bad\n", substitute)
    assert seen == ["x", "bad"]
    assert tree.root == {"a": ["X", 1, True], "b": {"c": "bad"}}
    assert tree.problems == [Problem("b.c", "no such thing", 3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", Problem("", "the file is empty")),
        ("# nothing\n", Problem("", "the file is empty")),
        ("- a\n", Problem("", "expected a mapping with listen and backends", 1)),
        ("text", Problem("", "expected a mapping with listen and backends", 1)),
        ("a: 1\n\tb: 2\n", Problem("", "not valid YAML: a tab; indent with spaces", 2)),
        ("a: 'open\n", Problem("", "not valid YAML: found unexpected end of stream", 2)),
        ("a: [1\n", Problem("", "not valid YAML: expected ',' or ']', but got '<stream end>'", 2)),
        ("a: 1\n---\nb: 2\n", Problem("", "not valid YAML: expected a single document in the stream, but found another document", 2)),
        ("a: 1\nb: \x01\n", Problem("", "not valid YAML: special characters are not allowed", 2)),
        ("a: &x {}\nb: *x\n", Problem("", "not valid YAML: aliases are not supported", 2)),
        ("[" * 5000, Problem("", "not valid YAML: nested too deeply")),
        ("#" * (MAX_CHARACTERS + 1), Problem("", "the text has more than 1048576 characters")),
        (f"\na: [{'b,' * MAX_VALUES}]", Problem("", "the text has more than 50000 values and keys", 2)),
    ],
)  # fmt: skip
def test_a_text_that_is_no_mapping_has_one_problem_and_an_empty_tree(
    text: str, problem: Problem
) -> None:
    tree = parse(text)
    assert tree.problems == [problem]
    assert tree.root == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", Problem("a", "given twice, first on line 1", 3)),
        ("x:\n  - {a: 1, a: 2}\n", Problem("x[0].a", "given twice, first on line 2", 2)),
        ("x:\n  ? [a]\n  : 1\n", Problem("x", "a key must be a word", 2)),
        ("a: !!python/name:os.system ''\n", Problem("a", "the tag tag:yaml.org,2002:python/name:os.system is not supported", 1)),
        ("a: !own {b: 1}\n", Problem("a", "the tag !own is not supported", 1)),
        ('{"a":\n "\\ud83d"}', Problem("a", "\\ud83d is half of a pair of surrogates, without the other", 2)),
        ('{"\\ude00\\ud83d": 1}', Problem("", "a key: \\ude00 is half of a pair of surrogates, without the other", 1)),
        ("a: !!int x\n", Problem("a", "invalid literal for int() with base 10: 'x'", 1)),
    ],
)  # fmt: skip
def test_a_bad_entry_is_a_problem_at_its_path(text: str, problem: Problem) -> None:
    assert parse(text).problems == [problem]
