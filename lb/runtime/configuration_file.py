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
