"""`triton-lb serve`: from a file or flags to the running process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from lb.cli.loading import load, print_problems
from lb.domain.errors import LoadBalancerError
from lb.settings.flags import settings_from_flags
from lb.settings.problems import SettingsError
from lb.settings.reading import Loaded


def serve(config: str | None, backends: Sequence[str], listen: Mapping[str, str]) -> int:
    """Balance until told to stop.

    Args:
        config: configuration file; None when flags say it all.
        backends: `HOST:PORT` of each Triton, only without a file.
        listen: addresses by listener, over those of the file or the default ones.

    Returns:
        The exit code: 1 when the process could not start.
    """
    try:
        loaded = (
            Loaded(settings_from_flags(backends, **listen), "")
            if config is None
            else load(config, listen)
        )
    except SettingsError as error:
        print_problems("triton-lb" if config is None else config, error, sys.stderr)
        return 1
    # Only now: a mistake in the settings is told without loading the data plane.
    from lb.runtime.process import Start, run
    from lb.runtime.reload import ConfigurationFile

    file = None if config is None else ConfigurationFile(config, lambda: load(config, listen))
    try:
        return run(loaded.settings, Start(file=file, digest=loaded.digest))
    except (LoadBalancerError, OSError) as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return 1
