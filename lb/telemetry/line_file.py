"""A file, or a descriptor, that whole lines are appended to; used by one thread that may wait."""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_WRITABLE_POLL_MS: Final = 200
"""How often a writer that waits for its reader looks whether it should give up."""
APPEND_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
"""Of `os.open`. Without `O_NONBLOCK` a FIFO that nobody reads would hold up the start."""


class LineFile:
    """Appends lines whole, except where an error of the device cuts one; the next line then starts
    on a line of its own."""

    def __init__(self, target: int | Path, name: str) -> None:
        """Open the target.

        Args:
            target: an open file descriptor, which stays the caller's, or a file to append to.
            name: which log it is, for messages.

        Raises:
            OSError: the file cannot be opened.
        """
        self._name = name
        self._path = target if isinstance(target, Path) else None
        self._fd = target if isinstance(target, int) else _open(target)
        self._is_line_cut = False
        self._is_failing = False
        """Whether the device did not take all of the last write, which is told once."""

    def reopen(self) -> None:
        """Open the file anew, for log rotation. Does nothing for a descriptor."""
        if self._path is None:
            return
        try:
            fresh = _open(self._path)
        except OSError as error:
            _log.error(
                "log file cannot be reopened, writing goes on in the old one",
                extra={"log": self._name, "path": str(self._path), "error": error.strerror},
            )
            return
        self._close()
        self._fd = fresh
        self._is_line_cut = False

    def close(self) -> None:
        """Close the file, but not a descriptor of the caller."""
        if self._path is not None:
            self._close()

    def _close(self) -> None:
        """Close the file. What the device says only now is told, and stops nobody."""
        try:
            os.close(self._fd)
        except OSError as error:
            self._tell_lost(error)

    def _tell_lost(self, error: OSError) -> None:
        path = "-" if self._path is None else str(self._path)
        fields = {"log": self._name, "path": path, "error": error.strerror}
        _log.error("log file has lost lines", extra=fields)

    def write(self, lines: bytes, gives_up: Callable[[], bool]) -> int:
        """Write lines. May wait as long as the device, or the reader of a pipe, takes.

        Args:
            lines: whole ones, newlines included.
            gives_up: whether to wait no longer for the reader of a pipe.

        Returns:
            How many lines are lost: a line without its newline is lost, even if some of it was
            written.
        """
        end_of_cut_line = b"\n" if self._is_line_cut else b""
        data = end_of_cut_line + lines
        written = self._write_all(data, gives_up)
        if written:
            self._is_line_cut = data[written - 1] != ord("\n")
        return data.count(b"\n", max(written, len(end_of_cut_line)))

    def _write_all(self, data: bytes, gives_up: Callable[[], bool]) -> int:
        """Write as much as the device takes; return how many bytes that was."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                if not self._await_reader(gives_up):
                    break
            except OSError as error:
                if not self._is_failing:
                    self._is_failing = True
                    self._tell_lost(error)
                break
        else:
            self._is_failing = False
        return len(data) - len(rest)

    def _await_reader(self, gives_up: Callable[[], bool]) -> bool:
        """Wait for room in a non-blocking pipe; False when the writer gives up."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while not poll.poll(_WRITABLE_POLL_MS):
            if gives_up():
                return False
        return True


def _open(path: Path) -> int:
    try:
        return os.open(path, APPEND_FLAGS, 0o640)
    except OSError as error:
        raise legible(error) from error


def legible(error: OSError) -> OSError:
    """An error of `os.open`, in words that say what to do."""
    if error.errno != errno.ENXIO:
        return error
    return OSError(errno.ENXIO, "it is a FIFO that nobody reads, or a socket", error.filename)
