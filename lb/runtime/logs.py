"""The two logs of the process and their files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from lb.domain.errors import LoadBalancerError
from lb.settings.model import Settings
from lb.settings.reporting import AccessLogMode
from lb.telemetry.line_writer import LineWriter
from lb.telemetry.logs import ApplicationLog


class LogFileError(LoadBalancerError):
    """A log file cannot be opened; the message says which and why."""


class Logs:
    """The application log on standard error, and the access log where it is on."""

    def __init__(self, settings: Settings) -> None:
        """Open both.

        Raises:
            LogFileError: the access log's file cannot be opened.
        """
        self.access = _open_access_log(settings)
        """Takes the access log's lines; None when it is off."""
        self.application = ApplicationLog(settings.log.level, settings.log.format)
        # The library writes every decoded field at level debug, `authorization` among them.
        logging.getLogger("hpack").setLevel(logging.WARNING)

    @property
    def dropped(self) -> Mapping[str, Callable[[], int]]:
        """How many lines each log has lost."""
        dropped = {"application": lambda: self.application.dropped}
        access = self.access
        if access is not None:
            dropped["access"] = lambda: access.dropped
        return dropped

    def reopen(self) -> None:
        """Open the access log's file anew: it was moved away."""
        if self.access is not None:
            self.access.reopen()

    def close(self) -> None:
        """Write what is queued and close."""
        if self.access is not None:
            self.access.close()
        self.application.close()


def _open_access_log(settings: Settings) -> LineWriter | None:
    if settings.access_log.mode is AccessLogMode.OFF:
        return None
    path = settings.access_log.path
    target = sys.stdout.fileno() if path == "-" else Path(path)
    try:
        return LineWriter(target, name="access", batch_delay_s=_BATCH_DELAY_S)
    except OSError as error:
        raise LogFileError(f"cannot open the access log {path}: {error.strerror}") from error


_BATCH_DELAY_S = 0.05
"""Lines of 50 ms go out in one system call; a log reader does not notice."""
