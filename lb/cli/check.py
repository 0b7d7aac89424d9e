"""`triton-lb check FILE`: is this configuration good?"""

from __future__ import annotations

import os
import sys

from lb.cli.loading import load_settings, print_problems
from lb.net.files import read_text
from lb.settings.listed import own_addresses, read_backends
from lb.settings.model import Settings
from lb.settings.problems import Problem, SettingsError
from lb.settings.substitution import Substitution


def check(path: str) -> int:
    """Print every problem of a configuration file and of the files with backends that it names, or
    one line that says OK.

    Returns:
        The exit code: 0 when all is good, 1 otherwise.
    """
    try:
        settings = load_settings(path, {})
    except SettingsError as error:
        print_problems(path, error, sys.stdout)
        return 1
    results = [_check_backends(file, settings) for file in settings.discovery.files]
    if not all(results):
        return 1
    print(f"OK: {path}")
    return 0


def _check_backends(path: str, settings: Settings) -> bool:
    try:
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([Problem("", f"cannot be read: {error}")]) from error
        read_backends(text, Substitution(os.environ, read_text).apply, own_addresses(settings))
    except SettingsError as error:
        print_problems(path, error, sys.stdout)
        return False
    return True
