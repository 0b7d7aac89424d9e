"""Sources of backends and host names, as the settings ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.membership import Membership
from lb.discovery.file import FileSource
from lb.discovery.follow import Followers
from lb.discovery.names import NameWatch, Resolve
from lb.discovery.source import Entries, Source
from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.client import ip_of
from lb.net.file_thread import FileThread
from lb.net.files import read_text
from lb.net.tasks import TaskOwner
from lb.settings.listed import read_backends
from lb.settings.model import Settings
from lb.settings.relations import own_addresses
from lb.telemetry.collector import SourceStatus

_START_WAIT_S: Final = 5.0
"""How long a start waits for the first answer of every source. Later answers are followed as well;
until there are backends the process is not ready."""


class Discovery:
    """Keeps the membership in line with the configuration and with what its sources find."""

    def __init__(
        self,
        directory: BackendDirectory,
        membership: Membership,
        renew: Callable[[Backend], None],
        files: FileThread,
        *,
        resolve: Resolve | None = None,
    ) -> None:
        """
        Args:
            directory: whose backends' names are followed.
            membership: told of what is wanted.
            renew: makes all further requests to a backend go over new connections.
            files: the thread in which sources read files.
            resolve: looks host names up; the system's way if left out.
        """
        self._directory = directory
        self._membership = membership
        self._renew = renew
        self._files = files
        self._followers = Followers(membership.found)
        self._names = NameWatch(self._hosts, self._name_changed, interval_s=0.0, resolve=resolve)
        self._tasks = TaskOwner()
        self._sources: tuple[Source, ...] = ()
        self._is_running = False

    def configure(self, settings: Settings) -> None:
        """Go by these settings, the first or other ones."""
        discovery = settings.discovery
        self._sources = make_sources(settings, self._files)
        self._names.interval_s = discovery.resolve
        self._directory.removal_s = discovery.drain
        self._membership.most = self._followers.most = discovery.max_backends
        names = [source.name for source in self._sources]
        self._membership.configure(settings.backends, settings.health, names)
        if self._is_running:
            self._followers.use(self._sources)

    async def start(self) -> None:
        """Begin to follow the sources, and wait until each has said something, within limits."""
        self._is_running = True
        self._followers.use(self._sources)
        self._tasks.spawn(self._names.run(), name="host names")
        if self._sources:
            await self._followers.first_round(_START_WAIT_S)

    async def aclose(self) -> None:
        """End everything."""
        self._is_running = False
        await self._tasks.aclose()
        await self._followers.aclose()

    def statuses(self) -> Iterator[SourceStatus]:
        """How all sources do."""
        return self._followers.statuses()

    def _hosts(self) -> frozenset[str]:
        specs = (record.backend.spec for record in self._directory.records)
        return frozenset(host for spec in specs for host in _hosts_of(spec))

    def _name_changed(self, host: str) -> None:
        for record in self._directory.records:
            if host in _hosts_of(record.backend.spec):
                self._renew(record.backend)


def make_sources(settings: Settings, files: FileThread) -> tuple[Source, ...]:
    """The sources that are configured; nothing is looked at yet."""
    discovery = settings.discovery
    most = discovery.max_entries
    sources: list[Source] = []
    if discovery.dns:
        from lb.discovery.dns import DnsSource  # most do without: 6 MB

        sources += (DnsSource(each, files, most=most) for each in discovery.dns)
    if discovery.kubernetes:
        from lb.discovery.kubernetes import KubernetesSource  # likewise: TLS and YAML of logins

        sources += (
            KubernetesSource(each, Random(), files, most=most) for each in discovery.kubernetes
        )
    ours = own_addresses(settings)
    read = partial(_read_file, ours, most)
    sources += (FileSource(path, read, files, goes_by=(ours, most)) for path in discovery.files)
    return tuple(sources)


def _read_file(ours: Mapping[str, Address], most: int, path: str) -> Entries:
    return read_backends(read_text(path), ours, most)


def _hosts_of(spec: BackendSpec) -> frozenset[str]:
    """The names, not numbers, that a backend is reached by."""
    addresses = [each for each in (spec.http, spec.grpc) if each is not None and each.host]
    return frozenset(each.host for each in addresses if ip_of(each.host) is None)
