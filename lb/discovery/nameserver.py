"""Asks a DNS server, and parses long answers in a thread: one of 64 KiB takes a tenth of a second.

Loaded only where DNS is configured, as `lb.discovery.dns`.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from socket import SOCK_DGRAM, SOCK_STREAM
from time import monotonic
from typing import Any, Final

from dns import asyncquery
from dns.inet import af_for_address
from dns.message import Message, QueryMessage, Truncated
from dns.nameserver import Do53Nameserver
from dns.query import BadResponse

MAX_DATAGRAM: Final = 1232
"""Largest answer over UDP (RFC 6891), below every usual MTU; a longer one is fetched over TCP."""
_LENGTH: Final = struct.Struct("!H")
"""Stands before every message over TCP (RFC 1035, section 4.2.2)."""

Parse = Callable[[bytes], Awaitable[Message]]


class Nameserver(Do53Nameserver):
    """A DNS server at an address."""

    def __init__(self, address: str, port: int, parse: Parse) -> None:
        """Ask the server at an address. `parse` reads its answers over TCP."""
        super().__init__(address, port)
        self._parse = parse

    async def async_query(
        self,
        request: QueryMessage,
        timeout: float,  # noqa: ASYNC109  # the resolver's interface
        source: str | None,
        source_port: int,
        max_size: bool,
        backend: Any,
        one_rr_per_rrset: bool = False,
        ignore_trailing: bool = False,
    ) -> Message:
        """Ask over UDP, or over TCP if an answer of any size will do."""
        if max_size:
            response = await self._parse(await self._long_answer(request, timeout, backend))
            if not request.is_response(response):
                raise BadResponse
            return response
        family = af_for_address(self.address)
        async with await backend.make_socket(family, SOCK_DGRAM) as datagrams:
            short: Any = _ShortDatagrams(datagrams)
            return await asyncquery.udp(
                request,
                self.address,
                timeout=timeout,
                port=self.port,
                sock=short,
                raise_on_truncation=True,
                ignore_errors=True,
                ignore_unexpected=True,
            )

    async def _long_answer(self, request: QueryMessage, timeout_s: float, backend: Any) -> bytes:
        """The bytes of an answer over TCP, of which there are less than 64 KiB."""
        ends_at = monotonic() + timeout_s
        family, target = af_for_address(self.address), (self.address, self.port)
        async with await backend.make_socket(
            family, SOCK_STREAM, 0, None, target, timeout_s
        ) as stream:
            query = request.to_wire()
            await stream.sendall(_LENGTH.pack(len(query)) + query, _left_s(ends_at))
            (length,) = _LENGTH.unpack(await _read(stream, _LENGTH.size, ends_at))
            return await _read(stream, length, ends_at)


class _ShortDatagrams:
    """A socket whose datagrams are as long as we have asked for. A longer one counts as truncated,
    so that the answer is fetched over TCP."""

    def __init__(self, datagrams: Any) -> None:
        self.family = datagrams.family
        self._datagrams = datagrams

    async def sendto(self, what: bytes, destination: Any, timeout: float) -> Any:  # noqa: ASYNC109
        """Send a datagram."""
        return await self._datagrams.sendto(what, destination, timeout)

    async def recvfrom(self, size: int, timeout: float) -> Any:  # noqa: ASYNC109
        """Receive a datagram and where it is from."""
        received = await self._datagrams.recvfrom(size, timeout)
        if len(received[0]) > MAX_DATAGRAM:
            raise Truncated
        return received


async def _read(stream: Any, size: int, ends_at: float) -> bytes:
    """Exactly so many bytes.

    Raises:
        EOFError: there are fewer.
    """
    found = bytearray()
    while len(found) < size:
        some = await stream.recv(size - len(found), _left_s(ends_at))
        if not some:
            raise EOFError
        found += some
    return bytes(found)


def _left_s(ends_at: float) -> float:
    return max(ends_at - monotonic(), 0.0)
