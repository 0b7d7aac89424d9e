"""Has TLS follow its files: looks once a second what has changed, and loads it.

Looking costs a system call per file and works on every file system, also where files are replaced
through symbolic links, as Kubernetes does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from lb.net.files import FilePrint, print_of
from lb.net.tls.contexts import TlsError
from lb.settings.problems import shown

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
    def is_loaded(self) -> bool:
        """Whether it was made before; what never was is tried at each look."""
        ...

    @property
    def prints(self) -> tuple[FilePrint, ...]:
        """State of the files when they were last loaded; empty before that."""
        ...

    @property
    def expiries(self) -> tuple[tuple[str, int], ...]:
        """Files of certificates in use, and the Unix times at which they end."""
        ...

    def load(self) -> Callable[[], None]:
        """Make it anew, all or nothing; return what puts the new one in force. May wait for files.

        Raises:
            TlsError: a file cannot be used.
        """
        ...

    def failed(self, error: TlsError) -> None:
        """A file cannot be used, and it was never made before."""
        ...


class Watched:
    """One loadable and the state of its files. A `Follower`."""

    __slots__ = ("_failed", "_is_doubtful", "_print", "_told", "loadable")

    def __init__(self, loadable: Loadable, failed: Callable[[], None]) -> None:
        """
        Args:
            loadable: what is watched.
            failed: called when changed files cannot be used.
        """
        self.loadable = loadable
        self._failed = failed
        self._print = loadable.prints
        """State of the files when they were last read."""
        self._is_doubtful = False
        """The files as they are did not do, which may be because they are being replaced."""
        self._told = ""
        """The problem of a loadable that was never loaded, as the log has it."""

    def poll(self) -> Callable[[], None] | None:
        """Load what has changed; see `Follower`. Bad files are looked at once more next time,
        since a pair that is replaced file by file does not fit in between, and then told once."""
        loadable = self.loadable
        now = tuple(map(print_of, loadable.files))
        if loadable.is_loaded and not self._is_doubtful and now == self._print:
            return None
        try:
            apply = loadable.load()
        except TlsError as error:
            problem = error
            return lambda: self._take_problem(problem, now)
        return lambda: self._take(apply, now)

    def _take(self, apply: Callable[[], None], now: tuple[FilePrint, ...]) -> None:
        is_first = not self.loadable.is_loaded
        self._print, self._is_doubtful, self._told = now, False, ""
        apply()
        _log.info("certificates loaded" if is_first else "certificates reloaded", extra=self._about)

    def _take_problem(self, error: TlsError, now: tuple[FilePrint, ...]) -> None:
        is_new = now != self._print
        self._print = now
        if not self.loadable.is_loaded:
            self.loadable.failed(error)
            if self._told != str(error):
                self._told = str(error)
                fields = {**self._about, "error": str(error)}
                _log.error("TLS of a backend cannot be used", extra=fields)
            return
        self._is_doubtful = is_new
        if not is_new:
            self._failed()
            _log.error(
                "changed certificates cannot be used, the old ones stay",
                extra={**self._about, "error": str(error)},
            )

    @property
    def _about(self) -> dict[str, str]:
        return {"tls": self.loadable.name, "files": ", ".join(map(shown, self.loadable.files))}


class FileWatch:
    """Everything that is reloaded when its files have changed."""

    def __init__(self) -> None:
        self._entries: dict[Loadable, Watched] = {}
        self.failures = 0
        """Counter: changed files that could not be used."""

    def __iter__(self) -> Iterator[Watched]:
        return iter(tuple(self._entries.values()))

    def add(self, loadable: Loadable) -> Watched:
        """Watch this one, too."""
        known = self._entries.get(loadable)
        if known is None:
            known = self._entries[loadable] = Watched(loadable, self._count_failure)
        return known

    def replace(self, loadables: Iterable[Loadable]) -> None:
        """Watch these only; those that were watched before as before."""
        known = self._entries
        self._entries = {
            each: known.get(each) or Watched(each, self._count_failure) for each in loadables
        }

    def expiries(self) -> Iterator[tuple[str, int]]:
        """Files of certificates in use and when these end, without repetitions."""
        return iter({pair: None for entry in self._entries for pair in entry.expiries})

    def _count_failure(self) -> None:
        self.failures += 1
