"""Clients that send a row's bytes as they are, plain or through TLS, at once or one by one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from tests.wire.http1 import RawClient

_BYTEWISE: Final = 300
"""So many bytes at both ends of a long text go one by one, the rest in pieces."""
_PIECE: Final = 4001
_PAUSE_S: Final = 0.001
"""Between two bytes, so that most of them are read one by one."""


class SecureStream:
    """TLS over streams, with a half-close, which asyncio's own TLS does not have."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def handshake(self) -> None:
        """Agree on keys."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._fill()
            else:
                self._flush()
                return

    async def read(self, size: int) -> bytes:
        """As a StreamReader does; negative sizes read to the end.

        Raises:
            ConnectionResetError: the connection was cut without a word.
        """
        parts: list[bytes] = []
        while True:
            try:
                part = self._tls.read(65536)
            except ssl.SSLWantReadError:
                await self._fill()
                continue
            except ssl.SSLZeroReturnError:
                part = b""
            except ssl.SSLError as error:
                raise ConnectionResetError(str(error)) from error
            if not part or size >= 0:
                return b"".join((*parts, part))
            parts.append(part)

    def write(self, data: bytes) -> None:
        """Send `data` in records of its own."""
        self._tls.write(data)
        self._flush()

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._writer.drain()

    def write_eof(self) -> None:
        """Say that nothing more comes."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other side has not said so yet
        self._flush()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())

    async def _fill(self) -> None:
        self._flush()
        data = await self._reader.read(65536)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


@asynccontextmanager
async def corpus_client(port: int, context: ssl.SSLContext | None) -> AsyncIterator[RawClient]:
    """Connect, with TLS where a context is given."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if context is None:
            yield RawClient(reader, writer)
        else:
            secure = SecureStream(reader, writer, context)
            await secure.handshake()
            yield RawClient(secure, secure)  # type: ignore[arg-type]
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


def pieces_of(wire: bytes) -> Iterator[bytes]:
    """The bytes one by one; the middle of a long text in pieces."""
    tail = max(len(wire) - _BYTEWISE, _BYTEWISE)
    at = 0
    while at < len(wire):
        step = 1 if at < _BYTEWISE or at >= tail else min(_PIECE, tail - at)
        yield wire[at : at + step]
        at += step


async def send_wire(client: RawClient, wire: bytes, *, bytewise: bool, half_close: bool) -> None:
    """Send the bytes; being refused before all of them were sent is no error."""
    try:
        if bytewise:
            for piece in pieces_of(wire):
                await client.send(piece)
                await asyncio.sleep(_PAUSE_S)
        elif wire:
            await client.send(wire)
        if half_close:
            client.half_close()
    except (ConnectionError, OSError, ssl.SSLError):
        pass
