"""Backends from DNS, followed by the time to live of the answers.

Loaded only where it is configured: the resolver takes 6 MB (docs/decisions/0023-membership.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from itertools import islice, zip_longest
from time import monotonic
from typing import Final

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.message import Message, from_wire
from dns.name import root as ROOT  # noqa: N812  # it is a constant
from dns.rdatatype import RdataType
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV
from dns.resolver import Answer, LifetimeTimeout, NoAnswer

from lb.discovery.nameserver import MAX_DATAGRAM, Nameserver
from lb.discovery.source import Entries, SourceError, taken_over
from lb.domain.backend import Address
from lb.net.file_thread import FileStalled, FileThread
from lb.net.files import touching
from lb.settings.backends import BackendSettings
from lb.settings.discovery import DnsSettings
from lb.settings.values import AddressFamily

LOOKUP_TIMEOUT_S: Final = 5.0
"""As resolvers give up (resolv.conf(5)); the last good answer stays in force meanwhile."""
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 10.0
"""A look-up that failed is repeated after one second, then two, and so on up to this."""
_FAMILIES: Final = {
    AddressFamily.AUTO: (RdataType.A, RdataType.AAAA),
    AddressFamily.IPV4: (RdataType.A,),
    AddressFamily.IPV6: (RdataType.AAAA,),
}


@dataclass(frozen=True, slots=True)
class _Target:
    """What one SRV record names."""

    port: int
    weight: int


class DnsSource:
    """One name with addresses, or SRV records of the same servers."""

    def __init__(
        self,
        settings: DnsSettings,
        files: FileThread,
        *,
        most: int,
        clock: Callable[[], float] = monotonic,
        timeout_s: float = LOOKUP_TIMEOUT_S,
    ) -> None:
        """
        Args:
            settings: what to ask for.
            files: the thread in which `/etc/resolv.conf` is read, and long answers are parsed.
            most: addresses or targets that become backends.
            clock: monotonic, in seconds.
            timeout_s: for one look-up, all servers and repetitions together.
        """
        self._settings = settings
        self._timeout_s = timeout_s
        self._files = files
        self._most = most
        self._clock = clock
        self.due = clock()
        """When to ask again, by its clock."""
        self._failures = 0
        """In a row."""
        self._entries: Entries = ()
        """The last set."""

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
        await asyncio.sleep(max(self.due - self._clock(), 0.0))
        settings = self._settings
        try:
            # It reads /etc/resolv.conf, which changes when networks do.
            resolver = await self._files.run(self, self._resolver)
            if settings.host is not None:
                found, ttl_s = await self._addresses(resolver, settings.host)
            else:
                found, ttl_s = await self._services(resolver)
        except SourceError:
            self._retry_later()
            raise
        except FileStalled as stalled:
            self._retry_later()
            raise SourceError(str(stalled)) from stalled
        except (DNSException, OSError) as error:
            self._retry_later()
            raise SourceError(_reason(error)) from error
        self._failures, self._entries = 0, found
        self.due = self._clock() + min(max(ttl_s, settings.refresh_min), settings.refresh_max)
        return found

    def _retry_later(self) -> None:
        self.due = self._clock() + min(_FIRST_RETRY_S * 2**self._failures, _LAST_RETRY_S)
        self._failures = min(self._failures + 1, 10)

    def _resolver(self) -> Resolver:
        servers = self._settings.servers
        with touching("/etc/resolv.conf"):
            resolver = Resolver(configure=not servers)
        asked = [(each.host, each.port) for each in servers] or [
            (str(each), resolver.port) for each in resolver.nameservers
        ]
        resolver.nameservers = [Nameserver(*each, self._parse) for each in asked]
        resolver.use_edns(0, 0, MAX_DATAGRAM)
        resolver.lifetime = self._timeout_s
        return resolver

    async def _parse(self, answer: bytes) -> Message:
        return await self._files.run(self, partial(from_wire, answer))

    async def _entries_of(self, found: Callable[[], Iterable[BackendSettings]]) -> Entries:
        """As many entries as matter, in a thread: a thousand take a twentieth of a second."""
        before, most = self._entries, self._most
        return await self._files.run(self, lambda: taken_over(before, islice(found(), most)))

    # Addresses

    async def _addresses(self, resolver: Resolver, host: str) -> tuple[Entries, float]:
        """A backend for each address of a name, and the time to live.

        Raises:
            DNSException: there is none, or no answer.
        """
        *others, last = _FAMILIES[self._settings.family]
        for kind in others:
            try:
                return await self._addresses_of(resolver, host, kind)
            except NoAnswer:
                continue
        return await self._addresses_of(resolver, host, last)

    async def _addresses_of(
        self, resolver: Resolver, host: str, kind: RdataType
    ) -> tuple[Entries, float]:
        answer = await resolver.resolve(host, kind, search=True)
        entries = await self._entries_of(partial(self._at_addresses, answer, host))
        return entries, answer.chaining_result.minimum_ttl

    def _at_addresses(self, answer: Answer, host: str) -> Iterator[BackendSettings]:
        found = [each.address for each in answer if isinstance(each, A | AAAA)]
        settings = self._settings
        ports = (settings.http_port, settings.grpc_port, settings.metrics_port)
        for ip in sorted(map(ip_address, found), key=int):
            yield self._entry(str(ip), ports, host)

    def _entry(
        self, host: str, ports: tuple[int | None, ...], certified: str = "", weight: float = 1.0
    ) -> BackendSettings:
        """One backend.

        Args:
            host: name or address to connect to.
            ports: of HTTP, gRPC and metrics.
            certified: the name that its certificate must hold unless another one is configured;
                empty: that of the host.
            weight: multiplies the one that is configured.
        """
        common = self._settings.backend
        http, grpc, metrics = (port and Address(host=host, port=port) for port in ports)
        tls = common.tls
        if certified and tls is not None and tls.server_name is None:
            tls = tls.model_copy(update={"server_name": certified.rstrip(".")})
        return common.model_copy(
            update={
                "http": http,
                "grpc": grpc,
                "metrics": metrics,
                "tls": tls,
                "weight": common.weight * weight,
            }
        )

    # SRV records

    async def _services(self, resolver: Resolver) -> tuple[Entries, float]:
        """A backend for each target of the services, and the time to live.

        Raises:
            DNSException: a service has none, or there is no answer.
        """
        settings = self._settings
        names = (settings.http_service, settings.grpc_service, settings.metrics_service)
        answers: list[Answer | None] = []
        ttls = []
        for name in names:
            if name is None:
                answers.append(None)
                continue
            answer = await resolver.resolve(name, RdataType.SRV, search=True)
            answers.append(answer)
            ttls.append(answer.chaining_result.minimum_ttl)
        entries = await self._entries_of(partial(self._joined, *answers))
        return entries, min(ttls)

    def _joined(self, *answers: Answer | None) -> Iterator[BackendSettings]:
        """Ports of the same host belong together, the lowest of each to the lowest of the others.

        Which of several servers on a host a port belongs to no record says.
        """
        http, grpc, metrics = ({} if each is None else _by_host(each) for each in answers)
        hosts = sorted({*http, *grpc})
        targets = [each for found in (*http.values(), *grpc.values()) for each in found]
        are_weighted = len({each.weight for each in targets}) > 1
        for host in hosts:
            rows = zip_longest(http.get(host, ()), grpc.get(host, ()), metrics.get(host, ()))
            for row in rows:
                first = row[0] or row[1]
                if first is None:
                    continue  # a metrics port alone
                ports = tuple(each.port if each is not None else None for each in row)
                weight = float(max(first.weight, 1)) if are_weighted else 1.0
                yield self._entry(host, ports, weight=weight)


def _by_host(answer: Answer) -> dict[str, list[_Target]]:
    """The targets of the lowest priority by their host, each host's in the order of the ports.

    Raises:
        SourceError: there are none: the service says that it is not available (RFC 2782).
    """
    records = [each for each in answer if isinstance(each, SRV) and each.target != ROOT]
    found: dict[str, list[_Target]] = {}
    first = min((each.priority for each in records), default=0)
    for record in sorted(records, key=lambda each: each.port):
        if record.priority == first:
            host = record.target.to_text(omit_final_dot=True)
            found.setdefault(host, []).append(_Target(record.port, record.weight))
    if not found:
        raise SourceError(f"{answer.qname} is not available, its records say")
    return found


def _reason(error: DNSException | OSError) -> str:
    """Why there is no answer, in the same words every time."""
    if isinstance(error, LifetimeTimeout):
        return "no DNS server has answered in time"
    return str(error) or type(error).__name__
