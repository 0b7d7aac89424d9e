"""The logs of the process and their files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from lb.domain.errors import LoadBalancerError
from lb.net.files import answer_of
from lb.payloads.log import payload_rules
from lb.payloads.writer import PayloadWriter
from lb.settings.model import Settings
from lb.settings.problems import shown
from lb.settings.reporting import AccessLogMode
from lb.telemetry.line_writer import LineWriter
from lb.telemetry.logs import ApplicationLog


class LogFileError(LoadBalancerError):
    """A log file cannot be opened; the message says which and why."""


class LogFiles(NamedTuple):
    """What writes the logs that are on."""

    access: LineWriter | None
    payloads: PayloadWriter | None

    def close(self, kept: LogFiles | None = None, timeout_s: float = 1.0) -> None:
        """Write what is queued and close.

        Args:
            kept: stay open.
            timeout_s: how long each may take.
        """
        for writer in self:
            if writer is not None and (kept is None or writer not in kept):
                writer.close(timeout_s)


_NONE: Final = LogFiles(None, None)


class Logs:
    """The application log on standard error, and the files of the others."""

    def __init__(self, settings: Settings) -> None:
        """Open all.

        Raises:
            LogFileError: a file cannot be opened.
        """
        self.files = open_log_files(settings)
        self._dropped = 0
        """Lines that earlier access logs have lost."""
        self.application = ApplicationLog(settings.log.level, settings.log.format)
        # The library writes every decoded field at level debug, `authorization` among them.
        logging.getLogger("hpack").setLevel(logging.WARNING)

    def dropped(self) -> Mapping[str, int]:
        """Count the lines that the application log and the access log have lost."""
        dropped = {"application": self.application.dropped}
        if self.files.access is not None:
            dropped["access"] = self._dropped + self.files.access.dropped
        return dropped

    def replace(self, settings: Settings, files: LogFiles) -> LogFiles:
        """Log as other settings ask for it.

        Args:
            settings: those.
            files: what `open_log_files` opened for them.

        Returns:
            The files until now; those that are used no more are to be closed.
        """
        self.application.configure(settings.log.level, settings.log.format)
        old, self.files = self.files, files
        if old.access is not None and old.access is not files.access:
            self._dropped += old.access.dropped
        return old

    def reopen(self) -> None:
        """Open the files anew: they were moved away."""
        for writer in self.files:
            if writer is not None:
                writer.reopen()

    def close(self) -> None:
        """Write what is queued and close."""
        self.files.close()
        self.application.close()


def open_log_files(
    settings: Settings, before: Settings | None = None, files: LogFiles = _NONE
) -> LogFiles:
    """Open the files that the settings ask for.

    Args:
        settings: those.
        before: the settings in force; None at the start.
        files: of these. What both ask for alike is used again.

    Raises:
        LogFileError: one cannot be opened; none is left open that was not before.
    """
    access = files.access
    if before is None or _access_needs(before) != _access_needs(settings):
        access = _open_access_log(settings)
    payloads = files.payloads
    if before is None or _payload_path(before) != _payload_path(settings):
        try:
            payloads = _open_payload_log(settings)
        except LogFileError:
            LogFiles(access, None).close(files)
            raise
    return LogFiles(access, payloads)


def _access_needs(settings: Settings) -> tuple[object, ...]:
    log = settings.access_log
    return (log.path, log.mode is AccessLogMode.OFF)


def _open_access_log(settings: Settings) -> LineWriter | None:
    if settings.access_log.mode is AccessLogMode.OFF:
        return None
    path = settings.access_log.path
    target = sys.stdout.fileno() if path == "-" else Path(path)
    try:
        return answer_of(
            lambda: LineWriter(target, name="access", batch_delay_s=_BATCH_DELAY_S),
            path,
            discard=LineWriter.close,
        )
    except OSError as error:
        raise LogFileError(f"cannot open the access log {shown(path)}: {error.strerror}") from error


def _payload_path(settings: Settings) -> str | None:
    return settings.payload_log.path if payload_rules(settings.payload_log) else None


def _open_payload_log(settings: Settings) -> PayloadWriter | None:
    path = _payload_path(settings)
    if path is None:
        return None
    try:
        return answer_of(lambda: PayloadWriter(Path(path)), path, discard=PayloadWriter.close)
    except OSError as error:
        why = f"cannot open the payload log {shown(path)}: {error.strerror}"
        raise LogFileError(why) from error


_BATCH_DELAY_S = 0.05
"""Lines of 50 ms go out in one system call; a log reader does not notice."""
