"""`triton-lb check FILE`: is this configuration good?"""

from __future__ import annotations

import sys

from lb.cli.loading import load_settings, print_problems
from lb.settings.problems import SettingsError


def check(path: str) -> int:
    """Print every problem of a configuration file, or one line that says OK.

    Returns:
        The exit code: 0 when the file is good, 1 otherwise.
    """
    try:
        load_settings(path, {})
    except SettingsError as error:
        print_problems(path, error, sys.stdout)
        return 1
    print(f"OK: {path}")
    return 0
