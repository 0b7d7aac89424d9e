"""The two logs of the process and their files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from lb.domain.errors import LoadBalancerError
from lb.settings.model import Settings
from lb.settings.problems import shown
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
        self.access = open_access_log(settings)
        """Takes the access log's lines; None when it is off."""
        self._dropped = 0
        """Lines that earlier access logs have lost."""
        self.application = ApplicationLog(settings.log.level, settings.log.format)
        # The library writes every decoded field at level debug, `authorization` among them.
        logging.getLogger("hpack").setLevel(logging.WARNING)

    def dropped(self) -> Mapping[str, int]:
        """How many lines each log has lost."""
        dropped = {"application": self.application.dropped}
        if self.access is not None:
            dropped["access"] = self._dropped + self.access.dropped
        return dropped

    def replace(self, settings: Settings, access: LineWriter | None) -> LineWriter | None:
        """Log as other settings ask for it.

        Args:
            settings: those.
            access: what `open_access_log` opened for them, or what there is already.

        Returns:
            The access log that is to be closed, which takes up to a second.
        """
        self.application.configure(settings.log.level, settings.log.format)
        old, self.access = self.access, access
        if old is None or old is access:
            return None
        self._dropped += old.dropped
        return old

    def reopen(self) -> None:
        """Open the access log's file anew: it was moved away."""
        if self.access is not None:
            self.access.reopen()

    def close(self) -> None:
        """Write what is queued and close."""
        if self.access is not None:
            self.access.close()
        self.application.close()


def open_access_log(settings: Settings) -> LineWriter | None:
    """Open the access log that the settings ask for; None when they have none.

    Raises:
        LogFileError: it cannot be opened.
    """
    if settings.access_log.mode is AccessLogMode.OFF:
        return None
    path = settings.access_log.path
    target = sys.stdout.fileno() if path == "-" else Path(path)
    try:
        return LineWriter(target, name="access", batch_delay_s=_BATCH_DELAY_S)
    except OSError as error:
        raise LogFileError(f"cannot open the access log {shown(path)}: {error.strerror}") from error


_BATCH_DELAY_S = 0.05
"""Lines of 50 ms go out in one system call; a log reader does not notice."""
