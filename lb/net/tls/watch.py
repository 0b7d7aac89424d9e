"""Has TLS follow its files: looks once a second what has changed, and loads it.

Looking costs a system call per file and works on every file system, also where files are replaced
through symbolic links, as Kubernetes does it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

from lb.net.files import print_of
from lb.net.tls.contexts import TlsError

_log = logging.getLogger(__name__)


class Loadable(Protocol):
    """Something that is made from files."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """What it is made from."""
        ...

    @property
    def expiries(self) -> tuple[tuple[str, int], ...]:
        """Files of certificates in use, and the Unix times at which they end."""
        ...

    def load(self) -> None:
        """Make it anew; all or nothing.

        Raises:
            TlsError: a file cannot be used.
        """
        ...


class _Entry:
    __slots__ = ("is_doubtful", "loadable", "print")

    def __init__(self, loadable: Loadable) -> None:
        self.loadable = loadable
        self.print = tuple(map(print_of, loadable.files))
        self.is_doubtful = False
        """The files as they are did not do, which may be because they are being replaced."""


class FileWatch:
    """Reloads what its files have changed under."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self.failures = 0
        """Counter: changed files that could not be used."""

    def add(self, loadables: Iterable[Loadable]) -> None:
        """Watch these, too. They were loaded just now."""
        self._entries += map(_Entry, loadables)

    def replace(self, loadables: Iterable[Loadable]) -> None:
        """Watch these only; those that were watched before as before."""
        known = {entry.loadable: entry for entry in self._entries}
        self._entries = [known.get(each) or _Entry(each) for each in loadables]

    def expiries(self) -> Iterator[tuple[str, int]]:
        """Files of certificates in use and when these end, without repetitions."""
        return iter({pair: None for entry in self._entries for pair in entry.loadable.expiries})

    def look(self) -> None:
        """Load what has changed. Bad files are looked at once more next time, since a pair that
        is replaced file by file does not fit in between, and then told about once."""
        for entry in self._entries:
            now = tuple(map(print_of, entry.loadable.files))
            if now != entry.print or entry.is_doubtful:
                self._load(entry, is_new=now != entry.print)
                entry.print = now

    def _load(self, entry: _Entry, *, is_new: bool) -> None:
        fields = {"tls": entry.loadable.name, "files": ", ".join(entry.loadable.files)}
        try:
            entry.loadable.load()
        except TlsError as error:
            entry.is_doubtful = is_new
            if not is_new:
                self.failures += 1
                _log.error(
                    "changed certificates cannot be used, the old ones stay",
                    extra={**fields, "error": str(error)},
                )
            return
        entry.is_doubtful = False
        _log.info("certificates reloaded", extra=fields)
