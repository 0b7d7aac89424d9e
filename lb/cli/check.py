"""`triton-lb check FILE`: is this configuration good?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from lb.cli.loading import load_settings, name_of_file, print_problems, read_file
from lb.net.files import read_text
from lb.net.tls.contexts import TlsError
from lb.settings.backends import BackendSettings
from lb.settings.listed import read_backends
from lb.settings.model import Settings
from lb.settings.problems import SettingsError, shown
from lb.settings.relations import own_addresses
from lb.settings.substitution import Substitution
from lb.settings.warnings import warnings_of


def check(path: str, *, syntax_only: bool = False, quiet: bool = False) -> int:
    """Print every problem of a configuration file and of the files that it names, or one line that
    says OK. Warnings come before that line.

    Args:
        path: of the file; `-` is standard input.
        syntax_only: leave out certificates, keys and tokens, which this machine may not have.
        quiet: print problems only.

    Returns:
        The exit code: 0 when there is no problem, 1 otherwise.
    """
    name = name_of_file(path)
    try:
        settings = load_settings(path, {})
    except SettingsError as error:
        print_problems(name, error, sys.stdout)
        return 1
    backends, is_good = list(settings.backends), True
    for file in settings.discovery.files:
        found = _read_backends(file, settings)
        is_good = is_good and found is not None
        backends += found or ()
    if not syntax_only:
        for problem in _unusable_files(settings.model_copy(update={"backends": tuple(backends)})):
            print(f"{name}: {problem}")
            is_good = False
    if not is_good:
        return 1
    if not quiet:
        for warning in warnings_of(settings, backends):
            print(f"{name}: warning: {warning}")
        print(f"OK: {name}")
    return 0


def _unusable_files(settings: Settings) -> Iterator[str]:
    """Load what the process would load at its start, and say what cannot be used."""
    from lb.runtime.access import TokenFileError, make_access
    from lb.runtime.security import make_security

    try:
        make_security(settings)
    except TlsError as error:
        yield str(error)
    try:
        make_access(settings)
    except TokenFileError as error:
        yield str(error)


def _read_backends(path: str, settings: Settings) -> tuple[BackendSettings, ...] | None:
    """The backends of a file; None where it has problems, which are printed."""
    try:
        text = read_file(path)
        substitution = Substitution(os.environ, read_text)
        return read_backends(text, substitution.apply, own_addresses(settings))
    except SettingsError as error:
        print_problems(shown(path), error, sys.stdout)
        return None
