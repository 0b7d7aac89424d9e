"""Writes log lines without ever stopping their producer.

A pipe whose reader sleeps blocks a plain write for as long as it sleeps, and setting a shared
standard stream to non-blocking would change it for other processes too. So one thread per log
writes from a bounded queue: when the queue is full, or the disk is, lines are dropped and counted.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections import deque
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Lines waiting to be written: a second of logging everything at ten thousand requests a second."""
_BATCH_BYTES: Final = 256 * 1024
"""Written by one system call."""
_WRITABLE_POLL_MS: Final = 200
"""How often a writer that waits for its reader looks whether it should give up."""
_OPEN_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
# O_NONBLOCK: a FIFO that nobody reads fails at once instead of stopping the start-up.


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
        self._name = name
        self._path = target if isinstance(target, Path) else None
        self._fd = target if isinstance(target, int) else os.open(target, _OPEN_FLAGS, 0o640)
        self._batch_delay_s = batch_delay_s
        self._queue_bytes = queue_bytes
        self._lines: deque[bytes] = deque()
        # Each counter has one writing side, so that none needs a lock: producer, then thread.
        self._accepted_bytes = 0
        self._refused = 0
        self._settled_bytes = 0
        self._lost = 0
        self._is_line_cut = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reopen_wanted = False
        self._thread = threading.Thread(target=self._run, name=f"log:{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of the system
            if self._path is not None:
                os.close(self._fd)
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def dropped(self) -> int:
        """Lines lost so far: the queue was full, or writing failed."""
        return self._refused + self._lost

    def write(self, line: bytes) -> None:
        """Queue one line, newline included. Never blocks and never raises. One thread at a time."""
        size = len(line)
        waiting = self._accepted_bytes - self._settled_bytes
        if waiting + size > self._queue_bytes or self._closing.is_set():
            self._refused += 1
            return
        self._accepted_bytes += size
        self._lines.append(line)
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

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._batch_delay_s:
                self._closing.wait(self._batch_delay_s)
            is_last_round = self._closing.is_set()
            self._wake.clear()
            if self._reopen_wanted and self._path is not None:
                self._reopen(self._path)
            while self._lines:
                self._write_batch()
            if is_last_round:
                break
            if self._closing.is_set():
                self._wake.set()
        if self._path is not None:
            os.close(self._fd)

    def _reopen(self, path: Path) -> None:
        self._reopen_wanted = False
        try:
            fresh = os.open(path, _OPEN_FLAGS, 0o640)
        except OSError as error:
            _log.error(
                "log file cannot be reopened, writing goes on in the old one",
                extra={"log": self._name, "path": str(path), "error": error.strerror},
            )
            return
        os.close(self._fd)
        self._fd = fresh
        self._is_line_cut = False

    def _write_batch(self) -> None:
        end_of_cut_line = b"\n" if self._is_line_cut else b""
        batch = [end_of_cut_line]
        size = 0
        while self._lines and size < _BATCH_BYTES:
            line = self._lines.popleft()
            batch.append(line)
            size += len(line)
        data = b"".join(batch)
        written = self._write_all(data)
        # A line whose newline is missing is lost, even if some of it was written.
        self._lost += data.count(b"\n", max(written, len(end_of_cut_line)))
        if written:
            self._is_line_cut = data[written - 1] != ord("\n")
        self._settled_bytes += size

    def _write_all(self, data: bytes) -> int:
        """Write as much as the device takes; return how many bytes that was."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                if not self._await_reader():
                    break
            except OSError:
                break
        return len(data) - len(rest)

    def _await_reader(self) -> bool:
        """Wait for room in a non-blocking pipe; False when the writer is being closed."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while not poll.poll(_WRITABLE_POLL_MS):
            if self._closing.is_set():
                return False
        return True
