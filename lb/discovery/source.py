"""What a source of backends is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lb.domain.errors import LoadBalancerError
from lb.settings.backends import BackendSettings

Entries = tuple[BackendSettings, ...]
"""A whole set of backends, as they would stand in the configuration."""


def taken_over(before: Entries, now: Iterable[BackendSettings]) -> Entries:
    """A set, with the objects of an earlier one where these are equal. The event loop compares
    equal objects much faster if they are the same."""
    same = {entry.known_as: entry for entry in before}
    return tuple(_same(same.get(entry.known_as), entry) for entry in now)


def _same(before: BackendSettings | None, now: BackendSettings) -> BackendSettings:
    return before if before is not None and before == now else now


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
