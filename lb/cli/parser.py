"""A parser of arguments whose errors are one line: where, what, what instead."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

_T = TypeVar("_T")

USAGE_ERROR: Final = 2
"""Exit code of a command whose arguments cannot be understood."""
_COMMAND_INDENT: Final = 4
_WORDING: Final = {
    "the following arguments are required:": "missing:",
    "not allowed with argument": "cannot be combined with",
    "expected one argument": "expected a value",
}
"""Messages of argparse, and what we say."""


def refuse(command: str, message: str) -> NoReturn:
    """Print what is wrong with the arguments of a command in one line, and exit."""
    print(f"{command}: {message} (see {command} --help)", file=sys.stderr)
    raise SystemExit(USAGE_ERROR)


class _Help(argparse.HelpFormatter):
    """Wraps paragraphs; lines that are indented, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(
            line
            if line.startswith(" ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in lines
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        # An option that is divided at one of its hyphens cannot be copied.
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def add_argument(self, action: argparse.Action) -> None:
        """Count the indentation of commands to their length, which Python 3.11 forgets."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            longest = max(map(len, action.choices or ("",)))
            self._action_max_length = max(self._action_max_length, longest + _COMMAND_INDENT)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` for one command, or for all of them."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        """Take the options of `ArgumentParser`, and an example that the help text shows.

        Abbreviated options are refused: the next version may have another one that begins so.
        """
        if example:
            options["epilog"] = f"example:\n  {example}"
        self.example = example
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print one line instead of the usage, and exit with 2."""
        message = message.removeprefix("argument ")
        for theirs, ours in _WORDING.items():
            message = message.replace(theirs, ours)
        refuse(self.prog, message)

    def parse_known_args(  # type: ignore[override]  # the stubs overload it by its defaults
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As of `ArgumentParser`, but arguments that are not known are an error of the command
        that got them."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return found, []

    def _unknown(self, word: str) -> str:
        if not word.startswith("-") or word == "-":
            return f"one argument too many: {word!r}"
        name = word.partition("=")[0]
        return f"unknown option {name}{_did_you_mean(name, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices, and name them, or for commands the closest one."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value!r}{_did_you_mean(value, choices)}")
        raise argparse.ArgumentError(action, _expected(choices, value))


def _expected(choices: Sequence[str], value: str) -> str:
    *others, last = choices
    return f"expected {', '.join(others)} or {last}, got {value!r}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def number(
    text: str, read: Callable[[str], _T], expected: str, is_good: Callable[[_T], bool]
) -> _T:
    """A number of the command line.

    Args:
        text: what was given.
        read: makes a number of it, or raises ValueError.
        expected: what a number must be, in words.
        is_good: whether it is that.

    Raises:
        argparse.ArgumentTypeError: it is not.
    """
    try:
        found = read(text)
    except ValueError:
        found = None
    if found is None or not is_good(found):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return found


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return number(text, int, "a whole number of at least 1", lambda found: found >= 1)


def count(text: str) -> int:
    """A whole number of at least 0."""
    return number(text, int, "a whole number of at least 0", lambda found: found >= 0)


def port(text: str) -> int:
    """A port to listen on; 0 is any free one."""
    return number(text, int, "a port from 0 to 65535", lambda found: 0 <= found < 1 << 16)


def factor(text: str) -> float:
    """A number above 0."""
    return number(text, float, "a number above 0", lambda found: 0 < found < float("inf"))


def share(text: str) -> tuple[str, float]:
    """A variant and its share in percent: `canary=20`."""
    name, _, percent = text.partition("=")
    try:
        shown = float(percent.removesuffix("%"))
    except ValueError:
        shown = -1.0
    if not name or not 0 <= shown <= 100:
        raise argparse.ArgumentTypeError(f"expected one such as canary=20, 0 to 100, got {text!r}")
    return name, shown


def duration(text: str) -> float:
    """Seconds, from a duration as in the configuration: `30s`."""
    from lb.settings.units import parse_duration  # loads pydantic

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
