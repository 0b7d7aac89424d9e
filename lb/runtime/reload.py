"""Reloading the configuration: who asks for it, and what becomes of it.

SIGHUP, the admin API and, where `reload.watch` is on, a change of the file. The file is checked as
a whole beside the traffic, in a thread; what differs is then applied in one turn of the event loop,
or nothing at all is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from lb.net.file_thread import FileStalled
from lb.net.files import FilePrint, print_of
from lb.runtime.change import ChangeRefused, prepare
from lb.runtime.doors import Doors
from lb.runtime.logs import Logs
from lb.runtime.notify import ready, reloading
from lb.runtime.wiring import Product
from lb.settings.difference import changed_keys
from lb.settings.model import Settings
from lb.settings.problems import Problem, SettingsError
from lb.settings.reading import Loaded

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LOGGED_KEYS: Final = 20
"""Changed settings that the log names at most."""


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """Where the configuration comes from."""

    path: str
    load: Callable[[], Loaded]
    """Reads and checks the file; raises SettingsError with every problem. May block."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has done."""

    changed: tuple[str, ...]
    """Paths of the settings that are others now; none if the file says what is in force."""
    digest: str


class Reloader:
    """Applies the configuration file to the running process."""

    def __init__(
        self, product: Product, doors: Doors, logs: Logs, file: ConfigurationFile | None
    ) -> None:
        """
        Args:
            product: what is to be changed.
            doors: its sockets.
            logs: its logs.
            file: None when the process was started with flags alone.
        """
        self._product = product
        self._doors = doors
        self._logs = logs
        self._file = file
        self._lock = asyncio.Lock()
        self.begun = asyncio.Event()
        """The process serves: reloads wait for that."""
        self.closed = ""
        """Why nothing may be changed any more, if so."""

    async def reload(self, why: str) -> Reloaded:
        """Apply the file.

        Args:
            why: who asked for it, for the log.

        Raises:
            ChangeRefused: with every reason; nothing has changed.
        """
        await self.begun.wait()
        async with self._lock:
            reloading(os.environ)
            try:
                return await self._reload(why)
            except ChangeRefused as refused:
                self._product.reloads.refused()
                for reason in refused.reasons:
                    _log.error("configuration refused", extra={"why": reason, "by": why})
                raise
            finally:
                ready(os.environ)

    async def _reload(self, why: str) -> Reloaded:
        product = self._product
        loaded, changed = await self._in_thread(self._load)
        if changed:
            await self._apply(loaded.settings)
        product.reloads.accepted(loaded.digest, time.time(), changed=bool(changed))  # noqa: TID251
        shown = ", ".join(changed[:_LOGGED_KEYS])
        more = len(changed) - _LOGGED_KEYS
        fields = {"changed": f"{shown}, and {more} more" if more > 0 else shown, "by": why}
        message = "configuration reloaded" if changed else "configuration has not changed"
        _log.info(message, extra={**fields, "hash": loaded.digest})
        return Reloaded(changed, loaded.digest)

    async def _in_thread(
        self, work: Callable[[], _T], discard: Callable[[_T], None] | None = None
    ) -> _T:
        """Do what reads files."""
        try:
            return await self._product.files.run(self, work, discard=discard)
        except FileStalled as stalled:
            raise ChangeRefused([str(stalled)]) from stalled

    def _load(self) -> tuple[Loaded, tuple[str, ...]]:
        """The file, and what differs from what is in force."""
        if self.closed:
            raise ChangeRefused([self.closed])
        file = self._file
        if file is None:
            raise ChangeRefused(["the process was started without a file: there is none to reload"])
        try:
            loaded = file.load()
        except SettingsError as error:
            raise ChangeRefused(_place(file.path, each) for each in error.problems) from error
        return loaded, changed_keys(self._product.settings, loaded.settings)

    async def _apply(self, settings: Settings) -> None:
        product, doors, logs = self._product, self._doors, self._logs
        known = tuple(doors.listeners.bound.values())
        change = await self._in_thread(
            partial(prepare, product, logs, known, settings),
            discard=lambda late: late.discard(logs),
        )
        if self.closed:
            change.discard(logs)
            raise ChangeRefused([self.closed])
        closing = change.apply(product, logs)
        doors.replace(change.listeners)
        if closing is not None:
            await asyncio.to_thread(closing.close)

    async def ask(self, why: str) -> None:
        """As `reload`, for those who do not wait for its outcome."""
        try:
            await self.reload(why)
        except ChangeRefused:
            return  # it is in the log


class ConfigurationWatch:
    """Sees when the file has changed. It may be seen half written, so it must hold still first."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """
        Args:
            path: of the file.
            changed: told when there is another file than when it was last told.
        """
        self._path = path
        self._changed = changed
        self._used = self._seen = print_of(path)

    def look(self) -> Callable[[], None]:
        """See which state the file is in; see `Follower`."""
        seen = print_of(self._path)
        return lambda: self._take(seen)

    def _take(self, seen: FilePrint) -> None:
        before, self._seen = self._seen, seen
        if seen is not None and seen != self._used and seen == before:
            self._used = seen
            self._changed()


def _place(path: str, problem: Problem) -> str:
    return f"{path}:{problem.line}: {problem}" if problem.line else f"{path}: {problem}"
