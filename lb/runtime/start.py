"""What a process is told at its start. Nothing of the data plane is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from lb.runtime.configuration_file import ConfigurationFile
from lb.runtime.predecessor import Inherited, Predecessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How the process was started, beside its settings."""

    file: ConfigurationFile | None = None
    """Where the settings come from; None where flags say it all."""
    digest: str = ""
    """Of the text of the settings."""
    inherited: tuple[Inherited, ...] = ()
    """Listening sockets that others have bound for us."""
    predecessor: Predecessor | None = None
    """Whom to take over from."""
    pid_file: str = ""
    """Holds the id of the process that serves; empty: there is none."""
