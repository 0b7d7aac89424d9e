"""The good client: 50 requests per second in an open loop, half gRPC and half HTTP.

Each is timed from the moment at which it was due, so that what queues up behind a stall counts.
Most share a few connections, some bring a fresh one. Every answer must hold the request's own
token. Run as `python -m tests.floods.good HTTP_PORT GRPC_PORT OUT CA`; SIGTERM ends it, and what
it saw is in OUT. CA is empty for plain ports.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import NamedTuple

from hpack import Decoder

from tests.fakes import frames as fr
from tests.floods.observation import GOOD_MODEL

RATE = 50.0
"""Requests per second."""
_FRESH_EVERY = 20
"""Of so many requests of a protocol one is on a connection of its own."""
_PATIENCE_S = 10.0


class Sample(NamedTuple):
    """One request: when it was due (monotonic), how long it took, and what was wrong."""

    due: float
    took_s: float
    error: str


def tls_context(ca: str, protocol: str) -> ssl.SSLContext | None:
    """For a client that trusts `ca`; None without one."""
    if not ca:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.set_alpn_protocols([protocol])
    return context


class GrpcClient(asyncio.Protocol):
    """One HTTP/2 connection for unary calls."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = b""
        self._next = 1
        self._decoder = Decoder()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._bodies: dict[int, bytes] = {}
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(fr.PREFACE + fr.settings())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost: {exc}")

    def _fail(self, why: str) -> None:
        self.over = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(why))
        self._waiting.clear()

    async def call(self, body: bytes) -> bytes:
        """The answer's message.

        Raises:
            ConnectionError: there was none, or a status other than OK.
        """
        stream, self._next = self._next, self._next + 2
        future = asyncio.get_running_loop().create_future()
        self._waiting[stream] = future
        self.transport.write(fr.call(stream, body))
        return bytes(await future)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        pos = 0
        while pos + 9 <= len(data):
            stop = pos + 9 + int.from_bytes(data[pos : pos + 3], "big")
            if stop > len(data):
                break
            stream = int.from_bytes(data[pos + 5 : pos + 9], "big")
            self._frame(fr.Frame(data[pos + 3], data[pos + 4], stream, data[pos + 9 : stop]))
            pos = stop
        self._buffer = data[pos:]

    def _frame(self, frame: fr.Frame) -> None:
        kind, flags, stream, payload = frame
        if kind == fr.DATA:
            self._bodies[stream] = self._bodies.get(stream, b"") + payload
            if payload:
                self.transport.write(fr.window_update(0, len(payload)))
        elif kind == fr.HEADERS:
            fields = {bytes(n): bytes(v) for n, v in self._decoder.decode(payload, True)}
            if flags & fr.END_STREAM:
                self._end(stream, fields)
        elif kind == fr.RST_STREAM:
            future = self._waiting.pop(stream, None)
            if future is not None and not future.done():
                future.set_exception(ConnectionError(f"reset, code {frame.code}"))
        elif kind == fr.GOAWAY:
            self._fail(f"GOAWAY, code {frame.code}")
        elif kind == fr.SETTINGS and not flags & fr.ACK:
            self.transport.write(fr.SETTINGS_ACK)

    def _end(self, stream: int, fields: dict[bytes, bytes]) -> None:
        future = self._waiting.pop(stream, None)
        body = self._bodies.pop(stream, b"")
        if future is None or future.done():
            return
        status = fields.get(b"grpc-status", b"none")
        if status == b"0":
            future.set_result(body)
        else:
            text = fields.get(b"grpc-message", b"").decode()
            future.set_exception(ConnectionError(f"status {status.decode()} {text}"))


class Client:
    """Both halves."""

    def __init__(self, http_port: int, grpc_port: int, ca: str) -> None:
        self._http_port = http_port
        self._grpc_port = grpc_port
        self._http_tls = tls_context(ca, "http/1.1")
        self._grpc_tls = tls_context(ca, "h2")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._shared: GrpcClient | None = None
        self.samples: list[Sample] = []

    async def _dial_grpc(self) -> GrpcClient:
        name = "localhost" if self._grpc_tls else None
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(
            GrpcClient, "127.0.0.1", self._grpc_port, ssl=self._grpc_tls, server_hostname=name
        )
        return client

    async def _grpc(self, token: bytes, fresh: bool) -> None:
        client = self._shared
        if fresh or client is None or client.over:
            client = await self._dial_grpc()
            if not fresh:
                self._shared = client
        body = await client.call(
            fr.message(b"\x0a" + bytes((len(GOOD_MODEL),)) + GOOD_MODEL + token)
        )
        if fresh:
            client.transport.close()
        if not body.endswith(token):
            raise ConnectionError("somebody else's answer")

    async def _http(self, token: bytes, fresh: bool) -> None:
        if self._idle and not fresh:
            reader, writer = self._idle.pop()
        else:
            name = "localhost" if self._http_tls else None
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self._http_port, ssl=self._http_tls, server_hostname=name
            )
        writer.write(
            b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: lb\r\nContent-Length: %d\r\n\r\n%b"
            % (GOOD_MODEL, len(token), token)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(head.partition(b"\r\n")[0].decode())
        if await reader.readexactly(len(token)) != token:
            raise ConnectionError("somebody else's answer")
        if fresh:
            writer.close()
        else:
            self._idle.append((reader, writer))

    async def once(self, number: int, due: float) -> None:
        """One request."""
        ask = self._http if number % 2 else self._grpc
        token = b"token-%09d" % number
        error = ""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await ask(token, number // 2 % _FRESH_EVERY == 0)
        except (OSError, EOFError, ssl.SSLError, TimeoutError) as failure:
            error = f"{ask.__name__.strip('_')}: {type(failure).__name__} {failure}"
        self.samples.append(Sample(due, time.monotonic() - due, error))

    def close(self) -> None:
        """Leave."""
        for _, writer in self._idle:
            writer.close()
        if self._shared is not None:
            self._shared.transport.close()


async def _run(http_port: int, grpc_port: int, ca: str) -> list[Sample]:
    client = Client(http_port, grpc_port, ca)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    began = time.monotonic()
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(client.once(number, due))
            number += 1
    client.close()
    await asyncio.sleep(0)
    return client.samples


def main(http_port: str, grpc_port: str, out: str, ca: str) -> None:
    """Send until SIGTERM, then write what was seen."""
    Path(out).write_text(json.dumps(asyncio.run(_run(int(http_port), int(grpc_port), ca))))


if __name__ == "__main__":
    main(*sys.argv[1:])
