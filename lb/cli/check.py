"""`triton-lb check FILE`: is this configuration good?"""

from __future__ import annotations

import os
import sys

from lb.cli.loading import load_settings, print_problems, read_file
from lb.net.files import read_text
from lb.settings.backends import BackendSettings
from lb.settings.listed import own_addresses, read_backends
from lb.settings.model import Settings
from lb.settings.problems import SettingsError, shown
from lb.settings.shared_addresses import shared_addresses
from lb.settings.substitution import Substitution


def check(path: str) -> int:
    """Print every problem of a configuration file and of the files with backends that it names, or
    one line that says OK. Warnings come before that line.

    Returns:
        The exit code: 0 when there is no problem, 1 otherwise.
    """
    try:
        settings = load_settings(path, {})
    except SettingsError as error:
        print_problems(path, error, sys.stdout)
        return 1
    backends, is_good = list(settings.backends), True
    for file in settings.discovery.files:
        found = _read_backends(file, settings)
        is_good = is_good and found is not None
        backends += found or ()
    if not is_good:
        return 1
    for warning in shared_addresses(backends):
        print(f"{path}: warning: {warning}")
    print(f"OK: {path}")
    return 0


def _read_backends(path: str, settings: Settings) -> tuple[BackendSettings, ...] | None:
    """The backends of a file; None where it has problems, which are printed."""
    try:
        text = read_file(path)
        substitution = Substitution(os.environ, read_text)
        return read_backends(text, substitution.apply, own_addresses(settings))
    except SettingsError as error:
        print_problems(shown(path), error, sys.stdout)
        return None
