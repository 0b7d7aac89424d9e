"""Backends from a file that is followed.

Looking once a second costs a system call and works on every file system, also where files are
replaced through symbolic links, as Kubernetes does it. Everything that touches the file runs in a
thread: a file system may hang, and a long list takes a while to be read and compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from lb.discovery.source import Entries, SourceError, taken_over
from lb.net.file_thread import FileStalled, FileThread
from lb.net.files import FilePrint, print_of
from lb.settings.problems import MORE_PROBLEMS, SettingsError, shown

INTERVAL_S: Final = 1.0
_TOLD: Final = 5
"""Problems that are told one by one."""
_UNREAD: Final = "unread"
"""Stands for the state of a file that was never read."""

Read = Callable[[str], Entries]
"""Reads the file at a path. Raises SettingsError, OSError or UnicodeDecodeError."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a file held at one look."""

    print: FilePrint
    """Its state just before it was read."""
    entries: Entries = ()
    problem: str = ""
    """Why it cannot be used; empty if it can."""
    may_pass: bool = False
    """The problem may go away without a change of the file."""


class FileSource:
    """One file."""

    def __init__(
        self,
        path: str,
        read: Read,
        files: FileThread,
        *,
        goes_by: object = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """
        Args:
            path: of the file.
            read: reads it.
            files: the thread in which it is read.
            goes_by: what `read` depends on beside the file.
            interval_s: between two looks at it.
        """
        self._path = path
        self._goes_by = goes_by
        self._read = read
        self._files = files
        self._interval_s = interval_s
        self._is_first = True
        """Nobody has asked for its backends yet."""
        self._print: FilePrint | Literal["unread"] = _UNREAD
        """Of the file when it was last read."""
        self._entries: Entries = ()
        """The last usable ones."""
        self._is_doubtful = False
        """It is read at the next look, even if it has not changed: it did not answer, could not be
        read, or was perhaps being written."""
        self._problem = ""
        """The one that was told last, if the file has had it ever since."""

    @property
    def name(self) -> str:
        """See `Source`."""
        return f"file:{shown(self._path)}"

    @property
    def config(self) -> object:
        """See `Source`."""
        return self._path, self._goes_by

    async def next(self) -> Entries:
        """See `Source`."""
        while True:
            if not self._is_first:
                await asyncio.sleep(self._interval_s)
            self._is_first = False
            known = _UNREAD if self._is_doubtful else self._print
            try:
                looked = await self._files.run(self, partial(self._look, known, self._entries))
            except FileStalled as stalled:
                self._is_doubtful, self._problem = True, ""
                raise SourceError(str(stalled)) from stalled
            if looked is None:
                continue
            is_new = self._print not in (_UNREAD, looked.print)
            self._print = looked.print
            self._is_doubtful = looked.may_pass or (is_new and bool(looked.problem))
            if not looked.problem:
                self._problem = ""
                self._entries = looked.entries
                return looked.entries
            if not is_new and looked.problem != self._problem:
                self._problem = looked.problem
                raise SourceError(looked.problem)

    def _look(self, known: FilePrint | Literal["unread"], before: Entries) -> _Looked | None:
        """Read the file in the thread.

        Args:
            known: state of the file in which there is no need to read it.
            before: entries of which those that have not changed are taken over.

        Returns:
            None where there is nothing new.
        """
        now = print_of(self._path)
        if now == known:
            return None
        try:
            entries = self._read(self._path)
        except (SettingsError, OSError, UnicodeDecodeError) as error:
            return _Looked(now, problem=_reasons(error), may_pass=isinstance(error, OSError))
        return _Looked(now, taken_over(before, entries))


def _reasons(error: SettingsError | OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return "cannot be read: it is not UTF-8 text"
    told = [f"line {each.line}: {each}" if each.line else str(each) for each in error.problems]
    is_cut = told[-1] == str(MORE_PROBLEMS)
    more = len(told) - _TOLD - is_cut
    at_least = "at least " if is_cut else ""
    return "; ".join(told[:_TOLD]) + (f"; and {at_least}{more} more" if more > 0 else "")
