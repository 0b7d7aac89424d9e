"""Reloading the configuration: who asks for it, and what becomes of it.

SIGHUP, the admin API and, where `reload.watch` is on, a change of the file. The file is checked as
a whole beside the traffic, in a thread; what differs is then applied in one turn of the event loop,
or nothing at all is.

During an upgrade nothing is reloaded, since the next process may have read the file already. The
admin API is told so; a signal or a change of the file is acted on once the upgrade is over, by the
process that serves then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from lb.net.file_thread import FileStalled
from lb.net.files import FilePrint, print_of
from lb.runtime.change import ChangeRefused, prepare
from lb.runtime.configuration_file import ConfigurationFile
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
_UPGRADING: Final = "an upgrade is under way: ask again when it is over"


def _nobody(_why: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has done."""

    changed: tuple[str, ...]
    """Paths of the settings that are others now; none if the file says what is in force."""
    digest: str


class Reloader:
    """Applies the configuration file to the running process."""

    def __init__(
        self,
        product: Product,
        doors: Doors,
        logs: Logs,
        file: ConfigurationFile | None,
        pass_on: Callable[[str], bool] = _nobody,
    ) -> None:
        """
        Args:
            product: what is to be changed.
            doors: its sockets.
            logs: its logs.
            file: None when the process was started with flags alone.
            pass_on: asks the process that has taken over to reload, telling who asked for it;
                False when there is none.
        """
        self._product = product
        self._doors = doors
        self._logs = logs
        self._file = file
        self._pass_on = pass_on
        self._lock = asyncio.Lock()
        """Held by a reload, or by an upgrade."""
        self._is_upgrading = False
        self._is_asked = False
        """Somebody who does not wait has asked for a reload that has not begun."""
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
        if self._is_upgrading:
            raise self._refused(why, ChangeRefused([_UPGRADING]))
        async with self._lock:
            return await self._reload(why)

    async def ask(self, why: str) -> None:
        """As `reload`, for those who do not wait for its outcome. It comes after an upgrade that is
        under way, and one that has not begun stands for all that are asked for meanwhile."""
        if self._is_asked:
            return
        self._is_asked = True
        try:
            await self.begun.wait()
            async with self._lock:
                self._is_asked = False
                if not (self.closed and self._pass_on(why)):
                    await self._reload(why)
        except ChangeRefused:
            return  # it is in the log
        finally:
            self._is_asked = False

    @asynccontextmanager
    async def upgrading(self) -> AsyncIterator[None]:
        """Reload nothing meanwhile; a reload that is under way ends first."""
        self._is_upgrading = True
        try:
            async with self._lock:
                yield
        finally:
            self._is_upgrading = False

    async def _reload(self, why: str) -> Reloaded:
        reloading(os.environ)
        try:
            return await self._load_and_apply(why)
        except ChangeRefused as refused:
            raise self._refused(why, refused) from refused.__cause__
        finally:
            ready(os.environ)

    def _refused(self, why: str, refused: ChangeRefused) -> ChangeRefused:
        self._product.reloads.refused()
        for reason in refused.reasons:
            _log.error("configuration refused", extra={"why": reason, "by": why})
        return refused

    async def _load_and_apply(self, why: str) -> Reloaded:
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
            try:
                await asyncio.to_thread(closing.close)
            except RuntimeError:  # there is no thread to wait for its end, which comes all the same
                closing.close(0.0)


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

    def look(self) -> Callable[[], None]:
        """See which state the file is in; see `Follower`."""
        seen = print_of(self._file.path)
        return lambda: self._take(seen)

    def _take(self, seen: FilePrint) -> None:
        before, self._seen = self._seen, seen
        if seen is not None and seen == before and seen not in (self._file.state, self._told):
            self._told = seen
            self._changed()


def _place(path: str, problem: Problem) -> str:
    return f"{path}:{problem.line}: {problem}" if problem.line else f"{path}: {problem}"
