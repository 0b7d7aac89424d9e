"""What became of configurations: how many were applied, and which one is in force."""

from __future__ import annotations

from typing import Final

APPLIED: Final = "applied"
UNCHANGED: Final = "unchanged"
REFUSED: Final = "refused"


class Reloads:
    """Counters and the state of the configuration in force."""

    __slots__ = ("applied_at", "counts", "digest", "succeeded")

    def __init__(self, digest: str, now: float) -> None:
        """The process starts with a configuration.

        Args:
            digest: tells its text from others.
            now: Unix time in seconds.
        """
        self.counts = {APPLIED: 0, UNCHANGED: 0, REFUSED: 0}
        self.digest = digest
        """Of the text in force; empty where there is no file."""
        self.applied_at = now
        """When it came in force, or was last found unchanged."""
        self.succeeded = True
        """Whether the last attempt was not refused."""

    def accepted(self, digest: str, now: float, *, changed: bool) -> None:
        """A configuration is in force."""
        self.counts[APPLIED if changed else UNCHANGED] += 1
        self.digest, self.applied_at, self.succeeded = digest, now, True

    def refused(self) -> None:
        """A configuration could not be applied; the one before stays."""
        self.counts[REFUSED] += 1
        self.succeeded = False
