"""`triton-lb serve`: from a file or flags to the running process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from lb.cli.loading import load, print_problems
from lb.domain.errors import LoadBalancerError
from lb.runtime.predecessor import Predecessor, find_predecessor, sockets_of_systemd
from lb.settings.flags import settings_from_flags
from lb.settings.problems import SettingsError
from lb.settings.reading import Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says."""

    config: str | None = None
    """Configuration file; None when flags say it all."""
    backends: Sequence[str] = ()
    """`HOST:PORT` of each Triton, only without a file."""
    listen: Mapping[str, str] = field(default_factory=dict)
    """Addresses by listener, over those of the file or the default ones."""
    pid_file: str = ""
    """Is to hold the id of the process."""


def serve(options: ServeOptions) -> int:
    """Balance until told to stop.

    Returns:
        The exit code: 1 when the process could not start.
    """
    try:
        predecessor = find_predecessor(os.environ)
    except (OSError, ValueError) as error:
        print(f"triton-lb: cannot take over from the process before: {error}", file=sys.stderr)
        return 1
    try:
        loaded = _load(options)
    except SettingsError as error:
        source = "triton-lb" if options.config is None else options.config
        print_problems(source, error, sys.stderr)
        return _fail(predecessor, f"{source}: {error}")
    try:
        _run(options, loaded, predecessor)
    except (LoadBalancerError, OSError) as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return _fail(predecessor, str(error))


def _load(options: ServeOptions) -> Loaded:
    if options.config is None:
        return Loaded(settings_from_flags(options.backends, **options.listen), "")
    return load(options.config, options.listen)


def _run(options: ServeOptions, loaded: Loaded, predecessor: Predecessor | None) -> NoReturn:
    # Only now: a mistake in the settings is told without loading the data plane.
    from lb.runtime.process import Start, run
    from lb.runtime.reload import ConfigurationFile

    config = options.config
    file = None
    if config is not None:
        file = ConfigurationFile(config, lambda: load(config, options.listen))
    inherited = sockets_of_systemd(os.environ) if predecessor is None else predecessor.inherited
    start = Start(
        file=file,
        digest=loaded.digest,
        inherited=inherited,
        predecessor=predecessor,
        pid_file=options.pid_file,
    )
    code = run(loaded.settings, start)
    # Nothing is left to do. The usual end would wait for threads, which may wait for a name server.
    os._exit(code)


def _fail(predecessor: Predecessor | None, reason: str) -> int:
    if predecessor is not None:
        predecessor.tell("failed", reason)
    return 1
