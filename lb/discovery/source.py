"""What a source of backends is."""

from __future__ import annotations

from typing import Protocol

from lb.domain.errors import LoadBalancerError
from lb.settings.backends import BackendSettings

Entries = tuple[BackendSettings, ...]
"""A whole set of backends, as they would stand in the configuration."""


class SourceError(LoadBalancerError):
    """A source could not say which backends there are; what it said before stays in force."""


class Source(Protocol):
    """Says which backends there are, whenever that has changed."""

    @property
    def name(self) -> str:
        """For logs, metrics and the admin API; no two have the same."""
        ...

    @property
    def config(self) -> object:
        """What it was made from: one that is equal need not be replaced by another one."""
        ...

    async def next(self) -> Entries:
        """Wait for news, and return the whole set; the first call waits for nothing but the
        answer. May be cancelled.

        Raises:
            SourceError: there is none; to be called again at once, the source takes its time.
        """
        ...
