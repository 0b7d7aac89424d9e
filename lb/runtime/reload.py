"""Reloading the configuration: who asks for it, and what becomes of it.

SIGHUP, the admin API and, where `reload.watch` is on, a change of the file. The file is checked as
a whole beside the traffic, in a thread, and all that can fail is done there (`prepare`): files are
read, sockets bound. Then everything is swapped in one iteration of the event loop (`Change.apply`),
which cannot fail: until then the process goes by the old settings, and from then on by the new
ones, as if started with them.

During an upgrade nothing is reloaded, since the next process may have read the file already. The
admin API is told so; a signal or a change of the file is acted on once the upgrade is over, by the
process that serves then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from lb.domain.errors import LoadBalancerError
from lb.net.file_thread import FileStalled
from lb.net.listeners import ListenErrors
from lb.net.threads import NoThread, in_thread
from lb.runtime.access import Access, make_access
from lb.runtime.configuration_file import ConfigurationFile
from lb.runtime.listeners import ListenerSet
from lb.runtime.logs import LogFiles, Logs, open_log_files
from lb.runtime.otel_variables import with_variables
from lb.runtime.relay_host import RelayHost
from lb.runtime.security import Security, make_security
from lb.runtime.signals import ready, reloading
from lb.runtime.sockets import Bound, Listeners
from lb.runtime.span_export import load_exporter
from lb.settings.difference import changed_keys
from lb.settings.model import Settings
from lb.settings.problems import Problem, SettingsError
from lb.settings.reading import Loaded

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LOGGED_KEYS: Final = 20
"""Changed settings that the log names at most."""
_UPGRADING: Final = "an upgrade is under way: ask again when it is over"


class ChangeRefused(LoadBalancerError):
    """Other settings cannot be applied; nothing has changed. The message has a line per reason."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


@dataclass(slots=True, kw_only=True)
class Change:
    """Everything that other settings need and that could fail, made beforehand."""

    settings: Settings
    security: Security
    access: Access
    log_files: LogFiles
    listeners: Listeners

    def apply(self, balancer: RelayHost) -> LogFiles:
        """Bring all parts in line, but the listening sockets (`ListenerSet.replace`).

        Returns:
            The log files until now; those that are used no more are to be closed.
        """
        balancer.access.replace(self.access)
        balancer.security.replace(self.security)
        before = balancer.logs.replace(self.settings, self.log_files)
        balancer.configure(self.settings)
        return before

    def discard(self, logs: Logs) -> None:
        """Undo what was prepared: it is not wanted after all."""
        self.listeners.discard()
        self.log_files.close(logs.files)


def prepare(balancer: RelayHost, known: Iterable[Bound], settings: Settings) -> Change:
    """Make what other settings need. Takes a while, and may run in a thread.

    Args:
        balancer: goes by the settings in force.
        known: its listening sockets.
        settings: the other ones.

    Raises:
        ChangeRefused: with every reason; nothing is left of what was made.
    """
    logs = balancer.logs
    reasons: list[str] = []

    def attempt(make: Callable[[], _T]) -> list[_T]:
        try:
            return [make()]
        except ListenErrors as error:
            reasons.extend(map(str, error.errors))
        except LoadBalancerError as error:
            reasons.append(str(error))
        return []

    security = attempt(lambda: make_security(settings, balancer.security))
    access = attempt(lambda: make_access(settings, balancer.access, balancer.usage))
    log_files = attempt(lambda: open_log_files(settings, balancer.settings, logs.files))
    listeners = attempt(lambda: Listeners(settings, known))
    if reasons:
        for each in listeners:
            each.discard()
        for files in log_files:
            files.close(logs.files)
        raise ChangeRefused(reasons)
    if with_variables(settings, os.environ).tracing.endpoint:
        load_exporter()
    return Change(
        settings=settings,
        security=security[0],
        access=access[0],
        log_files=log_files[0],
        listeners=listeners[0],
    )


def _nobody(_why: str) -> bool:
    return False


def _nothing(_settings: Settings) -> Iterable[str]:
    return ()


async def _tell_nobody(_loaded: Loaded) -> None:
    """There are no other processes."""


def _unchangeable(before: Settings, after: Settings) -> Iterator[str]:
    """What needs a restart."""
    if before.workers != after.workers:
        yield f"workers: {after.workers} instead of {before.workers} needs a restart"


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
        balancer: RelayHost,
        listener_set: ListenerSet,
        file: ConfigurationFile | None,
        pass_on: Callable[[str], bool] = _nobody,
    ) -> None:
        """
        Args:
            balancer: what is to be changed.
            listener_set: its sockets.
            file: None when the process was started with flags alone.
            pass_on: asks the process that has taken over to reload, telling who asked for it;
                False when there is none.
        """
        self._balancer = balancer
        self._listener_set = listener_set
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
        self.judge: Callable[[Settings], Iterable[str]] = _nothing
        """Says what of other settings cannot come in force by a reload."""
        self.applied: Callable[[Loaded], Awaitable[None]] = _tell_nobody
        """Tells other processes of the service of settings that are in force."""

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
        self._balancer.reloads.refused()
        for reason in refused.reasons:
            _log.error("configuration refused", extra={"why": reason, "by": why})
        return refused

    async def _load_and_apply(self, why: str) -> Reloaded:
        balancer = self._balancer
        loaded, changed = await self._in_thread(self._load)
        if changed:
            refused = [
                *_unchangeable(balancer.settings, loaded.settings),
                *self.judge(loaded.settings),
            ]
            if refused:
                raise ChangeRefused(refused)
            await self.apply(loaded.settings)
            await self.applied(loaded)
        balancer.reloads.accepted(loaded.digest, time.time(), changed=bool(changed))  # noqa: TID251
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
            return await self._balancer.parts.files.run(self, work, discard=discard)
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
        return loaded, changed_keys(self._balancer.settings, loaded.settings)

    async def apply(self, settings: Settings) -> None:
        """Go by other settings from now on.

        Raises:
            ChangeRefused: with every reason; nothing has changed.
        """
        balancer, listener_set = self._balancer, self._listener_set
        known = tuple(listener_set.listeners.bound.values())
        change = await self._in_thread(
            partial(prepare, balancer, known, settings),
            discard=lambda late: late.discard(balancer.logs),
        )
        if self.closed:
            change.discard(balancer.logs)
            raise ChangeRefused([self.closed])
        before = change.apply(balancer)
        listener_set.replace(change.listeners)
        if before != change.log_files:
            try:
                await in_thread(before.close, change.log_files)
            except NoThread:  # nothing waits for their end, which comes all the same
                before.close(change.log_files, timeout_s=0.0)


def _place(path: str, problem: Problem) -> str:
    return f"{path}:{problem.line}: {problem}" if problem.line else f"{path}: {problem}"
