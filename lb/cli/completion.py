"""`triton-lb completion`: a script that completes commands and options in a shell.

shtab writes it from the parser, so there is nothing to keep in step with it
(docs/decisions/0055-shell-completion.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping


def print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the script for a shell.

    Args:
        parser: of all commands.
        shell: bash, zsh or fish.

    Returns:
        The exit code: 1 where shtab is not installed.
    """
    try:
        import shtab  # an optional dependency
    except ImportError:
        print(
            "triton-lb: completion needs shtab: pip install 'triton-lb[completion]'",
            file=sys.stderr,
        )
        return 1
    _mark_files(parser, {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
    print(shtab.complete(parser, shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser, completions: Mapping[str, object]) -> None:
    """Say which arguments are files and folders, by what the help texts call them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark_files(command, completions)
        elif isinstance(action.metavar, str) and action.metavar in completions:
            action.complete = completions[action.metavar]  # type: ignore[attr-defined]
