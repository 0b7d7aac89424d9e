"""Backends from a file that is followed.

Looking once a second costs a system call and works on every file system, also where files are
replaced through symbolic links, as Kubernetes does it. Everything that touches the file runs in a
thread: a file system may hang, and a long list takes a while to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lb.discovery.source import Entries, SourceError
from lb.net.files import FilePrint, print_of
from lb.settings.problems import SettingsError

INTERVAL_S: Final = 1.0
_TOLD: Final = 5
"""Problems that are told one by one."""

Read = Callable[[str], Entries]
"""Reads the file at a path. Raises SettingsError, OSError or UnicodeDecodeError."""


class FileSource:
    """One file."""

    def __init__(
        self, path: str, read: Read, *, goes_by: object = None, interval_s: float = INTERVAL_S
    ) -> None:
        """
        Args:
            path: of the file.
            read: reads it.
            goes_by: what `read` depends on beside the file.
            interval_s: between two looks at it.
        """
        self._path = path
        self._goes_by = goes_by
        self._read = read
        self._interval_s = interval_s
        self._print: FilePrint = None
        """Of the file when it was last read."""
        self._was_read = False
        self._is_doubtful = False
        """It did not do, which may be because it is being written: it is looked at once more."""

    @property
    def name(self) -> str:
        """See `Source`."""
        return f"file:{self._path}"

    @property
    def config(self) -> object:
        """See `Source`."""
        return self._path, self._goes_by

    async def next(self) -> Entries:
        """See `Source`."""
        while True:
            if self._was_read:
                await asyncio.sleep(self._interval_s)
            found = await asyncio.to_thread(self._look)
            if found is not None:
                return found

    def _look(self) -> Entries | None:
        """The file's backends; None where there is nothing new.

        Raises:
            SourceError: it cannot be used.
        """
        now = print_of(self._path)
        if self._was_read and now == self._print and not self._is_doubtful:
            return None
        is_new = self._was_read and now != self._print
        self._was_read, self._print = True, now
        try:
            found = self._read(self._path)
        except (SettingsError, OSError, UnicodeDecodeError) as error:
            self._is_doubtful = is_new
            if is_new:
                return None
            raise SourceError(_reasons(error)) from error
        self._is_doubtful = False
        return found


def _reasons(error: SettingsError | OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return "cannot be read: it is not UTF-8 text"
    told = [f"line {each.line}: {each}" if each.line else str(each) for each in error.problems]
    more = len(told) - _TOLD
    return "; ".join(told[:_TOLD]) + (f"; and {more} more" if more > 0 else "")
