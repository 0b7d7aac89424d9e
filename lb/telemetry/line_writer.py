"""Writes log lines without ever stopping their producer.

A pipe whose reader sleeps blocks a plain write for as long as it sleeps, and setting a shared
standard stream to non-blocking would change it for other processes too. So one thread per log
writes from a bounded queue: when the queue is full, or the disk is, lines are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

from lb.telemetry.file_writer import FileWriter

QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Lines waiting to be written: a second of logging everything at ten thousand requests a second."""
_BATCH_BYTES: Final = 256 * 1024
"""Written by one system call."""


class LineWriter:
    """A bounded queue of lines and the thread that writes them.

    Lines are written whole and in order, except where one was cut by an error of the device; the
    next one then starts on a line of its own.
    """

    def __init__(
        self,
        target: int | Path,
        *,
        name: str,
        batch_delay_s: float = 0.0,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Open the target and start writing.

        Args:
            target: an open file descriptor, which stays the caller's, or a file to append to.
            name: which log it is, for the thread's name and for messages.
            batch_delay_s: how long a line may wait for others to be written with it.
            queue_bytes: lines beyond this are dropped.

        Raises:
            OSError: the file cannot be opened, or no thread can be started.
        """
        self._queue_bytes = queue_bytes
        self._lines: deque[bytes] = deque()
        # Each counter has one writing side, so that none needs a lock: producer, then thread.
        self._accepted_bytes = 0
        self._refused = 0
        self._settled_bytes = 0
        self._lost = 0
        self._writer = FileWriter(
            target,
            name=name,
            queue=self._lines,
            write_next=self._write_batch,
            batch_delay_s=batch_delay_s,
        )

    @property
    def dropped(self) -> int:
        """Lines lost so far: the queue was full, or writing failed."""
        return self._refused + self._lost

    def write(self, line: bytes) -> None:
        """Queue one line, newline included. Never blocks and never raises. One thread at a time."""
        size = len(line)
        waiting = self._accepted_bytes - self._settled_bytes
        if waiting + size > self._queue_bytes or self._writer.is_closing:
            self._refused += 1
            return
        self._accepted_bytes += size
        self._lines.append(line)
        self._writer.wake()

    def reopen(self) -> None:
        """See `FileWriter`."""
        self._writer.reopen()

    def close(self, timeout_s: float = 1.0) -> None:
        """See `FileWriter`."""
        self._writer.close(timeout_s)

    # The thread

    def _write_batch(self) -> None:
        batch = []
        size = 0
        while self._lines and size < _BATCH_BYTES:
            line = self._lines.popleft()
            batch.append(line)
            size += len(line)
        self._lost += self._writer.write(b"".join(batch))
        self._settled_bytes += size
