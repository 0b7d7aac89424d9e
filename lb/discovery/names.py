"""Follows the host names of known backends.

New connections look their name up by themselves; this is for connections that stand, and would go
on to wherever the name led when they were made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from socket import SOCK_STREAM
from typing import Final

_log = logging.getLogger(__name__)

_SHOWN: Final = 10
"""Addresses that a log line tells."""

Addresses = frozenset[str]
Resolve = Callable[[str], Awaitable[Addresses | None]]


class NameWatch:
    """Looks all names up again and again, one after the other: that takes one thread at most."""

    def __init__(
        self,
        hosts: Callable[[], Collection[str]],
        changed: Callable[[str], None],
        *,
        interval_s: float,
        resolve: Resolve | None = None,
    ) -> None:
        """
        Args:
            hosts: the names of now.
            changed: told of a name that leads elsewhere than before.
            interval_s: between two rounds; 0 makes none, as long as it is that.
            resolve: looks a name up; the system's way if left out.
        """
        self._hosts = hosts
        self._changed = changed
        self.interval_s = interval_s
        self._resolve = resolve or resolve_by_system
        self._known: dict[str, Addresses] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.resolve()
            await asyncio.sleep(self.interval_s or 1.0)

    async def resolve(self) -> None:
        """Look once at all names. Those that cannot be resolved stay as they were."""
        hosts = frozenset(self._hosts()) if self.interval_s else frozenset[str]()
        self._known = {host: known for host, known in self._known.items() if host in hosts}
        for host in sorted(hosts):
            found = await self._resolve(host)
            if found is None:
                continue
            before = self._known.get(host)
            self._known[host] = found
            if before is not None and before != found:
                shown = ", ".join(sorted(found)[:_SHOWN])
                _log.info("host name leads elsewhere", extra={"host": host, "addresses": shown})
                self._changed(host)


async def resolve_by_system(host: str) -> Addresses | None:
    """The addresses of a name, as new connections find them; None when it has none now."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return frozenset(str(entry[4][0]) for entry in found)
