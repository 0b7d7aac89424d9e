"""A DNS server on loopback, over UDP and TCP, that says what a test tells it."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from dns.flags import TC
from dns.message import Message
from dns.rcode import Rcode

_WHOLE = 65535
NO_ANSWER = "silence"


class DnsServer(asyncio.DatagramProtocol):
    """Answers by name and type: records, none, an error code, or nothing at all."""

    def __init__(self) -> None:
        self.port = 0
        self.ttl_s = 1
        self.keeps_to_size = True
        """No datagram is longer than the client has asked for."""
        self.asked: Counter[tuple[str, str]] = Counter()
        self._answers: dict[tuple[str, str], list[str] | Rcode | str] = {}
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def address(self) -> str:
        """As a configuration names it."""
        return f"127.0.0.1:{self.port}"

    def say(self, name: str, kind: str, *records: str) -> None:
        """Answer with these records from now on; with none: there is no record of that kind."""
        self._answers[name, kind] = list(records)

    def fail(self, name: str, kind: str, code: Rcode = Rcode.SERVFAIL) -> None:
        """Answer with an error from now on."""
        self._answers[name, kind] = code

    def keep_silent(self, name: str, kind: str) -> None:
        """Do not answer from now on."""
        self._answers[name, kind] = NO_ANSWER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: bound."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """asyncio: a question."""
        answer = self._answer(data)
        if answer is None or self._transport is None:
            return
        query = dns.message.from_wire(data)
        wire = answer.to_wire(max_size=_WHOLE)
        if self.keeps_to_size and len(wire) > max(query.payload, 512):
            answer.answer.clear()
            answer.flags |= TC
            wire = answer.to_wire()
        self._transport.sendto(wire, addr)

    async def serve_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One question over TCP."""
        (size,) = struct.unpack("!H", await reader.readexactly(2))
        answer = self._answer(await reader.readexactly(size))
        if answer is not None:
            wire = answer.to_wire(max_size=_WHOLE)
            writer.write(struct.pack("!H", len(wire)) + wire)
        writer.close()

    def _answer(self, data: bytes) -> Message | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        found = self._answers.get((name, kind), dns.rcode.NXDOMAIN)
        if found == NO_ANSWER:
            return None
        answer = dns.message.make_response(query)
        if isinstance(found, Rcode):
            answer.set_rcode(found)
        elif found:
            answer.answer.append(
                dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, list(found))
            )
        return answer


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    """A server on a free port."""
    loop = asyncio.get_running_loop()
    server = DnsServer()
    streams = await asyncio.start_server(server.serve_stream, "127.0.0.1", 0)
    server.port = streams.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", server.port)
    )
    try:
        yield server
    finally:
        transport.close()
        streams.close()
        await streams.wait_closed()
