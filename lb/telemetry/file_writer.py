"""A thread that writes what is queued to a file, opens it anew for rotation, and ends in time."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sized
from pathlib import Path

from lb.telemetry.line_file import LineFile


class FileWriter:
    """A file of lines and the thread that writes it. A disk that hangs holds up nothing else."""

    def __init__(
        self,
        target: int | Path,
        *,
        name: str,
        queue: Sized,
        write_next: Callable[[], None],
        batch_delay_s: float = 0.0,
    ) -> None:
        """Open the target and start the thread.

        Args:
            target: an open file descriptor, which stays the caller's, or a file to append to.
            name: which log it is, for the thread's name and for messages.
            queue: what is to be written.
            write_next: takes something from the queue and writes it, in the thread.
            batch_delay_s: how long the first of the queue may wait for more.

        Raises:
            OSError: the file cannot be opened, or no thread can be started.
        """
        self._file = LineFile(target, name)
        self._queue = queue
        self._write_next = write_next
        self._batch_delay_s = batch_delay_s
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reopen_wanted = False
        self._thread = threading.Thread(target=self._run, name=f"log:{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of the system
            self._file.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is to be queued."""
        return self._closing.is_set()

    def wake(self) -> None:
        """Have the thread write what is queued."""
        if not self._wake.is_set():
            self._wake.set()

    def reopen(self) -> None:
        """Open the file anew, for log rotation. Does nothing for a descriptor."""
        self._reopen_wanted = True
        self._wake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s` seconds, and end. Idempotent."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    # For `write_next`

    def write(self, lines: bytes) -> int:
        """Write whole lines; returns how many are lost. It may wait as long as the device does."""
        return self._file.write(lines, self._closing.is_set)

    def rest(self, time_s: float) -> None:
        """Let others have the interpreter, or the device; ends at once when the log is closed."""
        self._closing.wait(time_s)

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._batch_delay_s:
                self._closing.wait(self._batch_delay_s)
            is_last_round = self._closing.is_set()
            self._wake.clear()
            self._follow_rotation()
            while self._queue:
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
