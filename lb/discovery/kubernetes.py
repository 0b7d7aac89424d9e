"""Backends from the EndpointSlices of services in Kubernetes, listed once and then watched.

Loaded only where it is configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from random import Random
from time import monotonic
from typing import Final

import aiohttp

from lb.discovery.kubernetes_api import Api, Change, Gone, Unreachable, Watch
from lb.discovery.kubernetes_login import Login, log_in_as_pod, log_in_by_file
from lb.discovery.kubernetes_slices import (
    LONGEST_NAME,
    Server,
    Slice,
    name_of,
    read_slice,
    servers_of,
)
from lb.discovery.source import Entries, SourceError
from lb.domain.backend import Address
from lb.net.file_thread import FileStalled, FileThread
from lb.net.http_sessions import SteadyConnector
from lb.net.threads import computed
from lb.settings.backends import BackendSettings
from lb.settings.kubernetes import KubernetesSettings

_log = logging.getLogger(__name__)

API_TIMEOUT_S: Final = 10.0
"""Until the API begins to answer; the last good set of backends stays in force meanwhile."""
_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 30.0
"""After a failure the API is asked again after the first, then twice that, and so on up to the
last, give or take a half: replicas that lose the API together must not come back together."""
_SOUND_S: Final = 5.0
"""A watch that lasted so long was a good one."""
_WATCH_S: Final = 240
"""When the API is asked to end a watch at the earliest; half as long again at the latest."""
_GATHER_S: Final = 0.1
_GATHER_EACH_S: Final = 0.0001
"""Changes within this time, and that much more for each backend, are applied together: a roll-out
makes many, and applying one costs the more the more backends there are."""
_GONE_TOLD: Final = 4
"""Times in a row that the API no longer knows a version: then something is wrong with it."""
_MOST_COUNTED: Final = 20
"""Failures; the pause is at its longest by then."""
_MOST_PARTS: Final = 50_000
"""Sizes of all slices together: 15 MB of memory, and ten times the endpoints that are tested."""
_SERVICE_LABEL: Final = "kubernetes.io/service-name"
_BOOKMARK: Final = "BOOKMARK"
_DELETED: Final = "DELETED"

LogIn = Callable[[], Login]


class _Slices:
    """The slices that are known, which are refused once they are too many."""

    __slots__ = ("_size", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, Slice] = {}
        self._size = 0

    def put(self, name: str, new: Slice | None) -> None:
        """Add a slice in place of the one with this name; None removes that one.

        Raises:
            SourceError: they are too many.
        """
        old = self.by_name.pop(name, None)
        if old is not None:
            self._size -= old.size
        if new is not None:
            self.by_name[name] = new
            self._size += new.size
        if self._size > _MOST_PARTS:
            raise SourceError("the API tells too many endpoints")


class KubernetesSource:
    """One service, or all services with some labels."""

    def __init__(
        self,
        settings: KubernetesSettings,
        rng: Random,
        files: FileThread,
        *,
        most: int,
        log_in: LogIn | None = None,
        clock: Callable[[], float] = monotonic,
        first_pause_s: float = _FIRST_PAUSE_S,
        timeout_s: float = API_TIMEOUT_S,
    ) -> None:
        """
        Args:
            settings: what to look for.
            rng: spreads what replicas do over time.
            files: the thread in which files with credentials are read.
            most: endpoints that become backends.
            log_in: says where the API is, in a thread; by the settings if left out.
            clock: monotonic, in seconds.
            first_pause_s: after a failure.
            timeout_s: for an answer of the API.
        """
        self._settings = settings
        self._most = most
        self._timeout_s = timeout_s
        self._rng = rng
        self._files = files
        self._log_in = log_in or partial(_log_in, settings)
        self._clock = clock
        self._first_pause_s = first_pause_s
        self._words: AsyncGenerator[Entries | SourceError, None] | None = None
        """What the attempt under way has to say."""
        self._failures = 0
        """Attempts in a row that came to nothing."""
        self._is_failing = False
        """It has said that it does not know which backends there are."""
        self._version = ""
        """From which on changes are needed; empty: everything has to be listed."""
        self._slices = _Slices()
        self._namespace = ""
        self._entries: dict[Server, BackendSettings] = {}
        """What is known of those that are found, so that what stays is the same object."""

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._settings.name

    @property
    def config(self) -> object:
        """See `Source`."""
        return self._settings, self._most

    async def next(self) -> Entries:
        """See `Source`."""
        while True:
            if self._words is None:
                await asyncio.sleep(self.pause_s())
                self._words = self._attempt()
            try:
                word = await anext(self._words)
            except StopAsyncIteration:
                self._words = None
                continue
            except BaseException as error:
                self._words = None
                if self._note_end(error):
                    raise
                continue
            self._is_failing = isinstance(word, SourceError)
            if isinstance(word, SourceError):
                raise word
            return word

    def pause_s(self) -> float:
        """How long to wait before the API is asked again."""
        if not self._failures:
            return 0.0
        longest = min(self._first_pause_s * 2.0 ** (self._failures - 1), _LAST_PAUSE_S)
        return longest * self._rng.uniform(0.5, 1.5)

    def _note_end(self, error: BaseException) -> bool:
        """Note how an attempt ended. Returns whether that concerns anybody."""
        if not isinstance(error, Unreachable):
            self._version = ""
        if isinstance(error, Gone) and self._failures < _GONE_TOLD:
            return False
        self._is_failing |= isinstance(error, SourceError)
        return True

    # One attempt

    async def _attempt(self) -> AsyncGenerator[Entries | SourceError, None]:
        """Everything that one watch has to say, after a list where there is need of one."""
        self._failures = min(self._failures + 1, _MOST_COUNTED)
        try:
            login = await self._files.run(self, self._log_in)
        except FileStalled as stalled:
            raise SourceError(str(stalled)) from stalled
        settings = self._settings
        self._namespace = settings.namespace or login.namespace
        async with _new_session() as session:
            api = Api(session, login, self._namespace, self._selector)
            is_news = self._is_failing
            if not self._version:
                await self._list(api)
                is_news = False
                yield await self._found()
            last_s = int(_WATCH_S * self._rng.uniform(1.0, 1.5))
            watch = await api.watch(self._version, last_s, self._timeout_s)
            try:
                began = self._clock()
                if is_news:
                    yield await self._found()
                while await self._follow(watch):
                    yield await self._found()
            finally:
                watch.close()
            if self._clock() - began >= _SOUND_S:
                self._failures = 0

    @property
    def _selector(self) -> str:
        settings = self._settings
        return settings.selector or f"{_SERVICE_LABEL}={settings.service}"

    async def _list(self, api: Api) -> None:
        found = _Slices()

        def take(item: object) -> None:
            each = read_slice(item)
            if each is not None:
                found.put(name_of(item), each)

        self._version = await api.list(self._timeout_s, take)
        self._slices = found

    async def _follow(self, watch: Watch) -> bool:
        """Take the next changes. False when the watch is over."""
        try:
            while changes := await watch.changes():
                if self._take(changes):
                    await self._gather(watch)
                    return True
        except Unreachable as error:
            # Worth a word only if the next one cannot be had.
            _log.debug("watch broke off", extra={"source": self.name, "error": str(error)})
        return False

    async def _gather(self, watch: Watch) -> None:
        """Take what comes right after a change."""
        try:
            async with asyncio.timeout(_GATHER_S + _GATHER_EACH_S * len(self._entries)):
                while changes := await watch.changes():
                    self._take(changes)
        except (TimeoutError, Unreachable):
            return  # the watch says so again

    def _take(self, changes: list[Change]) -> bool:
        """Whether that changes anything."""
        before = dict(self._slices.by_name)
        for change in changes:
            if change.kind != _BOOKMARK:
                new = read_slice(change.item) if change.kind != _DELETED else None
                self._slices.put(name_of(change.item), new)
            self._version = change.version
        return before != self._slices.by_name

    # What it means

    async def _found(self) -> Entries | SourceError:
        # In a thread: thousands of endpoints take a tenth of a second.
        return await computed(self._make_entries)

    def _make_entries(self) -> Entries | SourceError:
        settings = self._settings
        if not self._slices.by_name:
            # A service without pods has an empty slice, so this one has been removed or never was.
            what = f"in the namespace {self._namespace} with {self._selector}"
            return SourceError(f"there is no EndpointSlice {what}")
        ports = (settings.http_port, settings.grpc_port, settings.metrics_port)
        try:
            servers = servers_of(self._slices.by_name.values(), ports, settings.family)
        except SourceError as error:
            return error
        known = self._entries
        used = servers[: self._most]
        self._entries = {each: known.get(each) or self._entry(each) for each in used}
        return tuple(self._entries.values())

    def _entry(self, server: Server) -> BackendSettings:
        common = self._settings.backend
        http, grpc, metrics = (
            port and Address(host=server.host, port=port) for port in server.ports
        )
        name = f"{server.pod}.{self._namespace}:{server.ports[0] or server.ports[1]}"
        tls, service = common.tls, self._settings.service
        if service and tls is not None and tls.server_name is None:
            tls = tls.model_copy(update={"server_name": f"{service}.{self._namespace}.svc"})
        return common.model_copy(
            update={
                "name": name if server.pod and len(name) <= LONGEST_NAME else None,
                "http": http,
                "grpc": grpc,
                "metrics": metrics,
                "tls": tls,
            }
        )


def _log_in(settings: KubernetesSettings) -> Login:
    if settings.kubeconfig is None:
        return log_in_as_pod(os.environ)
    return log_in_by_file(settings.kubeconfig, settings.context)


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=SteadyConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
