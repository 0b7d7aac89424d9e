"""Writes the payload log in a thread of its own: a disk that is full or hangs, and a FIFO that
nobody reads, cost nothing but lines.

The thread holds the interpreter while it makes lines, so it does little at a time: after each
inference it rests as long as that took, and longer where the log must not grow faster.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lb.payloads.lines import PayloadRecord
from lb.telemetry.line_file import LineFile

_log = logging.getLogger(__name__)

Written = Callable[[PayloadRecord, bool], None]
"""Is told, in the writer's thread, that a record is over: written, or lost."""
_LINES: Final = 2
"""Of one record."""


class PayloadWriter:
    """The file of the payload log and its thread."""

    def __init__(self, path: Path) -> None:
        """Open the file and start the thread.

        Raises:
            OSError: the file cannot be opened, or no thread can be started.
        """
        self.bytes_per_second = 0
        """How fast the file may grow; 0 is no limit. Set by its user."""
        self._file = LineFile(path, "payload")
        self._records: deque[tuple[PayloadRecord, Written]] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reopen_wanted = False
        self._thread = threading.Thread(target=self._run, name="log:payload", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of the system
            self._file.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def put(self, record: PayloadRecord, written: Written) -> None:
        """Queue a record. Never blocks."""
        self._records.append((record, written))
        self._wake.set()

    def drop_queued(self) -> None:
        """Forget the records that the thread has not begun with."""
        self._records.clear()

    def reopen(self) -> None:
        """Open the file anew, for log rotation."""
        self._reopen_wanted = True
        self._wake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s` seconds, and end. Idempotent."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            is_last_round = self._closing.is_set()
            self._wake.clear()
            self._follow_rotation()
            while self._records:
                self._write_next()
                self._follow_rotation()
            if is_last_round:
                break
            if self._closing.is_set():
                self._wake.set()
        self._file.close()

    def _follow_rotation(self) -> None:
        if self._reopen_wanted:
            self._reopen_wanted = False
            self._file.reopen()

    def _write_next(self) -> None:
        try:
            record, written = self._records.popleft()
        except IndexError:  # forgotten meanwhile
            return
        began = time.monotonic()
        lines = b""
        try:
            lines = record.lines()
        except Exception:  # our bug: it costs this record, not the log
            _log.exception("payload cannot be logged")
        took_s = time.monotonic() - began
        lost = self._file.write(lines, self._closing.is_set) if lines else _LINES
        written(record, not lost)
        rate = self.bytes_per_second
        self._closing.wait(max(took_s, len(lines) / rate if rate else 0.0))
