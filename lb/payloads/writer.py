"""Writes the payload log in a thread of its own: a disk that is full or hangs, and a FIFO that
nobody reads, cost nothing but lines.

The thread holds the interpreter while it makes lines, so it does little at a time: after each
inference it rests as long as that took, and longer where the log must not grow faster.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lb.payloads.lines import PayloadRecord
from lb.telemetry.file_writer import FileWriter

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
        self._records: deque[tuple[PayloadRecord, Written]] = deque()
        self._writer = FileWriter(
            path, name="payload", queue=self._records, write_next=self._write_next
        )

    def put(self, record: PayloadRecord, written: Written) -> None:
        """Queue a record. Never blocks."""
        self._records.append((record, written))
        self._writer.wake()

    def drop_queued(self) -> None:
        """Forget the records that the thread has not begun with."""
        self._records.clear()

    def reopen(self) -> None:
        """See `FileWriter`."""
        self._writer.reopen()

    def close(self, timeout_s: float = 1.0) -> None:
        """See `FileWriter`. What is left then is lost: a file that hangs must not hold memory."""
        self._writer.close(timeout_s)
        try:
            while True:
                record, written = self._records.popleft()
                written(record, False)
        except IndexError:  # none is left
            return

    # The thread

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
        lost = self._writer.write(lines) if lines else _LINES
        written(record, not lost)
        rate = self.bytes_per_second
        self._writer.rest(max(took_s, len(lines) / rate if rate else 0.0))
