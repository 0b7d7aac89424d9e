"""`triton-lb serve`: from a file or flags to the running process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from lb.cli.loading import load, print_problems
from lb.domain.errors import LoadBalancerError
from lb.runtime.configuration_file import ConfigurationFile
from lb.runtime.predecessor import Predecessor, find_predecessor, sockets_of_systemd
from lb.runtime.start import Start
from lb.runtime.workers.cores import worker_count
from lb.runtime.workers.seat import Seat, find_seat
from lb.settings.choices import LogLevel
from lb.settings.flags import settings_from_flags
from lb.settings.problems import SettingsError
from lb.settings.reading import Loaded


class UpgradeRefused(LoadBalancerError):
    """The process before cannot be taken over from."""


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
    log_level: LogLevel | None = None
    """Instead of that of the file."""


def serve(options: ServeOptions) -> int:
    """Balance until told to stop.

    Returns:
        The exit code: 1 when the process could not start.
    """
    try:
        seat = find_seat(os.environ)
        predecessor = find_predecessor(os.environ)
    except (OSError, ValueError) as error:
        print(f"triton-lb: cannot take over from the process before: {error}", file=sys.stderr)
        return 1
    config, file = options.config, None
    if seat is not None:
        return _run_seat(seat, options)
    if config is not None:
        file = ConfigurationFile(config, partial(_from_file, config, options))
    try:
        loaded = _from_flags(options) if file is None else file.load()
    except SettingsError as error:
        source = config or "triton-lb"
        print_problems(source, error, sys.stderr)
        return _fail(predecessor, f"{source}: {error}")
    try:
        _run(options, file, loaded, predecessor)
    except (LoadBalancerError, OSError) as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return _fail(predecessor, str(error))


def _from_file(path: str, options: ServeOptions) -> Loaded:
    return _with_level(load(path, options.listen), options)


def _from_flags(options: ServeOptions) -> Loaded:
    return _with_level(Loaded(settings_from_flags(options.backends, **options.listen), ""), options)


def _with_level(loaded: Loaded, options: ServeOptions) -> Loaded:
    """The configuration with the log level of the command line, if that has one."""
    if options.log_level is None:
        return loaded
    settings = loaded.settings
    log = settings.log.model_copy(update={"level": options.log_level})
    return loaded._replace(settings=settings.model_copy(update={"log": log}))


def _run(
    options: ServeOptions,
    file: ConfigurationFile | None,
    loaded: Loaded,
    predecessor: Predecessor | None,
) -> NoReturn:
    inherited = sockets_of_systemd(os.environ) if predecessor is None else predecessor.inherited
    start = Start(
        file=file,
        digest=loaded.digest,
        inherited=inherited,
        predecessor=predecessor,
        pid_file=options.pid_file,
    )
    count = worker_count(loaded.settings)
    if predecessor is not None and predecessor.has_workers != (count > 1):
        raise UpgradeRefused("workers: from one process to several, or back, needs a restart")
    # Only now: a mistake in the settings is told without loading the data plane, and a supervisor
    # never loads it.
    if count > 1:
        from lb.runtime.workers.supervisor import run_supervisor

        code = run_supervisor(loaded.settings, start, count)
    else:
        from lb.runtime.process import run

        code = run(loaded.settings, start)
    # Nothing is left to do. The usual end would wait for threads, which may wait for a name server.
    os._exit(code)


def _run_seat(seat: Seat, options: ServeOptions) -> int:
    """Be one process of a service with workers."""
    from lb.runtime.workers.run import run_seat

    config = options.config
    file = None
    if config is not None:
        file = ConfigurationFile(config, partial(_from_file, config, options))
    try:
        code = run_seat(seat, file)
    except (LoadBalancerError, OSError) as error:
        print(f"triton-lb: {seat.name}: {error}", file=sys.stderr)
        code = 1
    os._exit(code)


def _fail(predecessor: Predecessor | None, reason: str) -> int:
    if predecessor is not None:
        predecessor.tell("failed", reason)
    return 1
