"""Opens configuration files and prints what is wrong with them, for every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, TextIO

from lb.net.files import read_text
from lb.settings.model import Settings
from lb.settings.problems import Problem, SettingsError
from lb.settings.reading import Loaded, read_settings
from lb.settings.tree import MAX_CHARACTERS

_DIGITS: Final = 12


def load(path: str, listen: Mapping[str, str]) -> Loaded:
    """Read a configuration file; `listen` replaces addresses of its listeners.

    Raises:
        SettingsError: lists every problem, an unreadable file among them.
    """
    text = read_file(path)
    settings = read_settings(text, os.environ, read_text, listen)
    return Loaded(settings, sha256(text.encode()).hexdigest()[:_DIGITS])


def read_file(path: str) -> str:
    """The text of a configuration file, or of a file with backends; `-` is standard input.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        return sys.stdin.read(MAX_CHARACTERS + 1) if path == "-" else read_text(path)
    except OSError as error:
        raise SettingsError([Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise SettingsError([Problem("", "cannot be read: it is not UTF-8 text")]) from error


def load_settings(path: str, listen: Mapping[str, str]) -> Settings:
    """As `load`, without the rest."""
    return load(path, listen).settings


def name_of_file(path: str) -> str:
    """How messages call a file of the command line."""
    return "<stdin>" if path == "-" else path


def print_problems(source: str, error: SettingsError, stream: TextIO) -> None:
    """Write one line per problem, `FILE:LINE: PATH: MESSAGE`, as editors and people like it."""
    for problem in error.problems:
        line = f":{problem.line}" if problem.line else ""
        print(f"{source}{line}: {problem}", file=stream)
