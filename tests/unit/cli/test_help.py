"""Help texts: short sentences, an example of each command that can be run, eighty columns."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from lb.cli.commands import build_parser
from lb.cli.main import main
from lb.cli.parser import Parser

MOST_WORDS = 25


def commands() -> dict[str, Parser]:
    (action,) = (
        each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return dict(action.choices)


def texts(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What a help text is made of, without examples and tables."""
    for text in (parser.description, parser.epilog):
        yield from (line for line in (text or "").splitlines() if not line.startswith(" "))
    for group in parser._action_groups:
        yield group.description or ""
    for action in parser._actions:
        yield action.help or ""


NAMES = sorted(commands())


@pytest.mark.parametrize("name", ["", *NAMES])
def test_sentences_are_short(name: str) -> None:
    parser = commands()[name] if name else build_parser()
    for text in texts(parser):
        for sentence in re.split(r"[.;:?!](?:\s|$)", text):
            assert len(sentence.split()) <= MOST_WORDS, sentence


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_an_example_that_can_be_parsed(name: str) -> None:
    example = commands()[name].example
    program, *words = shlex.split(example.partition(" > ")[0])
    assert (program, words[0]) == ("triton-lb", name)
    assert build_parser().parse_args(words).handler is not None
    assert example in commands()[name].format_help()


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_what_each_argument_is_for(name: str) -> None:
    parser = commands()[name]
    assert (parser.description or "").partition("\n")[0].endswith(".")
    assert all(action.help for action in parser._actions)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_eighty_columns_suffice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = commands()[name] if name else build_parser()
    assert [line for line in parser.format_help().splitlines() if len(line) > 80] == []


def test_choices_are_named_with_what_they_make(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = capsys.readouterr().out
    assert re.search(r"^  compose +a Compose file: ", shown, re.M)
    assert re.search(r"^  systemd +units: ", shown, re.M)
    assert re.search(r"^  kubernetes +manifests: ", shown, re.M)


def test_the_exit_codes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for code in ("0    done", "1    not done", "2    the arguments", "130  interrupted"):
        assert f"  {code}" in shown
