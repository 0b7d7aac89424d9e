"""Settings of how the process takes over another configuration, and another version of itself."""

from __future__ import annotations

from lb.settings.section import Section
from lb.settings.units import PositiveDuration


class ReloadSettings(Section):
    """Another configuration while the process runs: SIGHUP and `triton-lb reload` apply the file,
    all of it or, where anything is wrong with it, nothing."""

    watch: bool = False
    """Also apply the file when it has changed, within two seconds."""


class UpgradeSettings(Section):
    """Another version: SIGUSR2 and `triton-lb upgrade` start the program anew with the listening
    sockets of the process that runs, which then finishes what it has, within `shutdown.drain`."""

    timeout: PositiveDuration = 60.0
    """How long the new process may take until it is ready; then it is stopped, and the old one
    goes on."""
