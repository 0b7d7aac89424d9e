"""The configuration file of a process, from its start on.

Nothing of the data plane is imported here: a mistake in the settings is told without it.
"""

from __future__ import annotations

from collections.abc import Callable

from lb.net.files import FilePrint, print_of
from lb.settings.reading import Loaded


class ConfigurationFile:
    """Where the configuration comes from, and which state of it was read."""

    def __init__(self, path: str, read: Callable[[], Loaded]) -> None:
        """
        Args:
            path: of the file.
            read: reads and checks it. May block.
        """
        self.path = path
        self._read = read
        self.state: FilePrint = None
        """The state of the file just before it was last read: a change since then, even one during
        the reading, has led to another state."""

    def load(self) -> Loaded:
        """Read and check the file. May block.

        Raises:
            SettingsError: with every problem.
        """
        self.state = print_of(self.path)
        return self._read()


class ConfigurationWatch:
    """Sees when the file has changed. It may be seen half written, so it must hold still first."""

    def __init__(self, file: ConfigurationFile, changed: Callable[[], None]) -> None:
        """
        Args:
            file: says which state was read.
            changed: told when there is another state than was read, once of each.
        """
        self._file = file
        self._changed = changed
        self._told = self._seen = file.state

    def poll(self) -> Callable[[], None]:
        """See which state the file is in; see `Follower`."""
        seen = print_of(self._file.path)
        return lambda: self._take(seen)

    def _take(self, seen: FilePrint) -> None:
        before, self._seen = self._seen, seen
        if seen is not None and seen == before and seen not in (self._file.state, self._told):
            self._told = seen
            self._changed()
