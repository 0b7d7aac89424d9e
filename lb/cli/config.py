"""`triton-lb config`: the effective configuration, of a file or of a running process."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import yaml
from pydantic import RootModel

from lb.cli.admin_client import AdminError, AdminTarget, NoSuchBackendError
from lb.cli.loading import load_settings, name_of_file, print_problems
from lb.settings.effective import effective
from lb.settings.problems import SettingsError

CONFIG: Final = "/api/v1/config"
"""Path of the operation that shows it."""


class RunningConfig(RootModel[dict[str, Any]]):
    """The answer of a process: settings as in a file, without secrets."""


def show_config_of_file(path: str, *, as_json: bool) -> int:
    """Print the effective configuration of a file.

    Args:
        path: of the file; `-` is standard input.
        as_json: print JSON instead of YAML.

    Returns:
        The exit code: 1 after the problems of the file, which go to standard error.
    """
    try:
        settings = load_settings(path, {})
    except SettingsError as error:
        print_problems(name_of_file(path), error, sys.stderr)
        return 1
    tree = effective(settings)
    print(json.dumps(tree, indent=2) if as_json else _yaml(tree))
    return 0


def _yaml(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).rstrip()


def show_running_config(admin: AdminTarget) -> int:
    """Print the effective configuration of a running process."""
    try:
        shown = admin.read(CONFIG, RunningConfig)
    except NoSuchBackendError:  # the status of an unknown path as well
        return admin.fail(
            AdminError(f"the process at {admin.address} cannot show its configuration")
        )
    except AdminError as error:
        return admin.fail(error)
    admin.write(shown, lambda found: _yaml(found.root).splitlines())
    return 0
